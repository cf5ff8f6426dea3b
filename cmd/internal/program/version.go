// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/report"
)

// NewVersionCommand returns the command "version" of a program.
func NewVersionCommand(name string) *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, source revision, build tags and Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == report.JSON {
				return report.WriteJSON(cmd.OutOrStdout(), buildinfo.Describe(name))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String(name))
			return err
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}
