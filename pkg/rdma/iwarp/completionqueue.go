package iwarp

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// completionQueue implements rdma.CompletionQueue. It belongs to the thread
// that polls it, but for inbox and alarm.
type completionQueue struct {
	device      *device
	poller      *poller
	completions completionRing
	active      []*connection // those that are open
	slots       []*connection // by their number at the poller
	ended       []*connection // OpDisconnected not yet collected
	// waiting are connections with something to transmit; spare is the list
	// that it takes turns with.
	waiting []*connection
	spare   []*connection
	staging []byte
	holds   holds
	company company

	// alarm says that another thread has something for this one: connections
	// in the inbox, or aborted ones.
	alarm atomic.Bool
	inbox struct {
		sync.Mutex
		connections []*connection
		closed      bool
	}
	attached atomic.Int32 // connections whose OpDisconnected is not collected
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	return &completionQueue{
		device: d, poller: p, completions: newCompletionRing(capacity), staging: make([]byte, stagingBytes),
	}, nil
}

// Close implements rdma.CompletionQueue.
func (q *completionQueue) Close() error {
	q.inbox.Lock()
	defer q.inbox.Unlock()
	if q.inbox.closed {
		return nil
	}
	if n := q.attached.Load(); n > 0 {
		return status.Errorf(status.InUse, "close completion queue: %d connections are attached", n)
	}
	q.inbox.closed = true
	q.poller.close()
	q.device.uses.release()
	return nil
}

// attach gives an established connection to the queue's thread. Any goroutine
// may call it.
func (q *completionQueue) attach(c *connection) error {
	c.slot = unassigned
	q.inbox.Lock()
	defer q.inbox.Unlock()
	if q.inbox.closed {
		return status.Errorf(status.BadState, "completion queue is closed")
	}
	q.attached.Add(1)
	q.inbox.connections = append(q.inbox.connections, c)
	q.wakeUp()
	return nil
}

// alert is wakeUp for a connection, which may outlive its queue: the number
// of the queue's descriptor may belong to somebody else by then.
func (q *completionQueue) alert() {
	q.inbox.Lock()
	defer q.inbox.Unlock()
	if !q.inbox.closed {
		q.wakeUp()
	}
}

// wakeUp makes the queue's thread look at the inbox and for aborted
// connections, also if it sleeps. The inbox is locked.
func (q *completionQueue) wakeUp() {
	q.alarm.Store(true)
	q.poller.ring()
}

// unassigned is the slot of a connection that is still in the inbox.
const unassigned = -2

// answer does what wakeUp was called for.
func (q *completionQueue) answer() {
	q.poller.silence()
	// The alarm goes off before the work is looked for: what comes later sets
	// it again.
	q.alarm.Store(false)
	q.empty()
	for i := len(q.active) - 1; i >= 0; i-- {
		if c := q.active[i]; c.aborted.Load() {
			c.end(status.Errorf(status.ConnectionAborted, "connection to %v was aborted", c.parameters.Remote), rdma.StatusFlushed)
		}
	}
}

// empty takes the connections out of the inbox.
func (q *completionQueue) empty() {
	q.inbox.Lock()
	arrived := q.inbox.connections
	q.inbox.connections = nil
	q.inbox.Unlock()
	for _, c := range arrived {
		c.slot = q.freeSlot(c)
		q.active = append(q.active, c)
		if err := q.poller.add(c.socket, c.slot); err != nil {
			c.end(err, rdma.StatusFatal)
			continue
		}
		q.list(c)
	}
}

func (q *completionQueue) freeSlot(c *connection) int32 {
	for i, used := range q.slots {
		if used == nil {
			q.slots[i] = c
			return int32(i)
		}
	}
	q.slots = append(q.slots, c)
	return int32(len(q.slots) - 1)
}

// release forgets an open connection that is about to close its socket.
func (q *completionQueue) release(c *connection) {
	q.poller.remove(c.socket)
	q.slots[c.slot] = nil
	for i, other := range q.active {
		if other == c {
			last := len(q.active) - 1
			q.active[i], q.active[last] = q.active[last], nil
			q.active = q.active[:last]
			break
		}
	}
	q.ended = append(q.ended, c)
}

// list notes that a connection has something to transmit.
func (q *completionQueue) list(c *connection) {
	if !c.listed {
		c.listed = true
		q.waiting = append(q.waiting, c)
	}
}

// block and unblock note that a socket is full, and that it no longer is.
func (q *completionQueue) block(c *connection) {
	c.transmitter.blocked = true
	if err := q.poller.watchWritable(c.socket, c.slot, true); err != nil {
		c.end(err, rdma.StatusFatal)
	}
}

func (q *completionQueue) unblock(c *connection) {
	c.transmitter.blocked = false
	if err := q.poller.watchWritable(c.socket, c.slot, false); err != nil {
		c.end(err, rdma.StatusFatal)
	}
}
