// SPDX-License-Identifier: Apache-2.0

//go:build !manual

package program

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Main runs the program with the arguments of the process and exits. root holds its commands.
// Signals end the command as withSignals describes, until the process has exited: a repeated signal
// must not turn an orderly end into a kill at the last moment.
func Main(root *cobra.Command) {
	// Otherwise the runtime ends a program that crashes with exit code 2, which is ExitUsage: a
	// service manager that does not restart after a wrong call would not restart after a crash.
	debug.SetTraceback("crash")
	forceCollections()
	answerTo(root, os.Args[0])
	ctx, _ := withSignals(context.Background())
	os.Exit(Run(ctx, root, os.Args[1:]))
}
