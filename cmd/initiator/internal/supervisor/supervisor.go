// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs the threads of a benchmark, a verification, or a transfer, and takes them
// through the stages of the run.
package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Stage is a stage of a run. It only grows.
type Stage uint32

// Supervisor takes the threads of a run through its stages: the stages of the run itself; then
// draining, when nothing new is started; and then expired, when the threads no longer wait for what
// is outstanding.
type Supervisor struct {
	// ObserveEvery is the time between calls of Wait's observer; 0 is a second. Set it before Wait.
	ObserveEvery time.Duration

	threads     Threads
	bounds      []time.Duration
	current     atomic.Uint32
	epoch       time.Time
	failed      chan struct{} // asks Wait to drain
	observeNow  chan struct{} // asks Wait to call its observer
	interrupted bool
}

// observeInterval is the time between calls of an observer.
const observeInterval = time.Second

// New returns a supervisor for a run that begins in stage first. bounds limits the duration of each
// stage; 0 is no limit. The last bound belongs to draining. The stage after it, expired, has none.
func New(first Stage, bounds ...time.Duration) *Supervisor {
	s := &Supervisor{bounds: bounds, epoch: time.Now(), failed: make(chan struct{}, 1),
		observeNow: make(chan struct{}, 1)}
	s.threads.OnFailure = s.Drain
	s.current.Store(uint32(first))
	return s
}

// Stage returns the current stage. Any thread may call it at any time.
func (s *Supervisor) Stage() Stage { return Stage(s.current.Load()) }

// NoReply returns the error of a request that is outstanding in the stage expired.
func (s *Supervisor) NoReply() error {
	return status.Errorf(status.TimeOut, "no reply from the relay, or from the target behind it, "+
		"within %v after the end of the run (--control-timeout): is one of them stopped or busy?",
		s.bounds[len(s.bounds)-1])
}

// NowNs returns the time since New, in nanoseconds.
func (s *Supervisor) NowNs() int64 { return int64(time.Since(s.epoch)) }

// WallTime returns the time of day at a time since New, in nanoseconds.
func (s *Supervisor) WallTime(ns int64) time.Time { return s.epoch.Add(time.Duration(ns)) }

// Threads returns the run's threads. A thread that fails starts the draining.
func (s *Supervisor) Threads() *Threads { return &s.threads }

// Interrupted reports whether the end of Wait's context ended the run. It is valid after Wait has
// returned.
func (s *Supervisor) Interrupted() bool { return s.interrupted }

// Drain starts the draining. Any thread may call it, any number of times.
func (s *Supervisor) Drain() { signal(s.failed) }

// ObserveNow makes Wait call its observer now, and from then on as often as usual. Any thread may
// call it.
func (s *Supervisor) ObserveNow() { signal(s.observeNow) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is enough
	}
}

// Queue is the part of a client.Queue that the thread of a run uses.
type Queue interface {
	Submit(request *client.Request) error
	Ring()
	Poll(results []client.Result) int
	Attach(engine *progress.Engine) error
	Detach(engine *progress.Engine)
	SwitchMemory() []byte
	Session() uint64
}

// MoveBuffers makes a queue go over to the new data memory of its volume, which it demands by
// client.ErrMemoryReplaced. It returns the place there of buffers that begin at an offset of the
// memory, with their content.
func MoveBuffers(queue Queue, offset uint64, buffers []byte) []byte {
	moved := queue.SwitchMemory()[offset:][:len(buffers)]
	copy(moved, buffers)
	return moved
}

// Wait advances the stages until all threads have ended, and returns their errors. The end of ctx
// starts the draining. Wait calls observe about once a second.
func (s *Supervisor) Wait(ctx context.Context, observe func()) error {
	ended := make(chan error, 1)
	go func() { ended <- s.threads.Wait() }()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	s.enter(s.Stage(), due)
	every := cmp.Or(s.ObserveEvery, observeInterval)
	tick := time.NewTicker(every)
	defer tick.Stop()
	draining := Stage(len(s.bounds) - 1)
	interrupt := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-interrupt:
			s.interrupted = s.Stage() < draining
			interrupt = nil
			s.advance(draining, due)
		case <-s.failed:
			s.advance(draining, due)
		case <-due.C:
			s.advance(s.Stage()+1, due)
		case <-s.observeNow:
			tick.Reset(every)
			observe()
		case <-tick.C:
			observe()
		}
	}
}

func (s *Supervisor) advance(next Stage, due *time.Timer) {
	if next > s.Stage() {
		s.enter(next, due)
	}
}

func (s *Supervisor) enter(stage Stage, due *time.Timer) {
	s.current.Store(uint32(stage))
	due.Stop()
	if int(stage) < len(s.bounds) && s.bounds[stage] > 0 {
		due.Reset(s.bounds[stage])
	}
	s.threads.Wake()
}

// Threads runs functions on dedicated OS threads, each with a progress engine. The zero value has
// no threads. Any goroutine may call its methods, but Go not concurrently with Wait.
type Threads struct {
	// OnFailure, if not nil, is called after a thread has failed. Set it before Go.
	OnFailure func()

	running sync.WaitGroup
	mu      sync.Mutex // guards the fields below
	engines []*progress.Engine
	err     error
}

// Go calls body on a new thread, pinned to cpu unless that is affinity.AnyCPU. The engine belongs
// to that thread and is closed when body returns. Wait returns an error of body.
func (t *Threads) Go(cpu int, policy progress.Policy, body func(*progress.Engine) error) error {
	engine, err := progress.NewEngine(policy)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.engines = append(t.engines, engine)
	t.mu.Unlock()
	t.running.Go(func() {
		if err := errors.Join(run(cpu, engine, body), engine.Close()); err != nil {
			t.note(err)
		}
	})
	return nil
}

func run(cpu int, engine *progress.Engine, body func(*progress.Engine) error) error {
	// The thread stays locked: the runtime must not reuse a pinned thread. It ends together with
	// this goroutine.
	runtime.LockOSThread()
	if cpu != affinity.AnyCPU {
		if err := affinity.Pin(cpu); err != nil {
			return fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
		}
	}
	return body(engine)
}

func (t *Threads) note(err error) {
	t.mu.Lock()
	t.err = errors.Join(t.err, err)
	t.mu.Unlock()
	if t.OnFailure != nil {
		t.OnFailure()
	}
}

// Wake wakes every thread that sleeps in its engine.
func (t *Threads) Wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, engine := range t.engines {
		engine.Wake()
	}
}

// Wait waits until all threads have ended and returns their errors.
func (t *Threads) Wait() error {
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
