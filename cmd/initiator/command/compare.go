// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/compare"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
)

func newCompareCommand() *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "compare BEFORE AFTER",
		Short: "Compare the results of two benchmarks",
		Long: `compare compares the runs in two files case by case: medians, their ratio, and whether
the difference is significant. A file holds documents of "initiator bench --output
json", one after another, each of which is a run or a sweep:

  for i in 1 2 3 4 5; do initiator bench --rw randread --output json; done > before.json

or one document of "make bench-chain". Cases that differ in one setting, such as
--queue-depth, are compared as well if it is clear which belong together. It needs
no relay.`,
		Args: program.Operands("BEFORE", "AFTER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := compare.NewReport(args[0], args[1])
			err := fillComparison(r)
			r.Error = failureOf(err)
			return printResult(cmd, output, r, err == nil, err)
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}

// fillComparison reads and compares both files.
func fillComparison(r *compare.Report) error {
	before, err := compare.Read(r.Before)
	if err != nil {
		return inPhase(phasePrepare, program.Usage(err))
	}
	after, err := compare.Read(r.After)
	if err != nil {
		return inPhase(phasePrepare, program.Usage(err))
	}
	r.Compare(before, after)
	if len(r.Cases) == 0 {
		return inPhase(phasePrepare, program.Usagef(
			"%s and %s have no case in common: the first has %q, the second has %q", r.Before,
			r.After, r.OnlyBefore[0], r.OnlyAfter[0]))
	}
	return nil
}
