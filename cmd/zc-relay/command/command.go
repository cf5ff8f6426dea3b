// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of zc-relay, without what decides where libdoca comes from.
package command

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/admincommands"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/explain"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/report"
)

// Main runs the program. libdoca replaces the DOCA libraries of this machine, unless it is nil.
func Main(libdoca providers.Libdoca) {
	providers.Use(libdoca)
	program.Main(newCommand())
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "zc-relay",
		Short: "Storage zero-copy relay for BlueField",
		Long: `zc-relay serves a remote volume to applications on the host over DOCA Comch.
It forwards 64-byte IO messages to a target. The data moves by one-sided RDMA,
directly between the target and the memory of the application.`,
		Version: buildinfo.Version(),
	}
	root.SetVersionTemplate(buildinfo.String("zc-relay") + "\n")
	runCommand := newRunCommand()
	root.AddCommand(runCommand, config.NewCommand(`"run"`, config.RelaySource()), newDrainCommand(), newDevicesCommand(),
		newDoctorCommand(), newProvidersCommand(),
		explain.NewCommand(), program.NewVersionCommand("zc-relay"))
	root.AddCommand(admincommands.NewCommands(daemon)...)
	root.AddCommand(admincommands.NewChannelCommand(daemon, &config.ChannelSource{}))
	argp.Adopt(root, runCommand)
	return root
}

func newProvidersCommand() *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "providers",
		Short: "List the providers of Comch, RDMA and DMA, and their capabilities",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := providers.All()
			if output == report.JSON {
				return report.WriteJSON(cmd.OutOrStdout(),
					map[string]any{"schema": "zc-relay.providers/1", "providers": all})
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "SEAM\tPROVIDER\tSTATE\tDETAIL")
			for _, d := range all {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", d.Seam, d.Name, d.State, d.Detail)
			}
			return table.Flush()
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}
