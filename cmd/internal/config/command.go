package config

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ConfigCommand is what a daemon's config command needs to know of it.
type ConfigCommand struct {
	// VariablePrefix begins the names of its environment variables.
	VariablePrefix string
	// Subject is who has the configuration, in a sentence.
	Subject string
	// Check reads a configuration file.
	Check func(file string) (Checked, error)
	// AddFlags adds the flags that a configuration comes from, and Dump prints
	// the one that they have led to.
	AddFlags func(*pflag.FlagSet)
	Dump     func(io.Writer) error
}

// Checked is what a configuration that can be used describes.
type Checked struct {
	Count int
	Of    string // "channels" or "volumes"
}

// NewConfigCommand makes the command that checks and shows a configuration.
func NewConfigCommand(c ConfigCommand) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration",
		Long: fmt.Sprintf(`The configuration comes from defaults, a YAML file, environment variables and
flags, each over the one before. The variable of a key begins with %[1]s,
and two underscores stand between sections: %[1]s__LOG__LEVEL is log.level.`, c.VariablePrefix),
	}
	cmd.AddCommand(newConfigCheckCommand(c.Check), newConfigDumpCommand(c))
	return cmd
}

// newConfigCheckCommand makes the command that tells whether a configuration
// file can be used, and otherwise every reason why not on a line of its own.
func newConfigCheckCommand(check func(file string) (Checked, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Tell whether a configuration file can be used",
		Long: `check reads a configuration file without environment and flags, and lists
everything that is wrong with it. It looks at nothing but the file, so that it
can be used on another machine than the one that the file is for.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			checked, err := check(arguments[0])
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				return fmt.Errorf("%s cannot be used", arguments[0])
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is good; %s: %d\n", arguments[0], checked.Of, checked.Count)
			return err
		},
	}
}

func newConfigDumpCommand(c ConfigCommand) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the effective configuration",
		Long: fmt.Sprintf(`dump prints the configuration that %s would have with the same file, variables
and flags, with every key, as a file that reads back as the same.`, c.Subject),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.Dump(cmd.OutOrStdout()) },
	}
	c.AddFlags(cmd.Flags())
	return cmd
}
