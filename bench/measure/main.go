// Command measure benchmarks zc-relay as a whole: real processes, several
// workloads, alternating with what they are held against.
package main

import (
	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/program"
)

func main() {
	root := &cobra.Command{
		Use:     "measure",
		Short:   "Benchmark zc-relay as a whole",
		Version: buildinfo.Version(),
	}
	root.AddCommand(newChainCommand(), newPeersCommand())
	program.Main(root)
}
