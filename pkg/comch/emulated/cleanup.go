package emulated

import (
	"sync"
	"time"
)

// disposal lets go of what a peer has had in its hands, one thing after
// another and on no thread that serves others. Closing such a descriptor may
// take as long as the peer likes: the peer may have queued sockets in it that
// linger, or it may belong to a file system of the peer's. The zero value is
// ready for use by any goroutine.
type cleanupQueue struct {
	mu      sync.Mutex
	tasks   []func()
	working bool // a goroutine takes tasks until there are none
}

// add has task called soon. It does not block.
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

// disposalTimeout bounds how long new memory is delayed by old memory that has
// not been let go of yet.
const cleanupTimeout = time.Second

// settle waits until everything added so far is done, but not beyond bound.
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
