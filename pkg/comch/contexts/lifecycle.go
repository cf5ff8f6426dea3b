// SPDX-License-Identifier: Apache-2.0

// Package contexts implements the programming model of the DOCA Comch guide on top of any
// comch.Provider: servers, clients, consumers, and producers are contexts of a progress engine.
// Their tasks come from pools of fixed size and complete through callbacks.
//
// An application configures a context while it is idle, and then starts it. The context reports
// connections, messages, completions, and changes of its state through callbacks, which run only
// inside Progress of its engine. A context belongs to the thread of that engine: only State may be
// called from elsewhere, and the methods of its tasks and connections belong to the same thread.
// The consumers and producers of one connection may run on other engines, each on its own thread.
// Starting and stopping them is safe while the thread of the server or client runs.
//
// The table allowedIn lists the states in which each operation is allowed. In any other state the
// operation fails with status.BadState and changes nothing.
//
// A program that has goroutines for its control path may use the blocking calls of the provider
// instead. Both kinds of programs can talk to each other.
package contexts

import (
	"strings"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// operation is an action of the application that only some states of a context allow.
type operation uint8

const (
	configure operation = iota
	start
	allocate
	submit
	stop
	disconnect
	destroy
)

var operationNames = [...]string{
	"configure", "start", "allocate a task of", "submit a task to", "stop",
	"disconnect a client of", "destroy",
}

// allowedIn lists the states in which each operation is allowed. Freeing a task that the
// application holds and making progress are always allowed. As the guide demands, a stopping
// context still allocates and accepts tasks; they complete with an error.
var allowedIn = [...]states{
	configure:  setOf(progress.Idle),
	start:      setOf(progress.Idle),
	allocate:   setOf(progress.Running, progress.Stopping),
	submit:     setOf(progress.Running, progress.Stopping),
	stop:       setOf(progress.Running, progress.Stopping),
	disconnect: setOf(progress.Running),
	destroy:    setOf(progress.Idle),
}

// states is a set of states, one bit each.
type states uint8

func setOf(members ...progress.State) (set states) {
	for _, s := range members {
		set |= 1 << s
	}
	return set
}

func (s states) has(state progress.State) bool { return s&(1<<state) != 0 }

func (s states) String() string {
	var names []string
	for state := progress.Idle; state <= progress.Stopping; state++ {
		if s.has(state) {
			names = append(names, state.String())
		}
	}
	return strings.Join(names, " or ")
}

// StateChanged is called after the state of a context has changed.
type StateChanged func(previous, next progress.State)

// errFlushed completes tasks that were outstanding when their context stopped, and tasks submitted
// later.
var errFlushed = status.Errorf(status.Shutdown, "the context stopped before the task completed")

// lifecycle is the state machine of every context. Other threads may read state and nothing else.
type lifecycle struct {
	kind         string // for errors, for instance "server"
	state        atomic.Int32
	destroyed    bool
	configured   bool
	engine       *progress.Engine
	stateChanged StateChanged // may be nil
	reason       error
	allocated    int    // tasks that the application has not freed
	finishStop   func() // makes a stopping context idle if nothing is left to wait for
}

// State returns the current state. Any goroutine may call it.
func (l *lifecycle) State() progress.State { return progress.State(l.state.Load()) }

// Err returns why the context left Starting or Running on its own. It returns nil if the
// application stopped the context, and after the next Start.
func (l *lifecycle) Err() error { return l.reason }

// Destroy releases an idle context. No operation is allowed afterwards.
func (l *lifecycle) Destroy() error {
	if err := l.allow(destroy); err != nil {
		return err
	}
	l.destroyed = true
	return nil
}

// allow fails with status.BadState unless the current state allows the operation.
func (l *lifecycle) allow(o operation) error {
	state := l.State()
	switch {
	case l.destroyed:
		return status.Errorf(status.BadState, "%s %s: it has been destroyed", operationNames[o],
			l.kind)
	case !allowedIn[o].has(state):
		return status.Errorf(status.BadState, "%s %s: it is %v, but must be %v",
			operationNames[o], l.kind, state, allowedIn[o])
	}
	return nil
}

// prepareStart checks what every context needs in order to start.
func (l *lifecycle) prepareStart(engine *progress.Engine) error {
	if err := l.allow(start); err != nil {
		return err
	}
	if !l.configured {
		return status.Errorf(status.Initialization,
			"start %s: not configured: call Configure first", l.kind)
	}
	if engine == nil {
		return status.Errorf(status.NotConnected, "start %s: no progress engine", l.kind)
	}
	l.engine = engine
	l.reason = nil
	return nil
}

func (l *lifecycle) enter(next progress.State) {
	previous := progress.State(l.state.Swap(int32(next)))
	if l.stateChanged != nil && previous != next {
		l.stateChanged(previous, next)
	}
}

func (l *lifecycle) is(state progress.State) bool { return l.State() == state }

// checkCount rejects a number that is not between 1 and limit.
func checkCount(what string, value, limit int) error {
	if value < 1 || value > limit {
		return status.Errorf(status.InvalidValue, "%s %d is not between 1 and %d",
			what, value, limit)
	}
	return nil
}

// checkOptional also accepts 0, which means the default.
func checkOptional(what string, value, limit int) error {
	if value == 0 {
		return nil
	}
	return checkCount(what, value, limit)
}

// callback describes a mandatory function of a configuration.
type callback struct {
	name  string
	isSet bool
}

func checkCallbacks(kind string, callbacks ...callback) error {
	for _, c := range callbacks {
		if !c.isSet {
			return status.Errorf(status.InvalidValue, "configure %s: %s is mandatory", kind, c.name)
		}
	}
	return nil
}

// owner says who may touch a task.
type owner uint8

const (
	pooled      owner = iota // nobody: the task is free
	application              // the task is allocated, or has completed
	library                  // the task is outstanding
)

// task is the common part of tasks of all kinds. The application owns a task from its allocation to
// its submission, and again from its completion until it frees the task. It may submit a completed
// task again.
type task struct {
	// UserData belongs to the application.
	UserData any

	context *lifecycle
	owner   owner
}

func (t *task) checkSubmit() error {
	if err := t.context.allow(submit); err != nil {
		return err
	}
	return t.checkHeld("submit task")
}

// checkHeld fails unless the application owns the task.
func (t *task) checkHeld(operation string) error {
	switch t.owner {
	case library:
		return status.Errorf(status.InUse, "%s: the task has not completed", operation)
	case pooled:
		return status.Errorf(status.BadState, "%s: the task has been freed", operation)
	}
	return nil
}

// claim makes the application the owner of a task from the pool.
func (t *task) claim() {
	t.owner = application
	t.UserData = nil
	t.context.allocated++
}

// release takes back a task that the application frees. A stopping context becomes idle with the
// last one.
func (t *task) release() error {
	if err := t.checkHeld("free task"); err != nil {
		return err
	}
	t.owner = pooled
	t.context.allocated--
	if t.context.is(progress.Stopping) && t.context.allocated == 0 {
		t.context.engine.Do(t.context.finishStop)
	}
	return nil
}

// pool holds the free tasks of a context.
type pool[T any] struct {
	size int
	free []*T
}

func newPool[T any](size int, initialize func(*T)) pool[T] {
	tasks := make([]T, size)
	p := pool[T]{size: size, free: make([]*T, size)}
	for i := range tasks {
		initialize(&tasks[i])
		p.free[size-1-i] = &tasks[i]
	}
	return p
}

func (p *pool[T]) get() (*T, error) {
	last := len(p.free) - 1
	if last < 0 {
		return nil, status.Errorf(status.NoMemory,
			"allocate task: all %d tasks are in use: free some, or configure more", p.size)
	}
	t := p.free[last]
	p.free = p.free[:last]
	return t, nil
}

func (p *pool[T]) put(t *T) { p.free = append(p.free, t) }
