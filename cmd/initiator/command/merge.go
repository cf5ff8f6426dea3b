// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
)

func newMergeCommand() *cobra.Command {
	format, path := report.Text, ""
	cmd := &cobra.Command{
		Use:   "merge LOG...",
		Short: "Merge the latencies of several benchmarks",
		Long: `merge combines the latencies of several runs, as if one had measured them all:
percentiles of runs at the same time, or one after another, cannot be computed from
those of each run. A LOG is what "initiator bench --hlog" has written, or another
HdrHistogram log of nanoseconds. It needs no relay.`,
		Example: `  initiator merge host-a.hlog host-b.hlog
  initiator merge --hlog all.hlog night-*.hlog`,
		Args: program.Operands("LOG..."),
		RunE: func(cmd *cobra.Command, logs []string) error {
			merge := bench.NewMerge()
			err := mergeLogs(cmd.Context(), merge, logs, path)
			merge.Error = failureOf(err)
			return printResult(cmd, format, merge, err == nil, err)
		},
	}
	format.AddFlag(cmd.Flags())
	cmd.Flags().StringVar(&path, "hlog", "", "write a log with the merged latencies to this `file`")
	return cmd
}

// mergeLogs merges the logs, and writes the result to the file at path unless path is "".
func mergeLogs(ctx context.Context, merge *bench.Merge, logs []string, path string) error {
	for _, log := range logs {
		if err := merge.Add(ctx, log); err != nil {
			return inPhase(phasePrepare, program.Usage(err))
		}
	}
	merge.Complete()
	if path == "" {
		return nil
	}
	file, err := output.Create(path)
	if err != nil {
		return inPhase(phasePrepare, program.Usage(err))
	}
	return file.Finish(merge.WriteLog(file.Sink()))
}
