// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

// maxSweepRuns bounds the runs of a sweep.
const maxSweepRuns = 1024

// sweepFlags are the flags of bench that make it a sweep: a run for each combination of values.
type sweepFlags struct {
	axes    []string // NAME=VALUE,VALUE…
	picture string   // path of the file, "" for none
	table   string   // path of the CSV file, "" for none
}

func (s *sweepFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&s.axes, "sweep", nil,
		"`NAME=VALUE,VALUE...`: a run for each value of block-size, queue-depth, or queues; repeatable, for each combination")
	_ = cmd.RegisterFlagCompletionFunc("sweep", completeAxis) // fails only for a missing flag
	f.StringVar(&s.picture, "picture", "",
		"with --sweep: draw the rates and latencies to this `file`, as SVG")
	f.StringVar(&s.table, "csv", "", "with --sweep: write a row for each run to this `file`")
	for _, other := range []string{"json-stream", "hlog", "interval", "execution-strategy",
		"trace"} {
		cmd.MarkFlagsMutuallyExclusive("sweep", other)
	}
}

// sweepAxes are the flags that a sweep can vary, and how a value is set.
var sweepAxes = map[string]func(b *benchFlags, value string) error{
	"block-size": func(b *benchFlags, value string) error { return b.blockSize.Set(value) },
	"queue-depth": func(b *benchFlags, value string) (err error) {
		b.queue.depth, err = count(value, depths)
		return err
	},
	"queues": func(b *benchFlags, value string) (err error) {
		b.queue.queues, err = count(value, queueCounts)
		return err
	},
}

// completeAxis completes what --sweep varies.
func completeAxis(_ *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(sweepAxes)) {
		if strings.HasPrefix(name+"=", text) {
			words = append(words, name+"=")
		}
	}
	return program.Continued(words)
}

// count parses a number in a range, and none that stands for a default.
func count(text string, allowed program.Range) (int, error) {
	allowed.Least = 1
	n, err := allowed.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	return int(n), nil
}

// combinations returns the flags of every run. Values of the axis that was given last change
// fastest.
func (s *sweepFlags) combinations(flags *benchFlags) ([]benchFlags, error) {
	all := []benchFlags{*flags}
	seen := make(map[string]bool)
	for _, axis := range s.axes {
		name, values, _ := strings.Cut(axis, "=")
		set, known := sweepAxes[name]
		switch {
		case !known:
			return nil, program.Usagef("--sweep %s: vary block-size, queue-depth, or queues, such as queue-depth=1,32", axis)
		case seen[name]:
			return nil, program.Usagef("--sweep %s: %s is varied twice", axis, name)
		case name == "block-size" && flags.blocksPerIO > 0,
			name == "queues" && len(flags.queue.cpus) > 0:
			return nil, program.Usagef("--sweep %s contradicts another flag", axis)
		}
		seen[name] = true
		list := strings.Split(values, ",")
		if len(list)*len(all) > maxSweepRuns {
			return nil, program.Usagef("--sweep: more than %d runs", maxSweepRuns)
		}
		next := make([]benchFlags, 0, len(list)*len(all))
		for _, former := range all {
			for _, value := range list {
				run := former
				if err := set(&run, value); err != nil {
					return nil, program.Usage(fmt.Errorf("--sweep %s: %w", name, err))
				}
				next = append(next, run)
			}
		}
		all = next
	}
	return all, nil
}

// runSweep runs the benchmark once for each combination. It ends at the first run that fails or is
// interrupted, and reports what was measured so far.
func (b *benchCommand) runSweep(cmd *cobra.Command) error {
	sweep := &bench.Sweep{Schema: bench.SweepSchema, Runs: []*bench.Report{}}
	runs, err := b.sweep.combinations(&b.flags)
	var files []sweepFile
	if err == nil && !b.output.dryRun {
		files, err = b.sweep.create(sweep)
		err = program.Usage(err)
	}
	err = inPhase(phasePrepare, err)
	for i := range runs {
		if err != nil {
			break
		}
		one := *b
		one.flags = runs[i]
		r := one.newReport()
		if err = one.complete(cmd.Context(), r); r.Volume != nil || r.DryRun {
			sweep.Runs = append(sweep.Runs, r)
		}
		if r.Result.Interrupted {
			break
		}
	}
	for _, f := range files {
		failure := err
		if len(sweep.Runs) > 0 { // a failure ends the sweep, but what was measured is worth keeping
			failure = f.write(f.Sink())
		}
		err = cmp.Or(err, f.Finish(failure))
	}
	sweep.Error = failureOf(err)
	return printResult(cmd, b.output.format, sweep, len(sweep.Runs) > 0, err)
}

// sweepFile is a file that a sweep writes at its end.
type sweepFile struct {
	*output.File
	write func(io.Writer) error
}

// create creates the files that were asked for.
func (s *sweepFlags) create(sweep *bench.Sweep) (files []sweepFile, err error) {
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{{s.picture, sweep.WriteSVG}, {s.table, sweep.WriteCSV}} {
		if f.path == "" {
			continue
		}
		file, err := output.Create(f.path)
		if err != nil {
			return files, err
		}
		files = append(files, sweepFile{file, f.write})
	}
	return files, nil
}
