// SPDX-License-Identifier: Apache-2.0

// Command dma-copy copies a file between a host and its DPU, in whichever
// direction it is missing, by DMA.
package main

import "github.com/zc-relay/zc-relay/cmd/dma-copy/command"

func main() { command.Main(nil) }
