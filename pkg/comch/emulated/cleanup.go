package emulated

import (
	"sync"
	"time"
)

// cleanupQueue releases what a peer has passed or held, one task at a time, on a goroutine of its
// own. Closing a descriptor from the peer may take as long as the peer likes: the peer may have
// queued lingering sockets in it, or it may belong to a file system that the peer serves. The zero
// value is ready to use, by any goroutine.
type cleanupQueue struct {
	mu      sync.Mutex
	tasks   []func()
	working bool // a goroutine is running the tasks
}

// add queues a task. It does not block.
func (d *cleanupQueue) add(task func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks = append(d.tasks, task)
	if !d.working {
		d.working = true
		go d.work()
	}
}

func (d *cleanupQueue) close(descriptor int) {
	d.add(func() { closeDescriptor(descriptor) })
}

func (d *cleanupQueue) work() {
	for {
		d.mu.Lock()
		if len(d.tasks) == 0 {
			d.tasks = nil
			d.working = false
			d.mu.Unlock()
			return
		}
		task := d.tasks[0]
		d.tasks[0] = nil
		d.tasks = d.tasks[1:]
		d.mu.Unlock()
		task()
	}
}

// cleanupTimeout bounds how long a new ring waits for old rings to be freed.
const cleanupTimeout = time.Second

// wait waits until all tasks added so far are done, up to bound.
func (d *cleanupQueue) wait(bound time.Duration) {
	settled := make(chan struct{})
	d.add(func() { close(settled) })
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-settled:
	case <-timer.C:
	}
}
