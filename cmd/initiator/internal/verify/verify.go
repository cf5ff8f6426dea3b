// Package verify finds out whether a volume keeps what is written to it: it
// writes blocks that know their place and age, reads them back in another
// order, with many requests outstanding on several queues, and says of every
// wrong block whether it was lost, is stale, torn, misplaced or corrupt.
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

// Config is what a run works with.
type Config struct {
	// Parameters have been resolved against the volume.
	Parameters Parameters
	// RunID is in every block that the run writes, so that blocks of other
	// runs are not taken for its own: it must be new for each run.
	RunID uint64
	// BlockSize is the volume's, in bytes.
	BlockSize uint32
	// Queues are as many as Parameters.Queues, each of them at least
	// Parameters.QueueDepth deep. Nobody else may use them.
	Queues []Queue
	// Memory is the data memory that the queues' requests refer to:
	// Parameters.MaxIOSize bytes for each request that can be outstanding.
	Memory []byte
	// Reconnect has requests repeated that the loss of a session has left
	// open, and lets blocks be lost that were not flushed when the target
	// restarted, if that is told.
	Reconnect bool
	// Observe is told once a second how far the run is; may be nil.
	Observe func(Progress)
}

// Progress is how far a run is. Problems are failed requests and wrong
// blocks.
type Progress struct {
	BlocksWritten uint64
	BlocksChecked uint64
	Problems      uint64
}

// Run carries out a run until it has ended by itself, fails, or ctx is
// cancelled, which is a failure. The result is valid even if there is an
// error: it says what was found before. Neither a failed request nor a wrong
// block ends the run, but both make it fail when it has ended.
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
		return status.Errorf(status.InvalidValue, "%d queues were opened for a run with %d", len(c.Queues), p.Queues)
	}
	needed := uint64(p.Queues) * uint64(p.QueueDepth) * uint64(p.MaxIOSize)
	if uint64(len(c.Memory)) < needed {
		return status.Errorf(status.InvalidValue, "%d bytes of data memory are less than the %d that the run needs", len(c.Memory), needed)
	}
	return nil
}

func (c *Config) newWorkers(run *supervisor.Supervisor) []*worker {
	p := &c.Parameters
	size := uint64(p.QueueDepth) * uint64(p.MaxIOSize)
	workers := make([]*worker, p.Queues)
	flushes := new(atomic.Uint64)
	for i := range workers {
		start, blocks := p.slice(i, c.BlockSize)
		memory := uint64(i) * size
		w := &worker{
			index: i, queue: c.Queues[i], run: run,
			planner: newPlanner(blocks, uint64(p.MaxIOSize/c.BlockSize), p.Passes, rand.NewPCG(p.Seed, uint64(i))),
			runID:   c.RunID, start: start, blockSize: uint64(c.BlockSize),
			buffers: c.Memory[memory:][:size], memory: memory, slotSize: uint64(p.MaxIOSize),
			slots:   make([]operation, p.QueueDepth),
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

// failureOf is why a run counts as failed, nil if it does not.
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
		return status.Errorf(status.IOFailed, "%d of %d checked blocks are wrong, the first: %v", r.FindingCount, r.BlocksChecked, &r.Findings[0])
	case failure != nil:
		return failure
	case firstError != nil:
		return fmt.Errorf("%d requests failed, one of them: %w", r.Errors, firstError)
	case r.Interrupted:
		return fmt.Errorf("verification is incomplete: %w", context.Cause(ctx))
	}
	return nil
}
