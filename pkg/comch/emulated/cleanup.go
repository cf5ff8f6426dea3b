// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// cleanupQueue releases what the peer of one connection has passed or used, one task at a time, on
// a goroutine of its own. Closing a descriptor from the peer may take as long as the peer likes:
// its file may be a socket in which the peer has queued lingering sockets, or may belong to a file
// system that the peer serves. So may freeing a ring, whose file the peer can lock.
//
// Three bounds keep that from becoming anyone else's problem. What has not been released stays
// charged to the connection's account. The reading goroutine waits while the queue is long: see
// connection.awaitCleanup. And a connection that has ended counts as a client of its server until
// its queue is empty: see server.disposing.
//
// The zero value is ready to use, by any goroutine.
type cleanupQueue struct {
	account *account // of the connection; nil in tests
	// onBusy, if set, is called with every change once the connection has ended. It must not block.
	onBusy func(busy bool)

	mu      sync.Mutex
	tasks   []func()
	working bool          // a goroutine is running the tasks
	busy    int           // tasks and holds
	ended   bool          // the connection has ended
	changed chan struct{} // closed when a task is done; nil if nobody waits
}

// add queues a task. It does not block.
func (q *cleanupQueue) add(task func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.acquireLocked()
	q.tasks = append(q.tasks, task)
	if !q.working {
		q.working = true
		go q.work()
	}
}

// close closes a descriptor and takes it from the account. It ignores a negative one.
func (q *cleanupQueue) close(descriptor int) {
	if descriptor < 0 {
		return
	}
	q.add(func() {
		closeDescriptor(descriptor)
		q.account.release(holdings{descriptors: 1})
	})
}

// closeAll closes the remaining descriptors of a frame.
func (q *cleanupQueue) closeAll(d *descriptors) {
	for _, descriptor := range d.list {
		q.close(descriptor)
	}
	d.list = nil
}

// free frees a ring and takes it from the account.
func (q *cleanupQueue) free(role role, region *memory.Region) {
	q.add(func() {
		size := int(region.Len())
		freeRing(role, region)
		q.account.release(holdings{descriptors: 1, ringBytes: size})
	})
}

// acquire makes the queue count as busy until release.
func (q *cleanupQueue) acquire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.acquireLocked()
}

func (q *cleanupQueue) acquireLocked() {
	q.busy++
	if q.busy == 1 && q.ended && q.onBusy != nil {
		q.onBusy(true)
	}
}

func (q *cleanupQueue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked()
}

func (q *cleanupQueue) releaseLocked() {
	q.busy--
	if q.busy == 0 && q.ended && q.onBusy != nil {
		q.onBusy(false)
	}
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// end tells the queue that the connection has ended. The caller has a hold.
func (q *cleanupQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	if q.onBusy != nil {
		q.onBusy(true)
	}
}

func (q *cleanupQueue) work() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.tasks) > 0 {
		task := q.tasks[0]
		q.tasks[0] = nil
		q.tasks = q.tasks[1:]
		q.mu.Unlock()
		task()
		q.mu.Lock()
		q.releaseLocked()
	}
	q.tasks = nil
	q.working = false
}

// waitFor waits until at most limit tasks and holds are left, up to bound or until done is closed.
// It reports whether that is so.
func (q *cleanupQueue) waitFor(limit int, bound time.Duration, done <-chan struct{}) bool {
	var timer *time.Timer
	for {
		changed := q.watch(limit)
		if changed == nil {
			return true
		}
		if timer == nil {
			timer = time.NewTimer(bound)
			defer timer.Stop()
		}
		select {
		case <-changed:
		case <-done:
			return false
		case <-timer.C:
			return false
		}
	}
}

// watch returns nil if at most limit tasks and holds are left, otherwise a channel that is closed
// when one of them is done.
func (q *cleanupQueue) watch(limit int) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy <= limit {
		return nil
	}
	if q.changed == nil {
		q.changed = make(chan struct{})
	}
	return q.changed
}
