package emulated

import (
	"sync"
	"time"
)

// cleanupQueue releases what a peer has passed or used, one task at a time, on a goroutine of its
// own. Closing a descriptor from the peer may take as long as the peer likes: its file may be a
// socket in which the peer has queued lingering sockets, or may belong to a file system that the
// peer serves. The zero value is ready to use, by any goroutine.
type cleanupQueue struct {
	mu      sync.Mutex
	tasks   []func()
	working bool // a goroutine is running the tasks
}

// add queues a task. It does not block.
func (q *cleanupQueue) add(task func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tasks = append(q.tasks, task)
	if !q.working {
		q.working = true
		go q.work()
	}
}

func (q *cleanupQueue) close(descriptor int) {
	q.add(func() { closeDescriptor(descriptor) })
}

func (q *cleanupQueue) work() {
	for {
		q.mu.Lock()
		if len(q.tasks) == 0 {
			q.tasks = nil
			q.working = false
			q.mu.Unlock()
			return
		}
		task := q.tasks[0]
		q.tasks[0] = nil
		q.tasks = q.tasks[1:]
		q.mu.Unlock()
		task()
	}
}

// cleanupTimeout bounds how long a new ring waits for old rings to be freed.
const cleanupTimeout = time.Second

// wait waits until all tasks added so far are done, up to bound.
func (q *cleanupQueue) wait(bound time.Duration) {
	done := make(chan struct{})
	q.add(func() { close(done) })
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
