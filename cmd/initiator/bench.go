package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// benchCommand is "initiator bench".
type benchCommand struct {
	connection *connectionFlags
	flags      benchFlags
	status     *program.StatusLine
}

func newBenchCommand(connection *connectionFlags) *cobra.Command {
	b := &benchCommand{connection: connection}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the volume",
		Long: `bench keeps a number of requests outstanding on each queue and measures how many
are completed and how long each takes, from submit to completion. SIGINT ends it
early and prints what was measured.

The words of the DOCA storage applications are understood as well: --operation
(for --rw), --buffer-size (--block-size), --per-cpu-buffer-count,
--transaction-count and --task-count (--queue-depth), --execution-strategy.
Unlike there, --run-limit-operation-count is the number of all queues together.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.flags.add(cmd)
	return cmd
}

func (b *benchCommand) run(cmd *cobra.Command) error {
	b.status = program.NewStatusLine(cmd.ErrOrStderr())
	r := &bench.Report{
		Schema: bench.Schema, StartedAt: time.Now().Truncate(time.Second),
		Connection: b.connection.report(), Measurement: bench.CurrentMeasurement(),
	}
	err := b.fill(cmd.Context(), r)
	r.Environment = report.CurrentEnvironment()
	r.Error = failureOf(err)
	return printed(cmd, b.flags.output, r, r.Volume != nil, err)
}

// fill measures, and puts everything there is to tell into the report.
func (b *benchCommand) fill(ctx context.Context, r *bench.Report) error {
	p, err := b.flags.parameters(b.connection.controlTimeout)
	policy, policyError := b.flags.reconnect.policy()
	p.Reconnect = document.ReconnectPolicyOf(policy)
	err = errors.Join(err, policyError)
	r.Parameters, r.Result = p, bench.NoResult()
	if err != nil {
		return during(phasePrepare, err)
	}
	plain, err := openPlainContent(p.PlainContent)
	if err != nil {
		return during(phasePrepare, err)
	}
	defer plain.close()
	volumes, err := b.openSessions(ctx, &p, policy)
	if err == nil {
		info := volumes[0].Info()
		r.Volume = document.VolumeOf(&info)
		err = during(phaseRun, r.Parameters.Resolve(&info))
	}
	if err == nil {
		config := bench.Config{Parameters: r.Parameters, PlainContent: plain.reader(), Reconnect: policy != nil, Observe: b.observer(&r.Parameters)}
		for _, v := range volumes {
			config.Sessions = append(config.Sessions, bench.Session{Queues: queuesOf[bench.Queue](v, p.Queues), Memory: v.Memory()})
		}
		r.Result, err = bench.Run(ctx, config)
		err = during(phaseRun, err)
		b.status.Clear()
		for _, v := range volumes {
			r.Result.Reconnections.Add(v.Reconnections())
		}
	}
	for _, v := range volumes {
		err = closeVolume(ctx, v, err)
	}
	return err
}

// openSessions opens the volume once for each session. Those that it returns
// are open, also if it fails.
func (b *benchCommand) openSessions(ctx context.Context, p *bench.Parameters, reconnect *retry.Policy) ([]volume, error) {
	var volumes []volume
	for range p.Sessions {
		v, err := b.connection.openVolume(ctx, client.Config{
			Queues: p.Queues, Depth: p.QueueDepth, BufferSize: p.BlockSize, SyncDepth: -1, Reconnect: reconnect,
		})
		if err != nil {
			return volumes, during(phaseConnect, err)
		}
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// observer shows the progress of a run on a terminal: what was done since the
// last time, not in all.
func (b *benchCommand) observer(p *bench.Parameters) func(bench.Progress) {
	if !b.status.Active() {
		return nil
	}
	last, lastAt := bench.Progress{WarmingUp: true}, time.Now()
	begun := lastAt
	return func(now bench.Progress) {
		if last.WarmingUp && !now.WarmingUp {
			last = bench.Progress{}
		}
		at := time.Now()
		rate := float64(now.Operations-min(last.Operations, now.Operations)) / at.Sub(lastAt).Seconds()
		stage := ""
		if now.WarmingUp {
			stage = " (warm-up)"
		}
		b.status.Show("%s %s%s: %.0f IOPS, %s, %d errors", at.Sub(begun).Truncate(time.Second), p.Pattern, stage,
			rate, size.FormatThroughput(rate*float64(p.BlockSize)), now.Errors)
		last, lastAt = now, at
	}
}

// plainContent is the file that a volume's content is compared with, if there
// is one.
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

// reader is nil if there is no file.
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
