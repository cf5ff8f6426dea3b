// Package supervisor runs the threads of a benchmark, a verification, or a transfer.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Stage is how far a run is. It only grows.
type Stage uint32

// Supervisor leads the threads of a run through its stages: those of the run
// itself, then draining, when nothing new is started, and then abandoned,
// when what is outstanding is not waited for any more.
type Supervisor struct {
	threads     Threads
	bounds      []time.Duration
	current     atomic.Uint32
	epoch       time.Time
	failed      chan struct{} // signals that the run is to end
	interrupted bool
}

// observeInterval is how often an observer hears of a run.
const observeInterval = time.Second

// New makes a supervisor for a run whose stages last as long as
// bounds say, 0 meaning as long as the threads like. The last of them is
// draining, and abandoned is one more.
func New(first Stage, bounds ...time.Duration) *Supervisor {
	s := &Supervisor{bounds: bounds, epoch: time.Now(), failed: make(chan struct{}, 1)}
	s.threads.OnFailure = s.End
	s.current.Store(uint32(first))
	return s
}

// Stage is how far the run is. Any thread may ask at any time.
func (s *Supervisor) Stage() Stage { return Stage(s.current.Load()) }

// NowNs is the time since the supervisor was made, in nanoseconds.
func (s *Supervisor) NowNs() int64 { return int64(time.Since(s.epoch)) }

// Threads are the run's. A thread that fails ends the run.
func (s *Supervisor) Threads() *Threads { return &s.threads }

// Interrupted reports whether the end of the context given to Wait ended the
// run. It is known when Wait has returned.
func (s *Supervisor) Interrupted() bool { return s.interrupted }

// End begins to drain. Any thread may call it, any number of times.
func (s *Supervisor) End() {
	select {
	case s.failed <- struct{}{}:
	default: // one is enough
	}
}

// LostConnection reports whether a request that fails with code fails because
// the way to the volume is gone, so that others need not be tried.
func LostConnection(code status.Code) bool {
	switch code {
	case status.ConnectionReset, status.ConnectionAborted, status.NotConnected, status.Shutdown:
		return true
	}
	return false
}

// LeftOpen reports whether a request that fails with code was left open by the
// end of its session, so that it can be repeated in the next one.
func LeftOpen(code status.Code) bool { return LostConnection(code) || code == status.TimeOut }

// Wait moves from stage to stage until all threads have ended, and returns
// what went wrong in them. The end of ctx begins to drain. observe is called
// about once a second.
func (s *Supervisor) Wait(ctx context.Context, observe func()) error {
	ended := make(chan error, 1)
	go func() { ended <- s.threads.Wait() }()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	s.enter(s.Stage(), due)
	tick := time.NewTicker(observeInterval)
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

// Threads runs functions on operating system threads of their own, each with
// a progress engine. The zero value has no threads. Its methods may be called
// by any goroutine, Go not at the same time as Wait.
type Threads struct {
	// OnFailure, if not nil, is called when a thread has failed. It is set
	// before Go.
	OnFailure func()

	running sync.WaitGroup
	mu      sync.Mutex // guards the fields below
	engines []*progress.Engine
	err     error
}

// Go calls body on a new thread, which is pinned to cpu unless that is
// affinity.AnyCPU. The engine belongs to that thread and is closed when body returns.
// An error of body ends up in that of Wait.
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
	// Never unlocked: a thread with an affinity of its own must not go back
	// to the runtime, which ends it together with this goroutine.
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

// Wake makes every thread that sleeps in its engine look around.
func (t *Threads) Wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, engine := range t.engines {
		engine.Wake()
	}
}

// Wait waits until all threads have ended and returns what went wrong in
// them.
func (t *Threads) Wait() error {
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
