// Command target is the process on a storage node: it serves volumes to
// relays.
package main

import (
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func main() { program.Main(newCommand()) }
