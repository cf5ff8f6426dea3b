package contexts

import (
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
func (t *task) take() {
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
		t.context.engine.Do(t.context.settle)
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

// fifo is a queue that keeps its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) length() int { return len(f.items) - f.head }

func (f *fifo[T]) push(item T) {
	if f.head > 0 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, item)
}

func (f *fifo[T]) first() T { return f.items[f.head] }

func (f *fifo[T]) pop() T {
	var zero T
	item := f.items[f.head]
	f.items[f.head] = zero
	if f.head++; f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return item
}
