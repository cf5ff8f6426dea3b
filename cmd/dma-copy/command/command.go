// SPDX-License-Identifier: Apache-2.0

// Package command has the commands of dma-copy, without what decides where libdoca comes from.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/dma-copy/internal/dmacopy"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/explain"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Main runs the program. libdoca replaces the DOCA libraries of this machine, unless it is nil.
func Main(libdoca providers.Libdoca) {
	providers.Use(libdoca)
	program.Main(newCommand())
}

// options are the flags.
type options struct {
	side           string
	file           string
	device         string
	representor    string
	compatible     bool
	chunkSize      size.Bytes
	jobs           int
	connectTimeout time.Duration
	timeout        time.Duration
	timeLimit      time.Duration
	comchProvider  string
	dmaProvider    string
	emulatedDir    string
	logging        logging.Options
	output         report.Output
}

func newCommand() *cobra.Command {
	o := options{chunkSize: dmacopy.DefaultChunkSize}
	cmd := &cobra.Command{
		Use:   "dma-copy --file PATH --pci-addr ADDRESS [--rep-pci ADDRESS]",
		Short: "Copy a file between host and DPU by DMA",
		Long: `dma-copy runs on both sides. The side where the file exists sends it, and the
other creates it. If both sides have the file, or neither, both fail. The file
appears under its name only after all of it has arrived, its checksum has been
verified, and it is on disk.

  on the DPU:   dma-copy -p 03:00.0 -r b1:00.0 -f /tmp/file
  on the host:  dma-copy -p b1:00.0 -f /tmp/file

Exit codes: 0 the file was copied; 1 it was not; 2 wrong usage; 3 the other side
did not appear.`,
		Version: buildinfo.Version(),
		Args:    cobra.NoArgs,
		RunE:    o.run,
	}
	cmd.SetVersionTemplate(buildinfo.String("dma-copy") + "\n")
	o.add(cmd.Flags())
	cmd.AddCommand(explain.NewCommand(), program.NewVersionCommand("dma-copy"))
	program.RunsAlone(cmd, "--file names the file to copy")
	argp.Adopt(cmd, cmd, []string{"pci-addr", "dev-pci"})
	return cmd
}

func (o *options) add(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVarP(&o.file, "file", "f", "", "the file to copy, or to create (required)")
	f.StringVarP(&o.device, "pci-addr", "p", "", "PCI address of this side's device (required)")
	f.StringVarP(&o.device, "dev-pci", "d", "", "same as --pci-addr")
	f.StringVarP(&o.representor, "rep-pci", "r", "",
		"PCI address of the host function to serve: for the DPU, which needs it")
	f.StringVar(&o.side, "side", "",
		"which side this is: host or dpu (default: dpu with --rep-pci, and host without)")
	f.BoolVar(&o.compatible, "compat", false,
		"speak the messages of the DOCA DMA Copy application: one piece of at most 1GiB, no checksum, no reasons for failures")
	f.Var(&o.chunkSize, "chunk-size",
		"size of one DMA job; the DPU's value counts, limited by its device")
	f.IntVar(&o.jobs, "jobs", dmacopy.DefaultSlots,
		"chunks in flight at a time; the DPU side's value is used")
	f.DurationVar(&o.connectTimeout, "connect-timeout", dmacopy.DefaultConnectTimeout,
		"how long to wait for the other side to appear")
	f.DurationVar(&o.timeout, "timeout", dmacopy.DefaultTimeout,
		"fail after this long without a message from the other side")
	f.DurationVar(&o.timeLimit, "time-limit", 0,
		"fail if the whole copy takes longer (default: no limit)")
	f.StringVar(&o.comchProvider, "comch-provider", providers.DefaultComch,
		"Comch provider: emulated or doca")
	f.StringVar(&o.dmaProvider, "dma-provider", providers.DefaultDMA,
		"DMA provider: software or doca")
	f.StringVar(&o.emulatedDir, "emulated-dir", "", `directory of the emulated Comch (default "`+
		emulated.DefaultDirectory()+`")`)
	o.logging.AddFlags(f)
	o.output = report.Text
	o.output.AddFlag(f)
}

// check decides on the side, unless --side does, and returns an error for wrong usage.
func (o *options) check(f *pflag.FlagSet) error {
	if o.side == "" {
		o.side = "host"
		if o.representor != "" {
			o.side = "dpu"
		}
	}
	switch {
	case o.side != "host" && o.side != "dpu":
		return fmt.Errorf("--side %q is neither host nor dpu", o.side)
	case o.file == "":
		return errors.New("--file is missing: the file to copy, or to create")
	case o.device == "":
		return errors.New("--pci-addr is missing: the PCI address of this side's device, for instance 03:00.0 on the DPU and b1:00.0 on the host")
	case f.Changed("pci-addr") && f.Changed("dev-pci"):
		return errors.New("--pci-addr and --dev-pci mean the same: give only one of them")
	case o.side == "dpu" && o.representor == "":
		return errors.New("--rep-pci is missing: the DPU needs the PCI address of the host function to serve, for instance b1:00.0")
	case o.side == "host" && o.representor != "":
		return errors.New("--rep-pci is for the DPU only")
	case f.Changed("time-limit") && o.timeLimit <= 0:
		return fmt.Errorf("--time-limit %v is not positive", o.timeLimit)
	}
	return nil
}

// copySchema names the format of copyReport. Fields may be added within a version.
const copySchema = "zc-relay.dma-copy/1"

// copyReport is what dma-copy prints as JSON.
type copyReport struct {
	Schema         string          `json:"schema"`
	File           string          `json:"file"`
	Side           string          `json:"side"`
	Direction      string          `json:"direction,omitempty"`
	Bytes          uint64          `json:"bytes"`
	Checksum       string          `json:"checksum,omitempty"`
	DurationNs     int64           `json:"duration_ns"`
	BytesPerSecond uint64          `json:"bytes_per_second"`
	Error          *report.Failure `json:"error,omitempty"`
}

func (o *options) run(cmd *cobra.Command, _ []string) error {
	if err := o.check(cmd.Flags()); err != nil {
		return program.Usage(err)
	}
	var result dmacopy.Result
	failure := program.Usage(output.Check(o.file)) // now, rather than when the peer is there
	if failure == nil {
		result, failure = o.copy(cmd)
	}
	if o.output != report.JSON {
		return failure
	}
	if err := report.WriteJSON(cmd.OutOrStdout(), o.describe(result, failure)); failure == nil {
		return err
	}
	return failure
}

// describe returns the report of a copy.
func (o *options) describe(result dmacopy.Result, failure error) copyReport {
	r := copyReport{Schema: copySchema, File: o.file, Side: o.side}
	if failure != nil {
		r.Error = program.FailureOf(failure)
		return r
	}
	r.Direction = strings.ReplaceAll(strings.ToLower(result.Direction.String()), " ", "_")
	r.Bytes, r.DurationNs = result.Bytes, int64(result.Duration)
	r.BytesPerSecond = uint64(rateOf(result))
	if !o.compatible {
		r.Checksum = fmt.Sprintf("%08x", result.Checksum)
	}
	return r
}

// rateOf returns the bytes per second of a copy.
func rateOf(r dmacopy.Result) float64 {
	return float64(r.Bytes) / max(r.Duration.Seconds(), 1e-9)
}

// copy copies the file.
func (o *options) copy(cmd *cobra.Command) (dmacopy.Result, error) {
	config, err := o.config()
	if err != nil {
		return dmacopy.Result{}, program.Usage(err)
	}
	ctx := cmd.Context()
	if o.timeLimit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeLimit, status.Errorf(status.TimeOut,
			"the copy took longer than --time-limit %v", o.timeLimit))
		defer cancel()
	}
	bar := newProgressBar(cmd.ErrOrStderr())
	config.Observe = bar.observe
	run := dmacopy.RunHost
	if o.side == "dpu" {
		run = dmacopy.RunDPU
	}
	result, err := run(ctx, config)
	place := providers.Elsewhere(o.comchProvider, o.emulatedDir)
	if o.side == "host" && errors.Is(err, status.NotFound) && place != "" &&
		program.ExitCode(err) == program.ExitConnect {
		err = fmt.Errorf("%w (%s)", err, place)
	}
	bar.end(o.file, result, err)
	return result, err
}

func (o *options) config() (dmacopy.Config, error) {
	logger, _, err := logging.New("dma-copy", o.logging)
	if err != nil {
		return dmacopy.Config{}, err
	}
	if o.side == "dpu" {
		if err := providers.CheckDirectory(o.comchProvider, o.emulatedDir); err != nil {
			return dmacopy.Config{}, fmt.Errorf("--emulated-dir: %w", err)
		}
	}
	comchProvider, err := providers.Comch(o.comchProvider,
		providers.ComchOptions{Directory: o.emulatedDir, ReachImports: o.compatible,
			Peer:   "the DPU's dma-copy",
			Logger: logger})
	if err != nil {
		return dmacopy.Config{}, err
	}
	// Chunks are so large that a wake-up costs nothing by comparison, and a polling thread would
	// take the core away from the goroutines that read and write files.
	policy := progress.Policy{Mode: progress.Event}
	dmaProvider, err := providers.DMA(o.dmaProvider, software.Options{Devices: []string{o.device},
		Policy: policy})
	if err != nil {
		return dmacopy.Config{}, err
	}
	return dmacopy.Config{
		Comch: comchProvider, DMA: dmaProvider, Device: o.device, Representor: o.representor,
		Path:      o.file,
		ChunkSize: uint64(o.chunkSize), Slots: o.jobs, Original: o.compatible,
		ConnectTimeout: o.connectTimeout, Timeout: o.timeout,
		Policy: policy, Logger: logger,
	}, nil
}

// progressBar shows the progress of a copy on standard error, if that is a terminal, and its
// result.
type progressBar struct {
	w   io.Writer
	bar *program.Progress // nil before the first byte
}

func newProgressBar(w io.Writer) *progressBar { return &progressBar{w: w} }

func (p *progressBar) observe(moved, total uint64) {
	if p.bar == nil {
		p.bar = program.NewProgress(p.w, int64(total), 0)
	}
	p.bar.Show(moved)
}

// end prints the result of a successful copy.
func (p *progressBar) end(path string, r dmacopy.Result, err error) {
	if p.bar != nil {
		p.bar.Clear()
	}
	if err != nil {
		return
	}
	fmt.Fprintf(p.w, "%s: %d bytes copied from %v in %s, %s\n", path, r.Bytes, r.Direction,
		size.FormatDuration(r.Duration), size.FormatThroughput(rateOf(r)))
}
