package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/report"
)

func newVersionCommand() *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, source revision, build tags and Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == report.JSON {
				return report.WriteJSON(cmd.OutOrStdout(), buildinfo.Describe("zc-relay"))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String("zc-relay"))
			return err
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "output format: text or json")
	return cmd
}
