//go:build !manual

package program

import (
	"context"
	"os"

	"github.com/spf13/cobra"
)

// Main runs the program whose commands root holds with the arguments of the
// process, cancels its context at SIGINT or SIGTERM, and exits. A second
// signal ends the process at once.
func Main(root *cobra.Command) {
	forceCollections()
	answerTo(root, os.Args[0])
	ctx, stop := WithSignals(context.Background())
	code := Run(ctx, root, os.Args[1:])
	stop()
	os.Exit(code)
}
