// SPDX-License-Identifier: Apache-2.0

// Package verify checks whether a volume keeps what is written to it. It writes blocks that contain
// their place and age, reads them back in another order, with many requests outstanding on several
// queues, and classifies every wrong block as lost, stale, torn, misplaced, poisoned or corrupt.
// Free buffers hold poison, which shows whether the transport still uses them.
package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Config describes a run.
type Config struct {
	// Parameters have been resolved against the volume.
	Parameters Parameters
	// RunID is in every block that the run writes, so that it does not take blocks of other runs
	// for its own. It must be new for each run.
	RunID uint64
	// BlockSize is the volume's block size in bytes.
	BlockSize uint32
	// Queues holds Parameters.Queues queues, each at least Parameters.QueueDepth deep. They belong
	// to the run until it ends.
	Queues []Queue
	// Memory is the data memory that the queues' requests refer to:
	// Parameters.MaxIOSize bytes for each request that can be outstanding.
	Memory []byte
	// Reconnect makes the run repeat requests whose outcome the loss of a session left open. It
	// also accepts the loss of blocks that were not flushed when the target restarted, if a flush
	// reports it.
	Reconnect bool
	// Observe is called once a second with the progress of the run; may be nil.
	Observe func(Progress)
}

// Progress is the progress of a run. Problems counts failed requests and wrong blocks.
type Progress struct {
	BlocksWritten uint64
	BlocksChecked uint64
	Problems      uint64
}

// Run verifies until it is done, fails, or ctx is cancelled, which is a failure. Even with an
// error, the result is valid: it holds what was found before. A failed request or a wrong block
// does not end the run, but makes it fail when it has ended.
func Run(ctx context.Context, config Config) (Result, error) {
	p := &config.Parameters
	if err := config.check(); err != nil {
		return NoResult(), err
	}
	mode, err := progress.ParseMode(p.Poll)
	if err != nil {
		return NoResult(), err
	}
	run := supervisor.New(running, p.Runtime, p.DrainTimeout)
	workers := config.newWorkers(run)
	for i, w := range workers {
		if err := run.Threads().Go(p.cpu(i), progress.Policy{Mode: mode}, w.body); err != nil {
			w.fail(err)
			break
		}
	}
	threadError := run.Wait(ctx, func() { config.observe(workers) })
	result := resultOf(&config, run, workers)
	return result, failureOf(ctx, &result, workers, threadError)
}

func (c *Config) check() error {
	p := &c.Parameters
	if len(c.Queues) != p.Queues {
		return status.Errorf(status.InvalidValue,
			"the run needs %[2]d queues, but %[1]d were opened", len(c.Queues), p.Queues)
	}
	needed := uint64(p.Queues) * uint64(p.QueueDepth) * uint64(p.MaxIOSize)
	if uint64(len(c.Memory)) < needed {
		return status.Errorf(status.InvalidValue,
			"the run needs %[2]d bytes of data memory, but there are %[1]d", len(c.Memory), needed)
	}
	return nil
}

func (c *Config) newWorkers(run *supervisor.Supervisor) []*worker {
	p := &c.Parameters
	size := uint64(p.QueueDepth) * uint64(p.MaxIOSize)
	workers := make([]*worker, p.Queues)
	poison := newPoison(uint64(p.MaxIOSize))
	flushes := new(atomic.Uint64)
	for i := range workers {
		start, blocks := p.slice(i, c.BlockSize)
		memory := uint64(i) * size
		w := &worker{
			index: i, queue: c.Queues[i], run: run,
			planner: newPlanner(blocks, uint64(p.MaxIOSize/c.BlockSize), p.Passes,
				rand.NewPCG(p.Seed, uint64(i))),
			runID: c.RunID, start: start, blockSize: uint64(c.BlockSize),
			buffers: c.Memory[memory:][:size], memory: memory, slotSize: uint64(p.MaxIOSize),
			slots:  make([]operation, p.QueueDepth),
			poison: poison, kept: make([]bool, p.QueueDepth),
			free:    make([]uint32, p.QueueDepth),
			ready:   make([]uint32, 0, p.QueueDepth),
			request: client.Request{},
		}
		for j := range w.free {
			w.free[j] = uint32(p.QueueDepth - 1 - j)
		}
		if c.Reconnect {
			w.losses = newLosses(blocks, w.queue.WriteVerifier(), flushes)
		}
		workers[i] = w
	}
	return workers
}

func (c *Config) observe(workers []*worker) {
	if c.Observe == nil {
		return
	}
	var now Progress
	for _, w := range workers {
		now.BlocksWritten += w.tally.publishedWritten.Load()
		now.BlocksChecked += w.tally.publishedChecked.Load()
		now.Problems += w.tally.publishedProblems.Load()
	}
	c.Observe(now)
}

// failureOf returns the reason why a run failed, nil if it succeeded.
func failureOf(ctx context.Context, r *Result, workers []*worker, threadError error) error {
	var failure, firstError error
	for _, w := range workers {
		if failure == nil {
			failure = w.failure
		}
		if firstError == nil {
			firstError = w.tally.firstError
		}
	}
	switch {
	case threadError != nil:
		return threadError
	case r.FindingCount > 0:
		return status.Errorf(status.IOFailed, "%d of %d checked blocks are wrong, first: %v",
			r.FindingCount, r.BlocksChecked, &r.Findings[0])
	case failure != nil:
		return failure
	case firstError != nil:
		return fmt.Errorf("%d requests failed, for instance: %w", r.Errors, firstError)
	case r.Interrupted:
		return fmt.Errorf("verification is incomplete: %w", context.Cause(ctx))
	}
	return nil
}
