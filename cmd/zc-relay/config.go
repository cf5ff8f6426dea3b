package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/config"
	"github.com/zc-relay/zc-relay/internal/program"
)

func newConfigCommand() *cobra.Command {
	var from source
	return program.NewConfigCommand(program.ConfigCommand{
		VariablePrefix: "ZC_RELAY",
		Subject:        `"run"`,
		Check: func(file string) (program.Checked, error) {
			c, err := config.LoadRelay(config.Sources{File: file})
			if err != nil {
				return program.Checked{}, err
			}
			return program.Checked{Count: len(c.Channels), Of: "channels"}, nil
		},
		AddFlags: from.add,
		Dump: func(w io.Writer) error {
			c, err := from.load()
			if err != nil {
				return err
			}
			return c.Dump(w)
		},
	})
}
