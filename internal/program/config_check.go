package program

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Checked is what a configuration that can be used describes.
type Checked struct {
	Count int
	Of    string // "channels" or "volumes"
}

// NewConfigCheckCommand makes the command that tells whether a configuration
// file can be used, and otherwise every reason why not on a line of its own.
func NewConfigCheckCommand(check func(file string) (Checked, error)) *cobra.Command {
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
