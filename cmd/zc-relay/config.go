package main

import (
	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/config"
	"github.com/zc-relay/zc-relay/internal/program"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Long: `The configuration comes from defaults, a YAML file, environment variables and
flags, each over the one before. The variable of a key begins with ZC_RELAY,
and two underscores stand between sections: ZC_RELAY__LOG__LEVEL is log.level.`,
	}
	cmd.AddCommand(newConfigCheckCommand(), newConfigDumpCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	return program.NewConfigCheckCommand(func(file string) (program.Checked, error) {
		c, err := config.LoadRelay(config.Sources{File: file})
		if err != nil {
			return program.Checked{}, err
		}
		return program.Checked{Count: len(c.Channels), Of: "channels"}, nil
	})
}

func newConfigDumpCommand() *cobra.Command {
	var from source
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the effective configuration",
		Long: `dump prints the configuration that "run" would have with the same file, variables
and flags, with every key, as a file that reads back as the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := from.load()
			if err != nil {
				return err
			}
			return c.Dump(cmd.OutOrStdout())
		},
	}
	from.add(cmd.Flags())
	return cmd
}
