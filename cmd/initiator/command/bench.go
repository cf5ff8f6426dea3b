// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/machinecounters"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// benchCommand is "initiator bench".
type benchCommand struct {
	connection *connectionFlags
	flags      benchFlags
	output     benchOutput
	sweep      sweepFlags
	status     *program.StatusLine
}

func newBenchCommand(connection *connectionFlags) *cobra.Command {
	b := &benchCommand{connection: connection}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the volume",
		Long: `bench keeps a number of requests outstanding on each queue. It measures their rate
and their latency from submission to completion. SIGINT ends it early and prints
what was measured so far.

The flags of the DOCA storage applications work as well: --operation
(for --rw), --buffer-size (--block-size), --per-cpu-buffer-count,
--transaction-count and --task-count (--queue-depth), --execution-strategy,
--blocks-per-io, --batch-size, --local-io-region-size. So do names of fio's options:
--bs, --iodepth, --numjobs, --size, --ramp-time, --rwmixread, and others. So does the
command line of the DOCA applications as it is, without "bench". As there,
--run-limit-operation-count counts the operations of each queue if there is an
--execution-strategy, and those of all queues otherwise.

With --protocol, bench takes the place of the application's initiator in front of its
relay, over --comch-provider doca, or emulated for a relay on the emulated libdoca.
Such a relay serves one session, and reports every IO as successful. In doca-2.10 and
doca-3.0, each request that can be outstanding transfers the same block again and
again: no pattern is random, and there is no --offset or --length.

With --sweep, bench measures each combination of block sizes, queue depths, and
numbers of queues in turn, and prints a table or one document:

  bench --rw randread --sweep block-size=4KiB,128KiB --sweep queue-depth=1,32,128`,
		Args: func(_ *cobra.Command, operands []string) error {
			if len(operands) > 0 {
				return fmt.Errorf("unexpected operand %q: if it is a file with flags, give it by --job",
					operands[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.flags.add(cmd)
	connection.addProtocol(cmd.Flags())
	connection.addPreempt(cmd.Flags())
	b.output.add(cmd)
	b.sweep.add(cmd)
	addJob(cmd)
	return cmd
}

func (b *benchCommand) run(cmd *cobra.Command) error {
	b.status = program.NewStatusLine(cmd.ErrOrStderr())
	if len(b.sweep.axes) > 0 {
		return b.runSweep(cmd)
	}
	if b.sweep.picture != "" || b.sweep.table != "" {
		return program.Usagef("--picture and --csv are for --sweep")
	}
	r := b.newReport()
	return b.output.end(r, b.complete(cmd.Context(), r))
}

// newReport returns the report of a run that has not begun.
func (b *benchCommand) newReport() *bench.Report {
	return &bench.Report{
		Schema: bench.Schema, StartedAt: time.Now().Truncate(time.Second),
		Connection: b.connection.report(), Measurement: bench.CurrentMeasurement(b.flags.rate > 0),
	}
}

// complete runs the benchmark and completes its report, with the error it returns.
func (b *benchCommand) complete(ctx context.Context, r *bench.Report) error {
	err := inPhase(phasePrepare, b.output.begin(r))
	if err == nil {
		err = b.fill(ctx, r)
	}
	r.Environment = report.CurrentEnvironment()
	r.Error = failureOf(err)
	return err
}

// fill runs the benchmark and fills the report.
func (b *benchCommand) fill(ctx context.Context, r *bench.Report) error {
	p, err := b.flags.parameters(b.connection.controlTimeout)
	if p.Interval = b.output.interval; err == nil {
		err = b.applyProtocol(&p)
	}
	if err == nil {
		err = program.Usage(p.Check())
	}
	policy, policyError := b.flags.reconnect.policy()
	p.Reconnect = document.ReconnectPolicyOf(policy)
	err = errors.Join(err, policyError)
	r.Parameters, r.Result = p, bench.NoResult()
	if err != nil {
		return inPhase(phasePrepare, err)
	}
	plain, err := openPlainContent(p.PlainContent)
	if err != nil {
		return inPhase(phasePrepare, err)
	}
	defer plain.close()
	if b.output.dryRun {
		return inPhase(phasePrepare, b.flags.limitDepth(&r.Parameters))
	}
	histograms, finishHistograms, err := b.output.openHistograms()
	if err != nil {
		return inPhase(phasePrepare, err)
	}
	config := bench.Config{PlainContent: plain.reader(), Reconnect: policy != nil,
		ObserveInterval: b.output.intervals(), Histograms: histograms}
	return finishHistograms(b.measure(ctx, r, &config, policy))
}

// applyProtocol sets what the relay's protocol determines, and checks what it does not have: before
// the relay is asked, because a relay of the applications ends after its first session.
func (b *benchCommand) applyProtocol(p *bench.Parameters) error {
	version, err := b.connection.version()
	if err != nil || version == dialects.None {
		return err
	}
	p.InPlace = version < dialects.DOCA3_1
	flags := &b.flags
	for _, c := range []struct {
		isAsked bool
		advice  string
	}{
		{p.Sessions > 1 || len(b.sweep.axes) > 0,
			"such a relay serves a single session: omit --sessions and --sweep"},
		{flags.blocksPerIO > 0, "such a relay serves a single session, so none can ask for the " +
			"length of a block before: use --block-size instead of --blocks-per-io"},
		{flags.reconnect.enabled, "such a relay cannot resume a session: omit --reconnect"},
		{flags.trace.path != "", "such a relay cannot be traced: omit --trace"},
		{b.connection.preempt != "", "such a relay knows no holders: omit --preempt"},
		{p.Pattern.Writes() && !flags.guard.overwrite, "nothing keeps other clients out of the " +
			"volume, and this command cannot look at it first: add --overwrite"},
		{p.InPlace && p.Pattern.Random(),
			"each request has its block, so none is random: use --rw read or write"},
		{p.InPlace && (flags.set.Changed("offset") || flags.set.Changed("length")), "the requests " +
			"that can be outstanding determine the range: omit --offset and --length"},
	} {
		if c.isAsked {
			return program.Usagef("--protocol %s: %s", version, c.advice)
		}
	}
	return nil
}

// measure opens the volume and runs the benchmark with config, which it completes.
func (b *benchCommand) measure(ctx context.Context, r *bench.Report, config *bench.Config,
	policy *retry.Policy) error {
	p := r.Parameters
	if err := b.fitVolume(ctx, &p); err != nil {
		return err
	}
	r.Parameters = p
	var err error
	protection := noProtection
	if p.Pattern.Writes() {
		if protection, err = b.flags.guard.begin(ctx, b.connection); err != nil {
			return inPhase(phaseConnect, err)
		}
	}
	volumes, err := b.openSessions(ctx, &p, policy, protection)
	err = errors.Join(err, protection.end(ctx))
	if err == nil {
		info := volumes[0].Info()
		r.Volume = document.VolumeOf(&info)
		err = inPhase(phaseRun, r.Parameters.Resolve(&info))
	}
	if err == nil {
		err = b.output.start(r)
	}
	if err == nil {
		config.Parameters, config.Observe = r.Parameters, b.observer(&r.Parameters)
		for _, v := range volumes {
			config.Sessions = append(config.Sessions, bench.Session{Queues: queuesOf[bench.Queue](v,
				p.Queues), Memory: v.Memory()})
		}
		counting := machinecounters.Start(rdmadevice.SystemRoot)
		r.Result, err = bench.Run(ctx, *config)
		r.Counters = new(counting.End())
		err = inPhase(phaseRun, err)
		b.status.Clear()
		for _, v := range volumes {
			r.Result.Reconnections.Add(v.Reconnections())
		}
	}
	for _, v := range volumes {
		err = closeVolume(ctx, v, err)
	}
	if traceError := b.flags.trace.end(); err == nil {
		err = traceError
	}
	return err
}

// fitVolume sets the parameters that depend on the volume's block size and on the request length.
func (b *benchCommand) fitVolume(ctx context.Context, p *bench.Parameters) error {
	if blocks := uint64(b.flags.blocksPerIO); blocks > 0 {
		v, err := b.connection.openVolume(ctx, client.Config{SyncDepth: 1})
		if err != nil {
			return inPhase(phaseConnect, err)
		}
		blockSize := uint64(v.Info().BlockSize)
		if err := closeVolume(ctx, v, nil); err != nil {
			return err
		}
		p.BlockSize, err = requestLength("blocks-per-io", size.Bytes(blocks*blockSize))
		if err != nil {
			return inPhase(phasePrepare, err)
		}
	}
	return inPhase(phasePrepare, b.flags.limitDepth(p))
}

// openSessions opens the volume once for each session. Even with an error, the volumes it returns
// are open.
func (b *benchCommand) openSessions(ctx context.Context, p *bench.Parameters,
	reconnect *retry.Policy, protection *protection) ([]volume, error) {
	var volumes []volume
	config := protection.apply(client.Config{
		Queues: p.Queues, Depth: p.QueueDepth, BufferSize: p.BlockSize, SyncDepth: -1,
		Reconnect: reconnect,
	})
	if err := b.flags.trace.start(&config); err != nil {
		return nil, inPhase(phasePrepare, err)
	}
	for range p.Sessions {
		v, err := b.connection.openVolume(ctx, config)
		if err != nil {
			return volumes, inPhase(phaseConnect, err)
		}
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// observer returns a function that shows the progress of a run on a terminal: the rate since the
// last call, not the average.
func (b *benchCommand) observer(p *bench.Parameters) func(bench.Progress) {
	if !b.status.Active() || b.output.interval > 0 {
		return nil
	}
	last, lastAt := bench.Progress{WarmingUp: true}, time.Now()
	begun := lastAt
	return func(now bench.Progress) {
		if last.WarmingUp && !now.WarmingUp {
			last = bench.Progress{}
		}
		at := time.Now()
		rate := float64(now.Operations-min(last.Operations,
			now.Operations)) / at.Sub(lastAt).Seconds()
		stage := ""
		if now.WarmingUp {
			stage = " (warm-up)"
		}
		b.status.Show("%s %s%s: %.0f IOPS, %s, %d errors", at.Sub(begun).Truncate(time.Second),
			p.Pattern, stage,
			rate, size.FormatThroughput(rate*float64(p.BlockSize)), now.Errors)
		last, lastAt = now, at
	}
}

// plainContent is the file to compare a volume's content with, if any.
type plainContent struct{ file *os.File }

func openPlainContent(path string) (plainContent, error) {
	if path == "" {
		return plainContent{}, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return plainContent{}, program.Usage(fmt.Errorf("--storage-plain-content: %w", err))
	}
	return plainContent{file}, err
}

// reader returns the file, nil if there is none.
func (p plainContent) reader() io.ReaderAt {
	if p.file == nil {
		return nil
	}
	return p.file
}

func (p plainContent) close() {
	if p.file != nil {
		_ = p.file.Close() // only read
	}
}

// The defaults of a run.
const (
	defaultRuntime     = 10 * time.Second
	defaultWarmup      = time.Second
	defaultBlockSize   = 4 * size.KiB
	defaultReadPercent = 70

	// defaultStrategyLimit is the number of operations of each queue with an execution strategy.
	defaultStrategyLimit = 1_000_000
)

// benchFlags holds the flags of "initiator bench".
type benchFlags struct {
	rangeFlags
	sessions       int
	pattern        benchsuite.Pattern
	strategy       strategy
	readPercent    int
	blockSize      size.Bytes
	blocksPerIO    uint32 // 0 for blockSize
	batchSize      int
	localRegion    size.Bytes
	runtime        time.Duration
	operationLimit uint64
	warmup         time.Duration
	validateWrites bool
	plainContent   string
	rate           uint64
}

// aliases maps flags of the DOCA storage applications to flags of this program.
var aliases = map[string]string{
	"operation":            "rw",
	"buffer-size":          "block-size",
	"per-cpu-buffer-count": "queue-depth",
	"transaction-count":    "queue-depth",
	"task-count":           "queue-depth",
}

func (b *benchFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SetNormalizeFunc(renaming(aliases, fioNames))
	explainFio(cmd, fioExplanations)
	b.rangeFlags.add(cmd, "seed of offsets and data (default: random, shown in the result)")
	b.blockSize = defaultBlockSize
	f.Var(&b.pattern, "rw", "access pattern")
	f.Var(&b.strategy, "execution-strategy",
		"access pattern and validation, as a `strategy` of the DOCA storage applications: "+
			strategyNames(", "))
	f.IntVar(&b.readPercent, "rwmix", defaultReadPercent, "percentage of reads in randrw")
	f.Var(&b.blockSize, "block-size", "length of each request; 4k is 4KiB")
	f.Uint32Var(&b.blocksPerIO, "blocks-per-io", 0,
		"length of each request in blocks of the volume (default 1 with --execution-strategy)")
	f.IntVar(&b.batchSize, "batch-size", 0,
		"flush a queue after this many requests (default: as many as it has room for)")
	f.Var(&b.localRegion, "local-io-region-size",
		"most memory for data, which limits the queue depth; 0 is no limit")
	f.IntVar(&b.sessions, "sessions", 1,
		"concurrent sessions, each with these queues; a thread serves one queue of every session")
	f.DurationVar(&b.runtime, "runtime", 0,
		"duration of the measurement (default 10s, unless the number of operations is limited)")
	f.Uint64Var(&b.operationLimit, "run-limit-operation-count", 0,
		"end after this many operations of all queues, or of each queue with --execution-strategy (default there: 1000000)")
	f.Uint64Var(&b.rate, "rate", 0,
		"submit this many requests per second in all, for instance 10k, at fixed times; latencies begin when a request is due, and threads do not sleep (default: as many as the queue depth allows)")
	f.DurationVar(&b.warmup, "warmup", 0,
		"run this long before measuring (default 1s, or 0 if the number of operations is limited)")
	f.BoolVar(&b.validateWrites, "validate-writes", false,
		"read back and compare everything written")
	f.StringVar(&b.plainContent, "storage-plain-content", "",
		"file with the content of the whole volume, to compare reads with and to write")
	for name, allowed := range map[string]program.Range{
		"rwmix":                     {Least: 0, Most: 100, Example: "70"},
		"blocks-per-io":             {Least: 1, Most: math.MaxUint32, Example: "1 or 8"},
		"batch-size":                {Least: 0, Most: math.MaxInt, Example: "16"},
		"sessions":                  {Least: 1, Most: bench.MaxSessions, Example: "4"},
		"rate":                      {Least: 1, Most: bench.MaxRate, Example: "500 or 10k"},
		"run-limit-operation-count": {Least: 0, Most: math.MaxUint64, Example: "500 or 1M"},
	} {
		program.Limit(f, name, allowed)
	}
	argp.Mark(f, "execution-strategy", "blocks-per-io", "local-io-region-size",
		"run-limit-operation-count", "storage-plain-content")
	cmd.MarkFlagsOneRequired("rw", "execution-strategy")
	cmd.MarkFlagsMutuallyExclusive("rw", "execution-strategy")
	cmd.MarkFlagsMutuallyExclusive("block-size", "blocks-per-io")
}

// parameters returns the parameters that the flags ask for, before the volume is known.
// drainTimeout bounds the wait for outstanding requests.
func (b *benchFlags) parameters(drainTimeout time.Duration) (bench.Parameters, error) {
	p := bench.Parameters{
		Pattern: b.pattern, ReadPercent: b.readPercent, QueueDepth: b.queue.depth,
		BatchSize: b.batchSize, Sessions: b.sessions,
		Runtime: b.runtime, OperationLimit: b.operationLimit, Warmup: b.warmup,
		Offset: uint64(b.offset), Seed: b.chooseSeed(), Poll: b.queue.poll,
		Validate: b.validateWrites, PlainContent: b.plainContent,
		CPUs: []int{}, DrainTimeout: drainTimeout, Rate: b.rate,
	}
	if b.strategy != "" {
		b.strategy.apply(&p)
	}
	if p.PlainContent != "" {
		p.Validate = true
	}
	b.applyDefaults(&p)
	var err error
	if p.Length, err = b.rangeLength(); err != nil {
		return p, err
	}
	if p.BlockSize, err = requestLength("block-size", b.blockSize); err != nil {
		return p, err
	}
	if b.set.Changed("rwmix") && p.Pattern != benchsuite.RandomMixed {
		return p, program.Usagef("--rwmix is for --rw randrw: %s is %d %% reads", p.Pattern,
			p.Pattern.ReadPercent(0))
	}
	queues, cpus, err := b.queue.resolve()
	if err != nil {
		return p, err // CPUs stays an empty list, as the document's schema requires
	}
	p.Queues, p.CPUs = queues, cpus
	if err := program.Usage(p.Check()); err != nil {
		return p, err
	}
	return p, b.countPerQueue(&p)
}

// countPerQueue makes the limit of operations that of each queue, if there is a strategy.
func (b *benchFlags) countPerQueue(p *bench.Parameters) error {
	if b.strategy == "" {
		return nil
	}
	queues := uint64(p.Sessions) * uint64(p.Queues)
	if p.OperationLimit > math.MaxUint64/queues {
		return program.Usagef("--run-limit-operation-count %d for each of %d queues is too large",
			p.OperationLimit, queues)
	}
	p.OperationLimit *= queues
	return nil
}

// limitDepth lowers the queue depth until all buffers fit into --local-io-region-size.
func (b *benchFlags) limitDepth(p *bench.Parameters) error {
	if b.localRegion == 0 {
		return nil
	}
	queues := uint64(p.Sessions) * uint64(p.Queues)
	depth := uint64(b.localRegion) / queues / uint64(p.BlockSize)
	if depth == 0 {
		return program.Usagef("--local-io-region-size %v is less than a request of %d bytes for each of %d queues",
			b.localRegion, p.BlockSize, queues)
	}
	p.QueueDepth = int(min(uint64(p.QueueDepth), depth))
	return nil
}

func (b *benchFlags) applyDefaults(p *bench.Parameters) {
	counted := b.set.Changed("run-limit-operation-count")
	if b.strategy != "" {
		if !counted && !b.set.Changed("runtime") {
			p.OperationLimit, counted = defaultStrategyLimit, true
		}
		if b.blocksPerIO == 0 && !b.set.Changed("block-size") {
			b.blocksPerIO = 1
		}
	}
	if !b.set.Changed("runtime") && !counted {
		p.Runtime = defaultRuntime
	}
	if !b.set.Changed("warmup") && !counted {
		p.Warmup = defaultWarmup
	}
}

// strategy is an execution strategy of the DOCA storage applications since version 3.0. It is a
// flag value.
type strategy string

const (
	readThroughput    strategy = "read_throughput_test"
	writeThroughput   strategy = "write_throughput_test"
	readWriteValidity strategy = "read_write_data_validity_test"
	readOnlyValidity  strategy = "read_only_data_validity_test"
)

var strategies = []strategy{readThroughput, writeThroughput, readWriteValidity, readOnlyValidity}

func (s *strategy) String() string { return string(*s) }

func (s *strategy) Set(text string) error {
	for _, known := range strategies {
		if text == string(known) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("execution strategy %q is not one of %s", text, strategyNames(", "))
}

func (s *strategy) Type() string { return strategyNames("|") }

func strategyNames(separator string) string {
	names := make([]string, len(strategies))
	for i, s := range strategies {
		names[i] = string(s)
	}
	return strings.Join(names, separator)
}

// apply sets the strategy's pattern, which is sequential as in the original.
func (s strategy) apply(p *bench.Parameters) {
	p.Pattern = benchsuite.Read
	if s == writeThroughput || s == readWriteValidity {
		p.Pattern = benchsuite.Write
	}
	if s == readWriteValidity || s == readOnlyValidity {
		p.Validate = true
	}
}
