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

// Poll implements rdma.CompletionQueue. While as many completions are ready
// as the caller takes, it does nothing else: a caller that is behind does not
// make more work for itself.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.len() < len(completions) {
		q.progress()
	}
	return q.collect(completions)
}

// progress drives all connections once.
func (q *completionQueue) progress() {
	q.giveWay()
	if q.alarm.Load() {
		q.answer()
	}
	q.transmitWaiting()
	if len(q.active) > 0 {
		q.pollReady()
		q.transmitWaiting() // answers to Reads that have just arrived
	}
}

// pollReady lets the kernel say which sockets have something to do. Looking at
// its list costs about half of what one socket does that is read in vain, so
// there is no number of connections for which trying them would be cheaper.
func (q *completionQueue) pollReady() {
	events := q.poller.ready(len(q.active) + 1)
	for i := range events {
		e := &events[i]
		if e.Fd == wakeSlot {
			q.poller.silence()
			continue
		}
		c := q.slots[e.Fd]
		if c != nil && writable(e) && c.transmitter.blocked {
			q.unblock(c)
			c.Flush()
		}
		if c != nil && readable(e) && c.phase == phaseOpen {
			c.receive()
		}
	}
}

func (q *completionQueue) transmitWaiting() {
	if len(q.waiting) == 0 {
		return
	}
	list := q.waiting
	q.waiting = q.spare[:0]
	for i, c := range list {
		list[i] = nil
		c.listed = false
		c.Flush()
	}
	q.spare = list[:0]
}

// collect hands out completions, and OpDisconnected after all others.
func (q *completionQueue) collect(completions []rdma.Completion) int {
	n := q.completions.collect(completions)
	for n < len(completions) && len(q.ended) > 0 {
		completions[n] = q.detach()
		n++
	}
	return n
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
	if q.completions.len() > 0 || len(q.ended) > 0 || len(q.waiting) > 0 || q.alarm.Load() {
		return false
	}
	events := q.poller.ready(1)
	if len(events) == 1 && events[0].Fd == wakeSlot {
		// Maybe the late half of a wake-up that Poll has already answered.
		q.poller.silence()
	}
	return len(events) == 0
}

// Disarm implements progress.Waiter.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter. What made the descriptor readable is
// consumed by Poll, but for a wake-up that was answered already.
func (q *completionQueue) Drain() { q.poller.silence() }

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
	// companyTurnBytes is how many bytes one turn of a connection moves if
	// there is company.
	companyTurnBytes = 128 << 10
	// yieldBytes is after how many bytes a thread gives its core away.
	yieldBytes = 64 << 10
	// companyYields is how often it does so after the last sign of company,
	// which may be waiting for this very core.
	companyYields = 64
)

// company is what a completion queue knows about other sessions at work.
type company struct {
	yields int // how many more times to give the core away
	bytes  int // moved since the last time
}

// moved notes that n bytes of the connection were received or sent.
func (c *connection) moved(n int) {
	q := c.queue
	if last := q.device.mover.Load(); last != c.domain {
		q.device.mover.Store(c.domain)
		if last != nil {
			q.company.yields = companyYields
		}
	}
	q.company.bytes += n
}

// turnBytes is how much a connection may move in one turn, of usually so many
// bytes.
func (q *completionQueue) turnBytes(usual int) int {
	if q.company.yields > 0 {
		return companyTurnBytes
	}
	return usual
}

// giveWay gives the core away if it is time to.
func (q *completionQueue) giveWay() {
	if q.company.due() {
		progress.Yield()
	}
}

// due tells whether to give the core away now, and counts on that.
func (c *company) due() bool {
	if c.yields == 0 || c.bytes < yieldBytes {
		return false
	}
	c.bytes = 0
	c.yields--
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
