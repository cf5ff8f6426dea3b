// SPDX-License-Identifier: Apache-2.0

// Command target runs on a storage node and serves volumes to relays.
package main

import "github.com/zc-relay/zc-relay/cmd/target/command"

func main() { command.Main(nil) }
