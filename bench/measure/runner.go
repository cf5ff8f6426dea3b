package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/calibrator"
	"github.com/zc-relay/zc-relay/bench/internal/chain"
	"github.com/zc-relay/zc-relay/internal/bench/suite"
	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/internal/program/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// system is the name under which the chain is reported.
const system = "zc-relay"

// runner measures workloads and collects the results.
type runner struct {
	options    *runOptions
	ctx        context.Context
	log        io.Writer // for people who wait
	bare       *calibrator.Calibrator
	document   *suite.Document
	configured chain.Config // of the chain that runs
	chain      *chain.Chain // nil if none does
	verified   map[chain.Config]bool
}

// run prepares a runner, lets body measure, and writes what it found, also if
// it failed.
func (o *runOptions) run(ctx context.Context, log io.Writer, body func(*runner) error) error {
	if o.repetitions < 1 || o.runtime <= 0 || o.warmup < 0 {
		return program.Usagef("%d runs of %v after %v of warm-up measure nothing", o.repetitions, o.runtime, o.warmup)
	}
	if err := os.MkdirAll(o.outputDirectory, 0o777); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "zc-relay-measure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	r := &runner{
		options: o, ctx: ctx, log: log, verified: map[chain.Config]bool{},
		document: suite.NewDocument(time.Now(), suite.Method{Runtime: o.runtime, Warmup: o.warmup, Repetitions: o.repetitions}),
	}
	if o.bare {
		if r.bare, err = calibrator.Build(ctx, scratch); err != nil {
			return fmt.Errorf("build the bare chain: %w", err)
		}
	}
	err = errors.Join(body(r), r.stop())
	if err != nil {
		r.document.Error = report.FailureOf("run", err, program.Sentence(err))
	}
	return errors.Join(err, r.write())
}

// measure runs all workloads, over and over, each beside the bare chain where
// that knows it, and verifies every configuration of the chain once.
func (r *runner) measure(workloads []suite.Workload) error {
	for repetition := range r.options.repetitions {
		for i, w := range workloads {
			fmt.Fprintf(r.log, "%d/%d %3d/%d %s", repetition+1, r.options.repetitions, i+1, len(workloads), w)
			if err := r.measureOne(w); err != nil {
				fmt.Fprintln(r.log)
				return fmt.Errorf("%s: %w", w, err)
			}
		}
		if err := r.stop(); err != nil { // every repetition with fresh processes
			return err
		}
	}
	r.judgeBare(workloads)
	return nil
}

func (r *runner) measureOne(w suite.Workload) error {
	if err := r.start(w); err != nil {
		return err
	}
	run, err := r.chain.Bench(r.ctx, w, r.options.warmup, r.options.runtime)
	if err != nil {
		return err
	}
	r.document.Add(system, w, run)
	fmt.Fprintf(r.log, ": %.0f IOPS", run.IOPS)
	if r.bareKnows(w) {
		bare, err := r.bare.Measure(r.ctx, w, r.options.runtime)
		if err != nil {
			return err
		}
		r.document.Add(calibrator.System, w, bare)
		fmt.Fprintf(r.log, ", bare %.0f, ratio %.2f", bare.IOPS, run.IOPS/bare.IOPS)
	}
	fmt.Fprintln(r.log)
	return nil
}

// bareKnows reports whether the bare chain does the same as the chain.
func (r *runner) bareKnows(w suite.Workload) bool {
	return r.bare != nil && w.Poll == adaptive && !w.CRC && w.Queues == 1 && w.Sessions == 1 && w.Volume == memoryVolume && w.Condition == ""
}

// start makes sure that a chain for the workload runs.
func (r *runner) start(w suite.Workload) (err error) {
	config := chain.Config{
		Programs: r.options.programs, Poll: w.Poll, CRC: w.CRC, Volume: "memory:" + r.options.volumeSize.String(),
	}
	if r.chain != nil && r.configured == config {
		return nil
	}
	if err := r.stop(); err != nil {
		return err
	}
	if r.chain, err = chain.Start(r.ctx, config); err != nil {
		return fmt.Errorf("start the chain: %w", err)
	}
	r.configured = config
	if err := r.chain.Fill(r.ctx, r.options.volumeSize); err != nil {
		return fmt.Errorf("fill the volume: %w", err)
	}
	return r.verify(config)
}

// verifyLength is how much of a volume is verified.
const verifyLength = 64 * size.MiB

func (r *runner) verify(config chain.Config) error {
	if r.verified[config] {
		return nil
	}
	r.verified[config] = true
	check, err := r.chain.Verify(r.ctx, min(verifyLength, r.options.volumeSize))
	r.document.Checks = append(r.document.Checks, check)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

func (r *runner) stop() error {
	if r.chain == nil {
		return nil
	}
	c := r.chain
	r.chain = nil
	return c.Stop()
}

// judgeBare holds the chain against the bare chain.
func (r *runner) judgeBare(workloads []suite.Workload) {
	for _, w := range workloads {
		bare := r.document.Find(calibrator.System, w)
		if bare == nil {
			continue
		}
		ratio, spread := r.document.Find(system, w).Ratio(bare, suite.IOPS)
		basis := fmt.Sprintf("median of %d neighbouring pairs of runs, ± %.0f %%", len(bare.Runs), spread*50)
		r.document.Goals = append(r.document.Goals, suite.NewGoal("IOPS beside the bare chain, "+w.String(), basis, ratio, "", 1, false))
	}
}

// write writes the document in all its forms.
func (r *runner) write() error {
	d := r.document
	err := errors.Join(
		r.writeFile("result.json", func(w io.Writer) error { return report.WriteJSON(w, d) }),
		r.writeFile("result.md", d.WriteMarkdown),
		r.writeFile("result.svg", d.WriteSVG),
	)
	for i := range d.Goals {
		fmt.Fprintln(r.log, &d.Goals[i])
	}
	fmt.Fprintf(r.log, "results are in %s\n", r.options.outputDirectory)
	return err
}

func (r *runner) writeFile(name string, form func(io.Writer) error) error {
	file, err := os.Create(filepath.Join(r.options.outputDirectory, name))
	if err != nil {
		return err
	}
	return errors.Join(form(file), file.Close())
}
