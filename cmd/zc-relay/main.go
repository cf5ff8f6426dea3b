// Command zc-relay is the relay: a daemon on a BlueField DPU that forwards
// the IO messages of host applications to a storage target.
package main

import (
	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

func main() { program.Main(newCommand()) }

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "zc-relay",
		Short: "Storage zero-copy relay for BlueField",
		Long: `zc-relay serves a remote volume to applications on the host over DOCA Comch.
It forwards 64-byte IO messages to a target; the data goes by one-sided RDMA,
straight between the target and the memory of the application.`,
	}
	root.AddCommand(newRunCommand(), newConfigCommand(), newDrainCommand(), newDevicesCommand(), newDoctorCommand(), newProvidersCommand(), newStatusCommand(), newVersionCommand())
	return root
}
