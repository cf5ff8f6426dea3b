// SPDX-License-Identifier: Apache-2.0

// Package bench measures a volume. It keeps a number of requests outstanding on each of several
// queues and records their latencies.
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

// Config describes a run.
type Config struct {
	// Parameters have been resolved against the volume.
	Parameters Parameters
	// Sessions holds Parameters.Sessions sessions.
	Sessions []Session
	// PlainContent is the content to compare with, and to write, if Parameters.Validate is set; nil
	// means data that the run generates.
	PlainContent io.ReaderAt
	// Reconnect makes the run repeat requests whose outcome the loss of a session left open, after
	// the volume has been reopened.
	Reconnect bool
	// Observe is called with the progress of the run once a second, or several times in each
	// interval; may be nil.
	Observe func(Progress)
	// ObserveInterval is called after each interval of Parameters.Interval, and at the end of the
	// run; nil if there are no intervals. The measurement begins a new interval. The operations of
	// the intervals after the warm-up add up to the result.
	ObserveInterval func(Interval)
	// Histograms receives the latencies of the measured part, in the format of HdrHistogram's logs;
	// may be nil.
	Histograms io.Writer
}

// Session is one connection to the volume.
type Session struct {
	// Queues holds Parameters.Queues queues, each at least Parameters.QueueDepth deep. They belong
	// to the run until it ends.
	Queues []Queue
	// Memory is the data memory that the queues' requests refer to: one block for each request that
	// can be outstanding.
	Memory []byte
}

// Progress is the progress of a run.
type Progress struct {
	WarmingUp  bool
	Operations uint64 // completed in the current stage
	Errors     uint64
}

// Run measures until the run is over, fails, or ctx is cancelled, which is not a failure. Even with
// an error, the result is valid: it holds what was measured before.
//
// A failed request does not end the run, but makes it fail when it has ended. The error describes
// the first failed request.
func Run(ctx context.Context, config Config) (Result, error) {
	p := &config.Parameters
	if err := config.check(); err != nil {
		return NoResult(), err
	}
	mode, err := progress.ParseMode(p.Poll)
	if err != nil {
		return NoResult(), err
	}
	if p.Rate > 0 {
		mode = progress.Busy // nothing would wake a thread when its next request is due
	}
	run := p.newSupervisor()
	workers := config.newWorkers(run)
	for i, g := range groupsOf(workers, p.Queues) {
		if err := run.Threads().Go(p.cpu(i), progress.Policy{Mode: mode}, g.body); err != nil {
			g[0].fail(err)
			break
		}
	}
	intervals := config.newIntervals(run, workers)
	run.ObserveEvery = p.Interval / shortestPart
	threadError := run.Wait(ctx, func() {
		config.observe(run, workers)
		intervals.advance()
	})
	intervals.end()
	result := resultOf(p, run, workers)
	result.addRepetitions(config.Reconnect, workers)
	if err := config.writeHistograms(run, workers); err != nil {
		return result, err
	}
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
		return status.Errorf(status.InvalidValue,
			"the run needs %[2]d sessions, but %[1]d were opened", len(c.Sessions), p.Sessions)
	}
	needed := uint64(p.Queues) * uint64(p.QueueDepth) * uint64(p.BlockSize)
	for _, s := range c.Sessions {
		if len(s.Queues) != p.Queues {
			return status.Errorf(status.InvalidValue,
				"the run needs %[2]d queues, but %[1]d were opened", len(s.Queues), p.Queues)
		}
		if uint64(len(s.Memory)) < needed {
			return status.Errorf(status.InvalidValue,
				"the run needs %[2]d bytes of data memory, but there are %[1]d", len(s.Memory),
				needed)
		}
	}
	return nil
}

func (c *Config) newWorkers(run *supervisor.Supervisor) []*worker {
	p := &c.Parameters
	for i, s := range c.Sessions {
		// Random data, so that no layer below can compress or deduplicate it.
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
			slots:   make([]slot, p.QueueDepth),
			free:    make([]uint32, p.QueueDepth),
			ready:   make([]uint32, 0, p.QueueDepth),
			request: client.Request{Length: p.BlockSize}, batchSize: p.BatchSize,
			totalLimit: p.operationLimit(i), hasWarmup: p.Warmup > 0, reconnect: c.Reconnect,
			schedule: schedule{periodNs: p.periodOf()},
		}
		if c.ObserveInterval != nil {
			w.interval = newIntervalRecorder()
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

// problems describes the number of failed requests and of requests with wrong data.
func problems(errorCount, mismatches uint64) string {
	switch {
	case mismatches == 0:
		return fmt.Sprintf("%d requests failed", errorCount)
	case errorCount == 0:
		return fmt.Sprintf("%d requests had wrong data", mismatches)
	}
	return fmt.Sprintf("%d requests failed and %d had wrong data", errorCount, mismatches)
}

// failureOf returns the reason why a run failed, nil if it succeeded.
func failureOf(workers []*worker, threadError error) error {
	if threadError != nil {
		return threadError
	}
	var failure, first timedError
	var errorCount, mismatches uint64
	for _, w := range workers {
		failure.keepEarlier(w.failure)
		first.keepEarlier(w.firstError)
		errorCount += w.recorder.failures.Count
		mismatches += w.recorder.mismatches
	}
	switch {
	case failure.err != nil && errorCount > 0:
		return fmt.Errorf("the run was aborted and %d requests failed: %w", errorCount, failure.err)
	case failure.err != nil:
		return failure.err
	case first.err != nil:
		return fmt.Errorf("%s, first: %w", problems(errorCount, mismatches), first.err)
	}
	return nil
}
