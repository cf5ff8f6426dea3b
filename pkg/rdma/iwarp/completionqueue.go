package iwarp

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
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
	// scheduled are connections with something to transmit; spare is the list
	// that it takes turns with.
	scheduled []*connection
	spare     []*connection
	staging   []byte
	regions   acquiredRegions
	fairness  fairness

	// notified says that another thread has something for this one: connections
	// in the inbox, or aborted ones.
	notified atomic.Bool
	inbox    struct {
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

// Poll implements rdma.CompletionQueue. While as many completions are ready
// as the caller takes, it does nothing else: a caller that is behind does not
// make more work for itself.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.len() < len(completions) {
		q.progress()
	}
	n := q.completions.collect(completions)
	// OpDisconnected comes after all other completions.
	for n < len(completions) && len(q.ended) > 0 {
		completions[n] = q.detach()
		n++
	}
	return n
}

// progress drives all connections once.
func (q *completionQueue) progress() {
	if q.fairness.yieldDue() {
		progress.Yield()
	}
	if q.notified.Load() {
		q.handleNotification()
	}
	q.transmitScheduled()
	if len(q.active) == 0 {
		return
	}
	// The kernel says which sockets have something to do. Looking at its list
	// costs about half of what one socket does that is read in vain, so there is
	// no number of connections for which trying them would be cheaper.
	events := q.poller.ready(len(q.active) + 1)
	for i := range events {
		e := &events[i]
		if e.Fd == wakeSlot {
			q.poller.clearWake()
			continue
		}
		c := q.slots[e.Fd]
		if c != nil && writable(e) && c.transmitter.blocked {
			q.setBlocked(c, false)
			c.Flush()
		}
		if c != nil && readable(e) && c.phase == phaseOpen {
			c.receive()
		}
	}
	q.transmitScheduled() // answers to Reads that have just arrived
}

func (q *completionQueue) transmitScheduled() {
	if len(q.scheduled) == 0 {
		return
	}
	list := q.scheduled
	q.scheduled = q.spare[:0]
	for i, c := range list {
		list[i] = nil
		c.scheduled = false
		c.Flush()
	}
	q.spare = list[:0]
}

// detach lets go of the connection that ended last.
func (q *completionQueue) detach() rdma.Completion {
	last := len(q.ended) - 1
	c := q.ended[last]
	q.ended[last] = nil
	q.ended = q.ended[:last]
	c.phase = phaseDetached
	c.domain.uses.release()
	q.attached.Add(-1)
	outcome := rdma.StatusSuccess
	if c.Err() != nil {
		outcome = rdma.StatusFatal
	}
	return rdma.Completion{Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome}
}

// Descriptor implements progress.Waiter.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. Nothing has to be announced: the descriptor
// is readable whenever a socket is, or the wake-up descriptor.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.ended) > 0 || len(q.scheduled) > 0 || q.notified.Load() {
		return false
	}
	events := q.poller.ready(1)
	if len(events) == 1 && events[0].Fd == wakeSlot {
		// Maybe the late half of a wake-up that Poll has already answered.
		q.poller.clearWake()
	}
	return len(events) == 0
}

// Disarm implements progress.Waiter.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter. What made the descriptor readable is
// consumed by Poll, but for a wake-up that was answered already.
func (q *completionQueue) Drain() { q.poller.clearWake() }

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
	q.notifyLocked()
	return nil
}

// notify is wakeUp for a connection, which may outlive its queue: the number
// of the queue's descriptor may belong to somebody else by then.
func (q *completionQueue) notify() {
	q.inbox.Lock()
	defer q.inbox.Unlock()
	if !q.inbox.closed {
		q.notifyLocked()
	}
}

// notifyLocked makes the queue's thread look at the inbox and for aborted
// connections, also if it sleeps. The inbox is locked.
func (q *completionQueue) notifyLocked() {
	q.notified.Store(true)
	q.poller.wake()
}

// unassigned is the slot of a connection that is still in the inbox.
const unassigned = -2

// handleNotification does what wakeUp was called for.
func (q *completionQueue) handleNotification() {
	q.poller.clearWake()
	// The alarm goes off before the work is looked for: what comes later sets
	// it again.
	q.notified.Store(false)
	q.processInbox()
	for i := len(q.active) - 1; i >= 0; i-- {
		if c := q.active[i]; c.aborted.Load() {
			c.end(status.Errorf(status.ConnectionAborted, "connection to %v was aborted", c.parameters.Remote), rdma.StatusFlushed)
		}
	}
}

// processInbox takes the connections out of the inbox.
func (q *completionQueue) processInbox() {
	q.inbox.Lock()
	arrived := q.inbox.connections
	q.inbox.connections = nil
	q.inbox.Unlock()
	for _, c := range arrived {
		c.slot = q.assignSlot(c)
		q.active = append(q.active, c)
		if err := q.poller.add(c.socket, c.slot); err != nil {
			c.end(err, rdma.StatusFatal)
			continue
		}
		q.schedule(c)
	}
}

func (q *completionQueue) assignSlot(c *connection) int32 {
	for i, used := range q.slots {
		if used == nil {
			q.slots[i] = c
			return int32(i)
		}
	}
	q.slots = append(q.slots, c)
	return int32(len(q.slots) - 1)
}

// remove forgets an open connection that is about to close its socket.
func (q *completionQueue) remove(c *connection) {
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

// schedule notes that a connection has something to transmit.
func (q *completionQueue) schedule(c *connection) {
	if !c.scheduled {
		c.scheduled = true
		q.scheduled = append(q.scheduled, c)
	}
}

// setBlocked notes whether the connection's socket is full.
func (q *completionQueue) setBlocked(c *connection, blocked bool) {
	c.transmitter.blocked = blocked
	if err := q.poller.watchWritable(c.socket, c.slot, blocked); err != nil {
		c.end(err, rdma.StatusFatal)
	}
}

// completionEntry is a completion on its way to the caller, with what its
// collection gives back to the connection.
type completionEntry struct {
	completion rdma.Completion
	connection *connection
	slots      uint32 // of the send queue or of the receive queue
}

// initialCompletions is the room that a queue begins with. Whoever polls
// hardly ever leaves more behind; and what a queue was made for would be
// scanned by every garbage collection, which on its way stops the data path.
const initialCompletions = 1024

// completionRing queues completions. It grows with the requests that the
// connections of a queue have outstanding; that is its bound, for a request's
// slot is not free before its completion is collected.
type completionRing struct {
	entries []completionEntry
	head    uint32
	tail    uint32
}

func newCompletionRing(capacity int) completionRing {
	return completionRing{entries: make([]completionEntry, ringSize(min(capacity, initialCompletions)))}
}

func (r *completionRing) len() int { return int(r.tail - r.head) }

func (r *completionRing) push(e completionEntry) {
	if r.len() == len(r.entries) {
		r.grow()
	}
	r.entries[r.tail&uint32(len(r.entries)-1)] = e
	r.tail++
}

func (r *completionRing) grow() {
	larger := make([]completionEntry, 2*len(r.entries))
	n := 0
	for ; r.head != r.tail; r.head++ {
		larger[n] = r.entries[r.head&uint32(len(r.entries)-1)]
		n++
	}
	r.entries, r.head, r.tail = larger, 0, uint32(n)
}

// collect moves completions to the caller and frees their slots.
func (r *completionRing) collect(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		e := &r.entries[r.head&uint32(len(r.entries)-1)]
		completions[i] = e.completion
		if e.completion.Opcode == rdma.OpReceive {
			e.connection.receives.freed += e.slots
		} else {
			e.connection.sends.freed += e.slots
		}
		// A connection that is gone must not be kept alive by old entries.
		e.connection = nil
		r.head++
	}
	return n
}

// Sessions share threads, and their threads share cores. Where there is always
// something to do, because of large payloads or of many sessions, a thread never
// gives its core away for want of work, and the kernel takes the core away at a
// tick, milliseconds later: so long would another session wait. Therefore a
// thread that has company gives its core away by itself. One that has none does
// not: it would pay for a turn of whoever polls there in vain.
const (
	// contendedTurnBytes is how many bytes one turn of a connection moves if
	// there is company.
	contendedTurnBytes = 128 << 10
	// yieldBytes is after how many bytes a thread gives its core away.
	yieldBytes = 64 << 10
	// contendedYields is how often it does so after the last sign of company,
	// which may be waiting for this very core.
	contendedYields = 64
)

// fairness is what a completion queue knows about other sessions at work.
type fairness struct {
	yieldsLeft int // how many more times to give the core away
	moved      int // moved since the last time
}

// countMoved notes that n bytes of the connection were received or sent.
func (c *connection) countMoved(n int) {
	q := c.queue
	if last := q.device.lastActive.Load(); last != c.domain {
		q.device.lastActive.Store(c.domain)
		if last != nil {
			q.fairness.yieldsLeft = contendedYields
		}
	}
	q.fairness.moved += n
}

// turnBudget is how much a connection may move in one turn, of usually so many
// bytes.
func (q *completionQueue) turnBudget(usual int) int {
	if q.fairness.yieldsLeft > 0 {
		return contendedTurnBytes
	}
	return usual
}

// yieldDue tells whether to give the core away now, and counts on that.
func (c *fairness) yieldDue() bool {
	if c.yieldsLeft == 0 || c.moved < yieldBytes {
		return false
	}
	c.moved = 0
	c.yieldsLeft--
	return true
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
