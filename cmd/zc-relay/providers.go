package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/report"
)

func newProvidersCommand() *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "providers",
		Short: "List the providers of Comch, RDMA and DMA, and what they can do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := providers.All()
			if output == report.JSON {
				return report.WriteJSON(cmd.OutOrStdout(), map[string]any{"schema": "zc-relay.providers/1", "providers": all})
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "SEAM\tPROVIDER\tSTATE\tDETAIL")
			for _, d := range all {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", d.Seam, d.Name, d.State, d.Detail)
			}
			return table.Flush()
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "output format: text or json")
	return cmd
}
