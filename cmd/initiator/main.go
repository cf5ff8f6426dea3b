// SPDX-License-Identifier: Apache-2.0

// Command initiator uses a volume through a relay: it measures it, verifies it, and moves files to
// and from it.
package main

import "github.com/zc-relay/zc-relay/cmd/initiator/command"

func main() { command.Main(nil) }
