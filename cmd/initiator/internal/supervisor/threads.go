package supervisor

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

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
