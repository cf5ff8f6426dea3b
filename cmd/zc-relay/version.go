package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String("zc-relay"))
			return err
		},
	}
}
