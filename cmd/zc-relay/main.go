// SPDX-License-Identifier: Apache-2.0

// Command zc-relay is the relay: a daemon on a BlueField DPU that forwards the IO messages of host
// applications to a storage target.
package main

import "github.com/zc-relay/zc-relay/cmd/zc-relay/command"

func main() { command.Main(nil) }
