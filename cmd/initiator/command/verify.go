// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/verify"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// defaultMaxIOSize is the default length of verify's longest requests.
const defaultMaxIOSize = 64 * size.KiB

// verifyCommand is "initiator verify".
type verifyCommand struct {
	connection *connectionFlags
	status     *program.StatusLine

	rangeFlags
	maxIOSize size.Bytes
	passes    uint32
	runtime   time.Duration
	output    report.Output
}

func newVerifyCommand(connection *connectionFlags) *cobra.Command {
	c := &verifyCommand{connection: connection, maxIOSize: defaultMaxIOSize, output: report.Text}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the volume keeps what is written to it",
		Long: `verify overwrites the volume, or a range of it, with blocks that contain their place
and age. It reads them back in another order and reports lost, stale, torn, misplaced,
poisoned and corrupt blocks, and buffers that are written too late. THE FORMER CONTENT
OF THE RANGE IS DESTROYED.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.SetNormalizeFunc(renaming(fioNamesOfVerify))
	explainFio(cmd, fioExplanations, fioExplanationsOfVerify)
	c.rangeFlags.add(cmd,
		"seed of the order and sizes of requests (default: random, shown in the result)")
	f.Var(&c.maxIOSize, "max-io-size", "maximum length of a request; the minimum is one block")
	f.Uint32Var(&c.passes, "passes", 0,
		"number of times to write and read the range (default 1, unless --runtime is given)")
	program.Limit(f, "passes", program.Range{Most: math.MaxUint32, Example: "3"})
	f.DurationVar(&c.runtime, "runtime", 0, "make passes for this long")
	c.connection.addPreempt(f)
	c.output.AddFlag(f)
	return cmd
}

func (c *verifyCommand) run(cmd *cobra.Command) error {
	c.status = program.NewStatusLine(cmd.ErrOrStderr())
	id := newRunID()
	r := &verify.Report{
		Schema: verify.Schema, StartedAt: time.Now().Truncate(time.Second),
		RunID:      verify.RunName(id),
		Connection: c.connection.report(),
	}
	err := c.fill(cmd.Context(), r, id)
	r.Environment = report.CurrentEnvironment()
	r.Error = failureOf(err)
	return printResult(cmd, c.output, r, r.Volume != nil && !program.IsUsage(err), err)
}

// newRunID draws an id that no other run has.
func newRunID() uint64 {
	var id [8]byte
	_, _ = rand.Read(id[:]) // documented never to fail
	return binary.BigEndian.Uint64(id[:])
}

// fill runs the verification and fills the report.
func (c *verifyCommand) fill(ctx context.Context, r *verify.Report, id uint64) error {
	p, err := c.parameters()
	policy, policyError := c.reconnect.policy()
	p.Reconnect = document.ReconnectPolicyOf(policy)
	err = errors.Join(err, policyError)
	r.Parameters, r.Result = p, verify.NoResult()
	if err != nil {
		return inPhase(phasePrepare, err)
	}
	protection, err := c.guard.begin(ctx, c.connection)
	if err != nil {
		return inPhase(phaseConnect, err)
	}
	config := protection.apply(client.Config{
		Queues: p.Queues, Depth: p.QueueDepth, BufferSize: p.MaxIOSize, SyncDepth: -1,
		Reconnect: policy,
	})
	if err := c.trace.start(&config); err != nil {
		return inPhase(phasePrepare, errors.Join(err, protection.end(ctx)))
	}
	v, err := c.connection.openVolume(ctx, config)
	if end := protection.end(ctx); err == nil && end != nil {
		return closeVolume(ctx, v, end)
	}
	if err != nil {
		return inPhase(phaseConnect, err)
	}
	info := v.Info()
	r.Volume = document.VolumeOf(&info)
	err = r.Parameters.Resolve(&info)
	if err == nil {
		r.Result, err = verify.Run(ctx, verify.Config{
			Parameters: r.Parameters, RunID: id, BlockSize: info.BlockSize,
			Reconnect: policy != nil,
			Queues:    queuesOf[verify.Queue](v, p.Queues), Memory: v.Memory(), Observe: c.observe,
		})
		c.status.Clear()
		r.Result.Reconnections.Add(v.Reconnections())
	}
	err = closeVolume(ctx, v, inPhase(phaseRun, err))
	if traceError := c.trace.end(); err == nil {
		err = traceError
	}
	return err
}

// parameters returns the parameters that the flags ask for, before the volume is known.
func (c *verifyCommand) parameters() (verify.Parameters, error) {
	p := verify.Parameters{
		QueueDepth: c.queue.depth, Passes: c.passes, Runtime: c.runtime,
		Offset: uint64(c.offset), Seed: c.chooseSeed(), Poll: c.queue.poll,
		CPUs: []int{}, DrainTimeout: c.connection.controlTimeout,
	}
	if !c.set.Changed("passes") && !c.set.Changed("runtime") {
		p.Passes = 1
	}
	var err error
	if p.Length, err = c.rangeLength(); err != nil {
		return p, err
	}
	if p.MaxIOSize, err = requestLength("max-io-size", c.maxIOSize); err != nil {
		return p, err
	}
	queues, cpus, err := c.queue.resolve()
	if err != nil {
		return p, err // CPUs stays an empty list
	}
	p.Queues, p.CPUs = queues, cpus
	return p, program.Usage(p.Check())
}

func (c *verifyCommand) observe(now verify.Progress) {
	c.status.Show("%d blocks written, %d checked, %d problems", now.BlocksWritten,
		now.BlocksChecked, now.Problems)
}
