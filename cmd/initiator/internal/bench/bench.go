// Package bench measures a volume: it keeps a number of requests outstanding
// on each of several queues and records how long each of them takes.
package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Config is what a run works with.
type Config struct {
	// Parameters have been resolved against the volume.
	Parameters Parameters
	// Sessions are as many as Parameters.Sessions.
	Sessions []Session
	// PlainContent is what the volume holds if Parameters.Validate is to
	// compare with, or write, that; nil means data made up by the run.
	PlainContent io.ReaderAt
	// Reconnect has requests repeated that the loss of a session has left
	// open: the volume is reopened.
	Reconnect bool
	// Observe is told once a second how far the run is; may be nil.
	Observe func(Progress)
}

// Session is one connection to the volume.
type Session struct {
	// Queues are as many as Parameters.Queues, each of them at least
	// Parameters.QueueDepth deep. Nobody else may use them.
	Queues []Queue
	// Memory is the data memory that the queues' requests refer to: one block
	// for each request that can be outstanding.
	Memory []byte
}

// Progress is how far a run is.
type Progress struct {
	WarmingUp  bool
	Operations uint64 // of this stage
	Errors     uint64
}

// Run carries out a run until it has ended by itself, fails, or ctx is
// cancelled, which is no failure. The result is valid even if there is an
// error: it says what was measured before.
//
// A failed request does not end the run, but makes it fail when it has ended:
// the error is that of the first.
func Run(ctx context.Context, config Config) (Result, error) {
	p := &config.Parameters
	if err := config.check(); err != nil {
		return NoResult(), err
	}
	mode, err := progress.ParseMode(p.Poll)
	if err != nil {
		return NoResult(), err
	}
	run := p.newSupervisor()
	workers := config.newWorkers(run)
	for i, g := range groupsOf(workers, p.Queues) {
		if err := run.Threads().Go(p.cpu(i), progress.Policy{Mode: mode}, g.body); err != nil {
			g[0].fail(err)
			break
		}
	}
	threadError := run.Wait(ctx, func() { config.observe(run, workers) })
	result := resultOf(p, run, workers)
	result.addRepetitions(config.Reconnect, workers)
	return result, failureOf(workers, threadError)
}

func (p *Parameters) newSupervisor() *supervisor.Supervisor {
	first := warmingUp
	if p.Warmup == 0 {
		first = measuring
	}
	return supervisor.New(first, p.Warmup, p.Runtime, p.DrainTimeout)
}

func (c *Config) check() error {
	p := &c.Parameters
	if len(c.Sessions) != p.Sessions {
		return status.Errorf(status.InvalidValue, "%d sessions were opened for a run with %d", len(c.Sessions), p.Sessions)
	}
	needed := uint64(p.Queues) * uint64(p.QueueDepth) * uint64(p.BlockSize)
	for _, s := range c.Sessions {
		if len(s.Queues) != p.Queues {
			return status.Errorf(status.InvalidValue, "%d queues were opened for a run with %d", len(s.Queues), p.Queues)
		}
		if uint64(len(s.Memory)) < needed {
			return status.Errorf(status.InvalidValue, "%d bytes of data memory are less than the %d that the run needs", len(s.Memory), needed)
		}
	}
	return nil
}

func (c *Config) newWorkers(run *supervisor.Supervisor) []*worker {
	p := &c.Parameters
	for i, s := range c.Sessions {
		// Data that no layer below can compress or deduplicate.
		fillRandom(s.Memory, rand.NewPCG(p.Seed, uint64(i)))
	}
	size := uint64(p.QueueDepth) * uint64(p.BlockSize)
	workers := make([]*worker, p.allQueues())
	for i := range workers {
		s := &c.Sessions[i/p.Queues]
		memory := uint64(i%p.Queues) * size
		w := &worker{
			index: i, queue: s.Queues[i%p.Queues], run: run, recorder: newRecorder(),
			generator: newGenerator(p, i),
			buffers:   s.Memory[memory:][:size], memory: memory,
			slots:      make([]slot, p.QueueDepth),
			free:       make([]uint32, p.QueueDepth),
			ready:      make([]uint32, 0, p.QueueDepth),
			request:    client.Request{Length: p.BlockSize},
			totalLimit: p.operationLimit(i), hasWarmup: p.Warmup > 0, reconnect: c.Reconnect,
		}
		for j := range w.free {
			w.free[j] = uint32(p.QueueDepth - 1 - j)
		}
		w.validation = c.newValidation(i, &w.generator)
		workers[i] = w
	}
	return workers
}

func (c *Config) newValidation(thread int, generator *generator) *validation {
	if !c.Parameters.Validate {
		return nil
	}
	if c.PlainContent != nil {
		return newValidation(&c.Parameters, thread, plainContent{c.PlainContent}, generator)
	}
	return newValidation(&c.Parameters, thread, pattern{c.Parameters.Seed}, generator)
}

func (c *Config) observe(run *supervisor.Supervisor, workers []*worker) {
	if c.Observe == nil {
		return
	}
	now := Progress{WarmingUp: run.Stage() == warmingUp}
	for _, w := range workers {
		now.Operations += w.recorder.publishedOperations.Load()
		now.Errors += w.recorder.publishedErrors.Load()
	}
	c.Observe(now)
}

// problems counts what has gone wrong.
func problems(errorCount, mismatches uint64) string {
	switch {
	case mismatches == 0:
		return fmt.Sprintf("%d requests failed", errorCount)
	case errorCount == 0:
		return fmt.Sprintf("%d requests had wrong data", mismatches)
	}
	return fmt.Sprintf("%d requests failed and %d had wrong data", errorCount, mismatches)
}

// failureOf is why a run counts as failed, nil if it does not.
func failureOf(workers []*worker, threadError error) error {
	if threadError != nil {
		return threadError
	}
	var failure, first timedError
	var errorCount, mismatches uint64
	for _, w := range workers {
		failure.note(w.failure)
		first.note(w.firstError)
		errorCount += w.recorder.errorCount
		mismatches += w.recorder.mismatches
	}
	switch {
	case failure.err != nil && errorCount > 0:
		return fmt.Errorf("the run broke off and %d requests failed: %w", errorCount, failure.err)
	case failure.err != nil:
		return failure.err
	case first.err != nil:
		return fmt.Errorf("%s, the first: %w", problems(errorCount, mismatches), first.err)
	}
	return nil
}
