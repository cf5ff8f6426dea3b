//go:build !manual

package program

import (
	"context"
	"os"

	"github.com/spf13/cobra"
)

// Main runs the program with the arguments of the process and exits. root holds its commands.
// SIGINT or SIGTERM cancels the context of the command; a second signal kills the process.
func Main(root *cobra.Command) {
	forceCollections()
	answerTo(root, os.Args[0])
	ctx, stop := WithSignals(context.Background())
	code := Run(ctx, root, os.Args[1:])
	stop()
	os.Exit(code)
}
