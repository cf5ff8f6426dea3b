// SPDX-License-Identifier: Apache-2.0

// Command measure benchmarks zc-relay as a whole: real processes and several workloads, alternating
// with baselines.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

func main() {
	root := &cobra.Command{
		Use:     "measure",
		Short:   "Benchmark zc-relay as a whole",
		Version: buildinfo.Version(),
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command,
			[]string) error {
			return errors.New("no command was given")
		},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newChainCommand(), newPeersCommand(), newBudgetCommand())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", sentence(err))
		os.Exit(1)
	}
}

// sentence returns the text of err on one line.
func sentence(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
