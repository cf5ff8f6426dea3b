package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// What a run does unless told otherwise.
const (
	defaultRuntime     = 10 * time.Second
	defaultWarmup      = time.Second
	defaultBlockSize   = 4 * size.KiB
	defaultReadPercent = 70
)

// benchFlags are the flags of "initiator bench".
type benchFlags struct {
	set            *pflag.FlagSet
	queue          queueFlags
	sessions       int
	pattern        benchsuite.Pattern
	strategy       strategy
	readPercent    int
	blockSize      size.Bytes
	runtime        time.Duration
	operationLimit uint64
	warmup         time.Duration
	offset, length size.Bytes
	seed           uint64
	validateWrites bool
	plainContent   string
	reconnect      reconnectFlags
	output         report.Output
}

// aliases are the words of the DOCA storage applications for flags.
var aliases = map[string]string{
	"operation":            "rw",
	"buffer-size":          "block-size",
	"per-cpu-buffer-count": "queue-depth",
	"transaction-count":    "queue-depth",
	"task-count":           "queue-depth",
}

func canonicalName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if canonical, ok := aliases[name]; ok {
		name = canonical
	}
	return pflag.NormalizedName(name)
}

func (b *benchFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	b.set, b.output, b.blockSize = f, report.Text, defaultBlockSize
	f.SetNormalizeFunc(canonicalName)
	f.Var(&b.pattern, "rw", "what to do; mixed patterns are random")
	f.Var(&b.strategy, "execution-strategy", "what to do, in the words of the DOCA storage applications")
	f.IntVar(&b.readPercent, "rwmix", defaultReadPercent, "share of reads of randrw, in percent")
	f.Var(&b.blockSize, "block-size", "length of each request; 4k is 4KiB")
	b.queue.add(f, client.DefaultDepth)
	f.IntVar(&b.sessions, "sessions", 1, "connections at the same time, each with these queues; a thread serves one queue of every session")
	f.DurationVar(&b.runtime, "runtime", 0, "duration of the measurement (default 10s, unless there is a number of operations)")
	f.Uint64Var(&b.operationLimit, "run-limit-operation-count", 0, "end after so many operations, all queues together")
	f.DurationVar(&b.warmup, "warmup", 0, "run for so long before measuring (default 1s, or nothing if there is a number of operations)")
	f.Var(&b.offset, "offset", "start of the range of the volume to use")
	f.Var(&b.length, "length", "length of the range (default: to the end of the volume)")
	f.Uint64Var(&b.seed, "seed", 0, "seed of offsets and data (default: drawn, and told in the result)")
	f.BoolVar(&b.validateWrites, "validate-writes", false, "read back and compare everything that is written")
	f.StringVar(&b.plainContent, "storage-plain-content", "", "file with the content of the whole volume: compare what is read with it, and write it")
	b.reconnect.add(f)
	f.Var(&b.output, "output", "form of the result")
	cmd.MarkFlagsOneRequired("rw", "execution-strategy")
	cmd.MarkFlagsMutuallyExclusive("rw", "execution-strategy")
	cmd.MarkFlagsMutuallyExclusive("queues", "cpu")
}

// parameters are what the flags ask for, before anything is known of the
// volume. Outstanding requests are waited for up to drainTimeout.
func (b *benchFlags) parameters(drainTimeout time.Duration) (bench.Parameters, error) {
	p := bench.Parameters{
		Pattern: b.pattern, ReadPercent: b.readPercent, QueueDepth: b.queue.depth, Sessions: b.sessions,
		Runtime: b.runtime, OperationLimit: b.operationLimit, Warmup: b.warmup,
		Offset: uint64(b.offset), Length: uint64(b.length), Seed: b.seed, Poll: b.queue.poll,
		Validate: b.validateWrites, PlainContent: b.plainContent,
		CPUs: []int{}, DrainTimeout: drainTimeout,
	}
	if b.strategy != "" {
		b.strategy.apply(&p)
	}
	if p.PlainContent != "" {
		p.Validate = true
	}
	b.applyDefaults(&p)
	var err error
	if p.BlockSize, err = requestLength("block-size", b.blockSize); err != nil {
		return p, err
	}
	queues, cpus, err := b.queue.resolve()
	if err != nil {
		return p, err // CPUs stay a list, which is what the document promises
	}
	p.Queues, p.CPUs = queues, cpus
	return p, program.Usage(p.Check())
}

func (b *benchFlags) applyDefaults(p *bench.Parameters) {
	counted := b.set.Changed("run-limit-operation-count")
	if !b.set.Changed("runtime") && !counted {
		p.Runtime = defaultRuntime
	}
	if !b.set.Changed("warmup") && !counted {
		p.Warmup = defaultWarmup
	}
	if !b.set.Changed("seed") {
		p.Seed = drawSeed()
	}
}
