package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
)

func newConfigCommand() *cobra.Command {
	var from source
	return config.NewConfigCommand(config.ConfigCommand{
		VariablePrefix: "ZC_TARGET",
		Subject:        "the target",
		Check: func(file string) (config.Checked, error) {
			c, err := config.LoadTarget(config.Sources{File: file})
			if err != nil {
				return config.Checked{}, err
			}
			return config.Checked{Count: len(c.Volumes), Of: "volumes"}, nil
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
