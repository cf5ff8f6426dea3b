// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// chainCommand is "measure chain".
type chainCommand struct {
	options runOptions
	set     *pflag.FlagSet

	series     []string
	patterns   []string
	blockSizes []string
	depths     []int
	queues     []int
	sessions   []int
	polls      []string
	crc        []bool
	volumes    []string
	comch      []string
	isolations []string
	rdma       []string
}

func newChainCommand() *cobra.Command {
	c := &chainCommand{}
	cmd := &cobra.Command{
		Use:   "chain",
		Short: "Measure target, relay and initiator, with a bare chain as the baseline",
		Long: `chain runs target, relay and initiator as processes, and after each workload a bare
chain with the same message sizes. It measures the named series or, if an axis is
given, all combinations of the axes. It writes result.json, result.md and result.svg
to a directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	c.set = f
	c.options.add(f)
	f.BoolVar(&c.options.bare, "bare", true, "also run the bare chain")
	f.StringSliceVar(&c.series, "series", seriesOrder, "series to measure")
	f.StringSliceVar(&c.patterns, "rw", []string{string(benchsuite.RandomRead)},
		"axis: patterns of initiator bench")
	f.StringSliceVar(&c.blockSizes, "block-size", []string{"4KiB"}, "axis: block sizes")
	f.IntSliceVar(&c.depths, "queue-depth", []int{32}, "axis: depths of each queue")
	f.IntSliceVar(&c.queues, "queues", []int{1}, "axis: numbers of queues")
	f.IntSliceVar(&c.sessions, "sessions", []int{1}, "axis: numbers of sessions")
	f.StringArrayVar(&c.volumes, "volume", []string{memoryVolume},
		"axis: kind of volume: memory, file, or file,direct; repeatable")
	f.StringSliceVar(&c.polls, "poll", []string{adaptive}, "axis: polling modes")
	f.StringSliceVar(&c.comch, "comch", []string{emulatedComch},
		"axis: Comch providers: emulated or doca; doca needs programs built by make build-emulation")
	f.StringSliceVar(&c.isolations, "isolation", []string{directIsolation},
		"axis: isolation of the channel: direct or staged")
	f.StringSliceVar(&c.rdma, "rdma", []string{overTCP},
		"axis: RDMA providers between relay and target: iwarp, iwarp+tls, or shm")
	f.BoolSliceVar(&c.crc, "crc", []bool{false}, "axis: protection of connections by CRC32C")
	return cmd
}

func (c *chainCommand) run(cmd *cobra.Command) error {
	workloads, err := c.workloads()
	if err != nil {
		return err
	}
	idle := !c.usesAxes() && slices.Contains(c.series, idleSeries)
	return c.options.run(cmd.Context(), cmd.ErrOrStderr(),
		func(r *runner) error { return r.measure(workloads, idle) })
}

// axisFlags lists the flags that replace the series.
var axisFlags = []string{"rw", "block-size", "queue-depth", "queues", "sessions", "volume", "poll",
	"crc", "comch", "isolation", "rdma"}

func (c *chainCommand) usesAxes() bool { return slices.ContainsFunc(axisFlags, c.set.Changed) }

func (c *chainCommand) workloads() ([]benchsuite.Workload, error) {
	if !c.usesAxes() {
		return workloadsOf(c.series)
	}
	a, err := c.axes()
	return a.workloads(), err
}

func (c *chainCommand) axes() (axes, error) {
	a := baseAxes()
	a.depths, a.queues, a.sessions, a.polls, a.crc, a.volumes = c.depths, c.queues, c.sessions,
		c.polls, c.crc, c.volumes
	a.patterns, a.blockSizes, a.comch, a.isolations, a.rdma = nil, nil, nil, nil, nil
	for _, text := range c.patterns {
		var pattern benchsuite.Pattern
		if err := pattern.Set(text); err != nil {
			return a, fmt.Errorf("--rw: %w", err)
		}
		a.patterns = append(a.patterns, pattern)
	}
	for _, text := range c.blockSizes {
		blockSize, err := size.Parse(strings.TrimSpace(text))
		if err != nil {
			return a, fmt.Errorf("--block-size: %w", err)
		}
		if blockSize == 0 || blockSize > maxBlockSize {
			return a, fmt.Errorf("--block-size %v is not between 1 and %v", blockSize, maxBlockSize)
		}
		a.blockSizes = append(a.blockSizes, blockSize)
	}
	for _, volume := range c.volumes {
		if !slices.Contains([]string{memoryVolume, fileVolume, directVolume}, volume) {
			return a, fmt.Errorf("--volume %q is not one of %s, %s and %s", volume, memoryVolume,
				fileVolume, directVolume)
		}
	}
	for _, provider := range c.comch {
		switch provider {
		case emulatedComch:
			a.comch = append(a.comch, "")
		case "doca":
			a.comch = append(a.comch, provider)
		default:
			return a, fmt.Errorf("--comch %q is neither %s nor doca", provider, emulatedComch)
		}
	}
	for _, isolation := range c.isolations {
		switch isolation {
		case directIsolation:
			a.isolations = append(a.isolations, "")
		case "staged":
			a.isolations = append(a.isolations, isolation)
		default:
			return a, fmt.Errorf("--isolation %q is neither %s nor staged", isolation,
				directIsolation)
		}
	}
	for _, provider := range c.rdma {
		switch provider {
		case overTCP:
			a.rdma = append(a.rdma, "")
		case overTLS, sharedMemory:
			a.rdma = append(a.rdma, provider)
		default:
			return a, fmt.Errorf("--rdma %q is none of %s, %s, and %s", provider, overTCP, overTLS,
				sharedMemory)
		}
	}
	for _, poll := range c.polls {
		if _, err := progress.ParseMode(poll); err != nil {
			return a, fmt.Errorf("--poll: %w", err)
		}
	}
	return a, nil
}

// The defaults of axes.
const (
	overTCP         = "iwarp"
	overTLS         = "iwarp+tls"
	emulatedComch   = "emulated"
	directIsolation = "direct"
)

// maxBlockSize keeps all outstanding requests within the volume.
const maxBlockSize = size.MiB

// runOptions holds the flags of all commands.
type runOptions struct {
	programs        string
	outputDirectory string
	runtime         time.Duration
	warmup          time.Duration
	repetitions     int
	volumeSize      size.Bytes
	fileDirectory   string
	bare            bool
}

func (o *runOptions) add(f *pflag.FlagSet) {
	o.volumeSize = 256 * size.MiB
	f.StringVar(&o.programs, "programs", "bin", "directory of target, zc-relay and initiator")
	f.StringVar(&o.outputDirectory, "output-directory", "bench-results",
		"where to write the results")
	f.DurationVar(&o.runtime, "runtime", 2*time.Second, "duration of each run")
	f.DurationVar(&o.warmup, "warmup", 500*time.Millisecond, "unmeasured time before each run")
	f.IntVar(&o.repetitions, "repetitions", 3, "runs of each case")
	f.Var(&o.volumeSize, "volume-size", "size of the volume")
	f.StringVar(&o.fileDirectory, "file-directory", os.TempDir(),
		"directory for the files of volumes")
}
