// Package contexts is Comch as its guide describes it, on any provider:
// server, client, consumer and producer as contexts of a progress engine, with
// tasks that are allocated from fixed pools, submitted, and completed by
// callbacks.
//
// A context is configured while it is idle and then started. What happens
// meanwhile (connections, messages, completions, changes of state) is told by
// callbacks, which run only inside Progress of the engine that the context was
// started on. The context belongs to the thread of that engine: apart from
// State, its methods and those of its tasks and connections may be called by
// that thread alone. Consumers and producers of one connection may run on
// engines of their own, each on its own thread; starting and stopping them
// is safe beside the thread of the server or client.
//
// Which operation is allowed in which state is the table in lifecycle.go;
// everything else fails with status.BadState and changes nothing.
//
// Programs that have goroutines to spare for their control path may use the
// provider's blocking calls directly instead: both ways speak to each other.
package contexts

import (
	"strings"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// operation is what a context can be asked for.
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

var operationNames = [...]string{"configure", "start", "allocate a task of", "submit a task to", "stop", "disconnect a client of", "destroy"}

// states is a set of states.
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

// allowed says in which states an operation is possible. Tasks that the
// application holds can be freed in every state, and progress be made.
//
// A stopping context still gives out tasks and takes them, as the guide has
// it; they complete with an error.
var allowed = [...]states{
	configure:  setOf(progress.Idle),
	start:      setOf(progress.Idle),
	allocate:   setOf(progress.Running, progress.Stopping),
	submit:     setOf(progress.Running, progress.Stopping),
	stop:       setOf(progress.Running, progress.Stopping),
	disconnect: setOf(progress.Running),
	destroy:    setOf(progress.Idle),
}

// StateChanged is called after a context has changed its state.
type StateChanged func(previous, next progress.State)

// errFlushed is the outcome of tasks that a context had when it stopped.
var errFlushed = status.Errorf(status.Shutdown, "the context stopped before the task was done")

// lifecycle is the state machine that all contexts share. Only state may be
// read by other threads.
type lifecycle struct {
	kind         string // "server", for instance
	state        atomic.Int32
	destroyed    bool
	configured   bool
	engine       *progress.Engine
	stateChanged StateChanged
	reason       error
	allocated    int    // tasks that are not freed
	finishStop   func() // makes a stopping context idle if nothing is left of it
}

// State is where the context is in its life. Any goroutine may call it.
func (l *lifecycle) State() progress.State { return progress.State(l.state.Load()) }

// Err says why the context has left Starting or Running without being asked
// to, nil if it has not. Starting it again clears it.
func (l *lifecycle) Err() error { return l.reason }

// Destroy ends the life of an idle context: no operation is allowed any more.
func (l *lifecycle) Destroy() error {
	if err := l.allow(destroy); err != nil {
		return err
	}
	l.destroyed = true
	return nil
}

func (l *lifecycle) allow(o operation) error {
	state := l.State()
	switch {
	case l.destroyed:
		return status.Errorf(status.BadState, "%s %s: it has been destroyed", operationNames[o], l.kind)
	case !allowed[o].has(state):
		return status.Errorf(status.BadState, "%s %s: it is %v and has to be %v", operationNames[o], l.kind, state, allowed[o])
	}
	return nil
}

// begin checks everything that all contexts need in order to start.
func (l *lifecycle) prepareStart(engine *progress.Engine) error {
	if err := l.allow(start); err != nil {
		return err
	}
	if !l.configured {
		return status.Errorf(status.Initialization, "start %s: it has not been configured: call Configure first", l.kind)
	}
	if engine == nil {
		return status.Errorf(status.NotConnected, "start %s: there is no progress engine", l.kind)
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

// checkCount refuses a number outside 1 and limit.
func checkCount(what string, value, limit int) error {
	if value < 1 || value > limit {
		return status.Errorf(status.InvalidValue, "%s %d is not within 1 and %d", what, value, limit)
	}
	return nil
}

// checkOptional is checkCount for a number that may be left open.
func checkOptional(what string, value, limit int) error {
	if value == 0 {
		return nil
	}
	return checkCount(what, value, limit)
}

// callback is a function of the application that has to be there.
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

// owner is who may touch a task.
type owner uint8

const (
	pooled      owner = iota // nobody: it is free
	application              // allocated, or completed
	library                  // submitted
)

// task is what tasks of all kinds have in common. It belongs to the
// application from its allocation to its submission, and again from its
// completion until it is freed; a completed task can be submitted again.
type task struct {
	// UserData is the application's.
	UserData any

	context *lifecycle
	owner   owner
}

// checkSubmit refuses a task that cannot be submitted now.
func (t *task) checkSubmit() error {
	if err := t.context.allow(submit); err != nil {
		return err
	}
	return t.checkHeld("submit task")
}

// checkHeld refuses to do anything with a task that is not the application's.
func (t *task) checkHeld(operation string) error {
	switch t.owner {
	case library:
		return status.Errorf(status.InUse, "%s: it is submitted and has not completed", operation)
	case pooled:
		return status.Errorf(status.BadState, "%s: it has been freed", operation)
	}
	return nil
}

// take marks a task that comes out of the pool.
func (t *task) claim() {
	t.owner = application
	t.UserData = nil
	t.context.allocated++
}

// release marks a task that goes back to the pool.
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
		return nil, status.Errorf(status.NoMemory, "all %d tasks are in use: free some, or configure more", p.size)
	}
	t := p.free[last]
	p.free = p.free[:last]
	return t, nil
}

func (p *pool[T]) put(t *T) { p.free = append(p.free, t) }
