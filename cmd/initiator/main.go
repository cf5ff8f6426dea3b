// Command initiator uses a volume through a relay: it measures and verifies
// it, and moves files to and from it.
package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func main() { program.Main(newCommand(openVolume)) }

// opener opens a volume, normally through a relay.
type opener func(ctx context.Context, config client.Config) (volume, error)

// newCommand makes the tree of commands.
func newCommand(open opener) *cobra.Command {
	root := &cobra.Command{
		Use:   "initiator",
		Short: "Use a remote volume through zc-relay",
		Long: `initiator opens a volume through a relay and measures it, verifies it, or moves
files to and from it. Standard output carries only the result.

Exit codes: 0 success; 1 an IO failed or data is wrong; 2 wrong usage, or asking
for what the volume does not offer; 3 no connection.`,
		Version: buildinfo.Version(),
	}
	root.SetVersionTemplate(buildinfo.String("initiator") + "\n")
	connection := &connectionFlags{open: open}
	connection.add(root.PersistentFlags())
	root.AddCommand(
		newBenchCommand(connection), newVerifyCommand(connection),
		newPutCommand(connection), newGetCommand(connection), newInfoCommand(connection), newCompareCommand(),
	)
	return root
}
