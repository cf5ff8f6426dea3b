package program

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// CollectVariable is the environment variable that makes programs built with
// the tag faultinject force a garbage collection at that interval, for
// instance "100ms".
const CollectVariable = "ZC_RELAY_COLLECT_INTERVAL"

// Run executes a command line and returns the exit code. A failure is
// explained by one sentence on the error output of root. Whatever goes wrong
// before a command's RunE is entered is a usage error.
func Run(ctx context.Context, root *cobra.Command, arguments []string) int {
	entered := false
	prepare(root, &entered)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(arguments)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if !entered {
		err = Usage(err)
	}
	explain(root.ErrOrStderr(), command, err)
	return ExitCode(err)
}

func explain(w io.Writer, command *cobra.Command, err error) {
	fmt.Fprintf(w, "%s: %s\n", command.CommandPath(), Sentence(err))
	if ExitCode(err) == ExitUsage {
		fmt.Fprintf(w, "Run '%s --help' for usage.\n", command.CommandPath())
	}
}

// prepare notes when a command's RunE is entered, and makes a command that
// only groups others fail when none of them is named: cobra would print the
// help and succeed.
func prepare(command *cobra.Command, entered *bool) {
	for _, child := range command.Commands() {
		prepare(child, entered)
	}
	inner := command.RunE
	if inner == nil && command.Run == nil && command.HasSubCommands() {
		inner = func(*cobra.Command, []string) error { return Usagef("no command was given") }
	}
	if inner == nil {
		return
	}
	command.RunE = func(c *cobra.Command, arguments []string) error {
		*entered = true
		return inner(c, arguments)
	}
}
