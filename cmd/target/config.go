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
		VariablePrefix: "ZC_TARGET",
		Subject:        "the target",
		Check: func(file string) (program.Checked, error) {
			c, err := config.LoadTarget(config.Sources{File: file})
			if err != nil {
				return program.Checked{}, err
			}
			return program.Checked{Count: len(c.Volumes), Of: "volumes"}, nil
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
