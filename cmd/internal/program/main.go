//go:build !manual

package program

import (
	"context"
	"os"

	"github.com/spf13/cobra"
)

// Main runs the program with the arguments of the process and exits. root holds its commands.
// Signals end the command as WithSignals describes, until the process has exited: a repeated signal
// must not turn an orderly end into a kill at the last moment.
func Main(root *cobra.Command) {
	forceCollections()
	answerTo(root, os.Args[0])
	ctx, _ := WithSignals(context.Background())
	os.Exit(Run(ctx, root, os.Args[1:]))
}
