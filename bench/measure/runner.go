// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/bench/internal/chain"
	"github.com/zc-relay/zc-relay/bench/internal/fio"
	"github.com/zc-relay/zc-relay/bench/internal/render"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// system is the name of the chain in reports.
const system = "zc-relay"

// runner measures workloads and collects the results.
type runner struct {
	options    *runOptions
	ctx        context.Context
	log        io.Writer // progress, for people
	bare       *chain.Bare
	document   *benchsuite.Document
	configured chain.Config // of the chain that runs
	chain      *chain.Chain // nil if none does
	verified   map[chain.Config]bool
	scratch    string // directory of built programs
	files      string // directory of volumes in files
	idle       []idleSample
}

// run prepares a runner, lets body measure, and writes the results, even if body fails.
func (o *runOptions) run(ctx context.Context, log io.Writer, body func(*runner) error) error {
	if o.repetitions < 1 || o.runtime <= 0 || o.warmup < 0 {
		return fmt.Errorf("%d repetitions of %v after %v of warm-up cannot be measured",
			o.repetitions, o.runtime, o.warmup)
	}
	if err := os.MkdirAll(o.outputDirectory, 0o777); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "zc-relay-measure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	files, err := os.MkdirTemp(o.fileDirectory, "zc-relay-measure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	r := &runner{
		options: o, ctx: ctx, log: log, verified: map[chain.Config]bool{}, scratch: scratch,
		files: files,
		document: benchsuite.NewDocument(time.Now(), benchsuite.Method{Runtime: o.runtime,
			Warmup: o.warmup, Repetitions: o.repetitions}),
	}
	if o.bare {
		if r.bare, err = chain.FindBare(); err != nil {
			return err
		}
	}
	err = errors.Join(body(r), r.stop())
	if err != nil {
		r.document.Error = report.FailureOf("run", err, sentence(err))
	}
	return errors.Join(err, r.write())
}

// measure runs all workloads repeatedly, each alternating with its baseline, and verifies every
// configuration of the chain once.
func (r *runner) measure(workloads []benchsuite.Workload, idle bool) error {
	workloads = inRounds(workloads)
	for repetition := range r.options.repetitions {
		for i, w := range workloads {
			fmt.Fprintf(r.log, "%d/%d %3d/%d %s", repetition+1, r.options.repetitions, i+1,
				len(workloads), w)
			if err := r.measureOne(w); err != nil {
				fmt.Fprintln(r.log)
				return fmt.Errorf("%s: %w", w, err)
			}
		}
		if idle {
			if err := r.measureIdle(); err != nil {
				return fmt.Errorf("idle: %w", err)
			}
		}
		if err := r.stop(); err != nil { // every repetition uses fresh processes
			return err
		}
	}
	r.judge()
	return nil
}

func (r *runner) measureOne(w benchsuite.Workload) error {
	if err := r.start(w); err != nil {
		return err
	}
	stop := func() error { return nil }
	if w.Condition == besideLarge {
		var err error
		if stop, err = r.chain.Load(largeWorkload()); err != nil {
			return err
		}
	}
	run, err := r.chain.Bench(r.ctx, w, r.options.warmup, r.options.runtime)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	r.document.Add(system, w, run)
	fmt.Fprintf(r.log, ": %.0f IOPS", run.IOPS)
	reference, name, err := r.measureReference(w)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if name != "" {
		r.document.Add(name, w, reference)
		fmt.Fprintf(r.log, ", %s %.0f, ratio %.2f", name, reference.IOPS, run.IOPS/reference.IOPS)
	}
	fmt.Fprintln(r.log)
	return nil
}

// largeWorkload returns the background load of besideLarge.
func largeWorkload() benchsuite.Workload {
	return baseAxes().with(sizes(128*size.KiB), depths(8)).workloads()[0]
}

// fioSystem is the name of fio on the volume's file in reports.
const fioSystem = "fio io_uring"

// measureReference runs the baseline of a workload; name is "" if there is none.
func (r *runner) measureReference(
	w benchsuite.Workload,
) (run benchsuite.Run, name string, err error) {
	switch {
	case r.bareKnows(w):
		run, err = r.bare.Measure(r.ctx, w, r.options.runtime)
		return run, chain.BareSystem, err
	case w.Volume == directVolume && w.Queues == 1 && w.Sessions == 1:
		if _, err := exec.LookPath("fio"); err != nil {
			r.skip(fioSystem, "fio is not installed: apt-get install fio")
			return run, "", nil
		}
		job := fio.Job{
			Engine: "io_uring", Arguments: []string{"--direct=1", "--filename=" + r.volumeFile()},
			Size: r.options.volumeSize, Warmup: r.options.warmup, Runtime: r.options.runtime,
		}
		run, err = job.Measure(r.ctx, w)
		return run, fioSystem, err
	}
	return run, "", nil
}

// skip reports, once, that something is not measured.
func (r *runner) skip(name, reason string) {
	s := benchsuite.Skipped{Name: name, Reason: reason}
	if !slices.Contains(r.document.Skipped, s) {
		r.document.Skipped = append(r.document.Skipped, s)
		fmt.Fprintf(r.log, "\nskipped %s: %s\n", name, reason)
	}
}

// bareKnows reports whether the bare chain can run the workload.
func (r *runner) bareKnows(w benchsuite.Workload) bool {
	return r.bare != nil && w.Poll == adaptive && !w.CRC && w.Queues == 1 &&
		(w.Sessions == 1 || w.RDMA == "") && w.Volume == memoryVolume && w.Comch == "" &&
		w.Isolation == "" && w.Condition == "" && w.RDMA != overTLS
}

// volumeFile returns the path of a volume in a file.
func (r *runner) volumeFile() string { return filepath.Join(r.files, "volume") }

// config returns the chain configuration for a workload.
func (r *runner) config(w benchsuite.Workload) chain.Config {
	c := chain.Config{Programs: r.options.programs, Poll: w.Poll, CRC: w.CRC,
		Comch: w.Comch, Isolation: w.Isolation, RDMA: w.RDMA}
	if w.Condition == withCollections {
		c.CollectInterval = collectInterval
	}
	kind, option, _ := strings.Cut(w.Volume, ",")
	switch kind {
	case fileVolume:
		c.Volume = fmt.Sprintf("file:%s,size=%v", r.volumeFile(), r.options.volumeSize)
		if option != "" {
			c.Volume += "," + option
		}
	default:
		c.Volume = "memory:" + r.options.volumeSize.String()
	}
	return c
}

// collectInterval is the interval of forced garbage collections.
const collectInterval = 100 * time.Millisecond

// start makes sure that a chain for the workload is running.
func (r *runner) start(w benchsuite.Workload) (err error) {
	config := r.config(w)
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

// verifyLength is the number of bytes of a volume to verify.
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
	err := c.Stop()
	if removeErr := os.Remove(r.volumeFile()); !errors.Is(removeErr, os.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// write writes the document in all formats.
func (r *runner) write() error {
	d := r.document
	err := errors.Join(
		r.writeFile("result.json", func(w io.Writer) error { return report.WriteJSON(w, d) }),
		r.writeFile("result.md", func(w io.Writer) error { return render.WriteMarkdown(w, d) }),
		r.writeFile("result.svg", func(w io.Writer) error { return render.WriteSVG(w, d) }),
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
