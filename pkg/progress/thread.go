// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Thread is a system thread of its own that runs an engine until Stop. Any goroutine may call its
// methods, but Run and Stop only if it is not on the thread.
type Thread struct {
	engine   *Engine
	stopping atomic.Bool
	running  sync.WaitGroup
}

// StartThread starts a thread with a new engine.
func StartThread(policy Policy) (*Thread, error) {
	engine, err := NewEngine(policy)
	if err != nil {
		return nil, fmt.Errorf("start a thread: %w", err)
	}
	t := &Thread{engine: engine}
	t.running.Go(func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		for !t.stopping.Load() {
			engine.Idle(engine.Progress())
		}
	})
	return t, nil
}

// Engine returns the thread's engine.
func (t *Thread) Engine() *Engine { return t.engine }

// Run runs a command on the thread, and returns its error. It fails with status.ErrClosed after
// Stop.
func (t *Thread) Run(command func() error) error {
	result := make(chan error, 1)
	if !t.engine.Do(func() { result <- command() }) {
		return errClosed()
	}
	return <-result
}

// Stop ends the thread and closes its engine.
func (t *Thread) Stop() error {
	t.stopping.Store(true)
	t.engine.Wake()
	t.running.Wait()
	return t.engine.Close()
}
