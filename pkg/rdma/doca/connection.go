//go:build cgo

package doca

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements rdma.Connection. It belongs to the thread that polls its queue, which other
// goroutines notify; only halt may take libdoca's context away from that thread.
type connection struct {
	softrdma.Attached[connection]
	device *device
	domain *domain
	queue  *completionQueue
	rdma   *doca.RDMA
	stream *stream // nil if the peer is a program written for DOCA
	armed  bool

	sends    workqueue.Queue[work]
	receives workqueue.Queue[work]
	reads    int // posted, and not completed

	imports  map[uint32]*doca.MemoryMap // the peer's memory, by its keys
	asking   bool                       // the peer was asked for a key
	answered atomic.Pointer[answer]

	// failure is set once, by any goroutine, when the connection is to end.
	failure atomic.Pointer[outcome]

	halting sync.Mutex
	halted  bool // nothing uses memory any more
}

// outcome is how a connection ends; err is nil for an orderly end.
type outcome struct{ err error }

// work is a posted request.
type work struct {
	request rdma.SendRequest // of a receive, ID and Local
	offset  uint64           // of the local segment in region
	// region is in use until the request has completed. Deregister reads it.
	region atomic.Pointer[region]
	ended  bool
	status rdma.CompletionStatus
	length uint32
}

// newConnection checks config and makes a connection whose context is running, with its receives
// posted.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, ok := config.Domain.(*domain)
	if !ok || domain.device != d {
		return nil, status.Errorf(status.InvalidValue,
			"protection domain is missing or belongs to another device")
	}
	queue, ok := config.Queue.(*completionQueue)
	if !ok || queue.device != d {
		return nil, softrdma.ErrForeignQueue
	}
	if err := d.CheckCounts(config); err != nil {
		return nil, err
	}
	c := &connection{
		device: d, domain: domain, queue: queue,
		sends:    workqueue.NewQueue[work](config.SendRequests),
		receives: workqueue.NewQueue[work](config.ReceiveRequests),
		imports:  make(map[uint32]*doca.MemoryMap),
	}
	c.Open(c, &queue.Queue, config)
	c.Agreed.OutboundReads = config.OutboundReads
	var err error
	c.rdma, err = doca.NewRDMA(doca.RDMAConfig{Device: d.doca, Sends: c.sends.Slots(),
		Receives: c.receives.Slots(), Reads: config.OutboundReads, Wait: d.wait,
		GIDIndex: d.gid, PathMTU: d.options.PathMTU, RNRRetryCount: d.options.RNRRetryCount})
	if err != nil {
		return nil, err
	}
	err = domain.attach(c)
	if err == nil {
		err = c.start(config.Receives)
	}
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// start starts libdoca's context and posts receives.
func (c *connection) start(receives []rdma.ReceiveRequest) error {
	if err := c.rdma.Start(); err != nil {
		return err
	}
	if err := c.await(progress.Running); err != nil {
		return err
	}
	if err := c.PostReceive(receives); err != nil {
		return err
	}
	c.submitReceives()
	return nil
}

const (
	// stateTimeout bounds how long libdoca may take to start or stop a context.
	stateTimeout = 5 * time.Second
	// stateBudget bounds the steps of progress between two looks at the state.
	stateBudget = 64
)

// await makes progress until libdoca's context is in a state.
func (c *connection) await(state progress.State) error {
	deadline := time.Now().Add(stateTimeout)
	for c.rdma.State() != state {
		if c.rdma.Progress(stateBudget) > 0 {
			continue
		}
		if time.Now().After(deadline) {
			return status.Errorf(status.TimeOut, "RDMA context is %v, not %v after %v",
				c.rdma.State(), state, stateTimeout)
		}
		time.Sleep(50 * time.Microsecond) // the slow path of starting and stopping
	}
	return nil
}

// halt ends all use of memory by the connection. Any goroutine may call it, provided that the
// connection is failing.
func (c *connection) halt() error {
	c.halting.Lock()
	defer c.halting.Unlock()
	if c.halted {
		return nil
	}
	for !c.rdma.Revoke() {
		runtime.Gosched() // a turn of the owner is in progress
	}
	if c.rdma.State() != progress.Idle {
		if err := c.rdma.Stop(); err != nil {
			return err
		}
		if err := c.await(progress.Idle); err != nil {
			return err
		}
	}
	c.halted = true
	return nil
}

// discard releases everything of a connection that is not in its queue: it has ended, or was not
// established.
func (c *connection) discard() error {
	c.fail(errDiscarded)
	err := c.halt()
	if err == nil {
		err = c.rdma.Close()
	}
	if err == nil {
		c.rdma.Free()
	}
	for _, m := range c.imports {
		err = errors.Join(err, m.Close())
	}
	if a := c.answered.Swap(&answer{}); a != nil {
		a.release()
	}
	c.imports = nil
	c.domain.detach(c)
	return err
}

var errDiscarded = status.Errorf(status.Shutdown, "the connection was discarded")

// fail makes the queue's thread end the connection. Any goroutine may call it.
func (c *connection) fail(err error) { c.conclude(&outcome{err}) }

// finish is fail for an orderly end by the peer.
func (c *connection) finish() { c.conclude(&outcome{}) }

func (c *connection) conclude(o *outcome) {
	if c.failure.CompareAndSwap(nil, o) {
		c.Notify()
	}
}

// Abort has the effect of a lost network.
func (c *connection) Abort() {
	c.fail(status.Errorf(status.ConnectionAborted, "connection to %v was aborted",
		c.Agreed.Remote))
}

// Close ends the connection at once.
func (c *connection) Close() {
	if c.Phase != softrdma.PhaseOpen {
		return
	}
	c.failure.CompareAndSwap(nil, &outcome{})
	if c.HasArrived() {
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen {
		c.end()
	}
}

// uses reports whether a posted request uses a region. Any goroutine may call it.
func (c *connection) uses(r *region) bool {
	for _, q := range []*workqueue.Queue[work]{&c.sends, &c.receives} {
		for i := range q.Slots() {
			if q.At(uint32(i)).region.Load() == r {
				return true
			}
		}
	}
	return false
}

// hold notes that a request uses a region. Either it sees that the region is being deregistered, or
// Deregister sees the request.
func (w *work) hold(r *region) error {
	w.region.Store(r)
	if r.revoked.Load() {
		w.region.Store(nil)
		return errUnknownKey
	}
	return nil
}

// PostReceive adds receives to the receive queue.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	if c.Phase == softrdma.PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint64(len(requests)) > uint64(c.receives.Room()) {
		return workqueue.ErrReceiveQueueFull
	}
	for i := range requests {
		r := &requests[i]
		w := c.receives.At(c.receives.Tail + uint32(i))
		w.request = rdma.SendRequest{ID: r.ID, Local: r.Local}
		if err := c.take(w, true); err != nil {
			c.drop(&c.receives, i)
			return workqueue.PostError("receive", r.ID, err)
		}
	}
	c.receives.Tail += uint32(len(requests))
	if c.Phase == softrdma.PhaseEnded {
		c.flushReceives()
	}
	return nil
}

// PostSend adds requests to the send queue.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	if c.Phase == softrdma.PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint64(len(requests)) > uint64(c.sends.Room()) {
		return workqueue.ErrSendQueueFull
	}
	reads := 0
	for i := range requests {
		w := c.sends.At(c.sends.Tail + uint32(i))
		w.request = requests[i]
		r := &w.request
		_, err := workqueue.CheckSend(r, c.device.maxMessageSize)
		if r.Opcode == rdma.OpRead {
			if reads++; err == nil && c.reads+reads > c.Agreed.OutboundReads {
				err = workqueue.ErrReadDepth
			}
		}
		if err == nil {
			if err = c.take(w, r.Opcode == rdma.OpRead); err != nil {
				err = workqueue.PostError(r.Opcode.String(), r.ID, err)
			}
		}
		if err != nil {
			c.drop(&c.sends, i)
			return err
		}
	}
	c.reads += reads
	c.sends.Tail += uint32(len(requests))
	if c.Phase == softrdma.PhaseEnded {
		c.flushSends()
	}
	return nil
}

// take finds the memory of a request that is being posted.
func (c *connection) take(w *work, writes bool) error {
	w.ended, w.status, w.length, w.offset = false, rdma.StatusSuccess, 0, 0
	if w.request.Local.Length == 0 {
		return nil
	}
	r, offset, err := c.domain.resolve(&w.request.Local, writes)
	if err != nil {
		return err
	}
	w.offset = offset
	return w.hold(r)
}

// drop takes back the first requests of a post that has failed.
func (c *connection) drop(q *workqueue.Queue[work], count int) {
	for i := range count + 1 {
		q.At(q.Tail + uint32(i)).region.Store(nil)
	}
}

// Flush starts the posted requests.
func (c *connection) Flush() {
	if c.Phase == softrdma.PhaseOpen {
		c.submit()
	}
}

// submit starts what was posted, as far as libdoca accepts it.
func (c *connection) submit() {
	c.submitReceives()
	c.submitSends()
}

// hasUnsubmitted reports whether a turn would submit something. A request that waits for a key does
// not count: the answer notifies.
func (c *connection) hasUnsubmitted() bool {
	return c.receives.Next != c.receives.Tail || c.sends.Next != c.sends.Tail && !c.asking
}

func (w *work) local() doca.Segment {
	r := w.region.Load()
	if r == nil {
		return doca.Segment{}
	}
	return doca.Segment{Map: r.memory, Offset: w.offset, Length: uint64(w.request.Local.Length)}
}

func (c *connection) submitReceives() {
	for q := &c.receives; q.Next != q.Tail; q.Next++ {
		slot := c.sends.Slots() + q.Slot(q.Next)
		err := c.rdma.Submit(doca.RDMAReceive, slot, q.At(q.Next).local(), doca.Segment{})
		if errors.Is(err, status.Again) {
			return
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *connection) submitSends() {
	for q := &c.sends; q.Next != q.Tail && !c.asking; q.Next++ {
		w := q.At(q.Next)
		remote, err := c.remoteOf(&w.request)
		if c.asking {
			return
		}
		if err == nil && w.request.Local.Length == 0 && w.request.Opcode != rdma.OpSend {
			w.ended = true // there is nothing to move
			continue
		}
		if err == nil {
			err = c.rdma.Submit(operations[w.request.Opcode], q.Slot(q.Next), w.local(), remote)
		}
		if errors.Is(err, status.Again) {
			return
		}
		if err != nil {
			w.ended, w.status = true, rdma.StatusRemoteAccess
			c.fail(err)
			return
		}
	}
}

var operations = [...]doca.RDMAOperation{
	rdma.OpSend: doca.RDMASend, rdma.OpWrite: doca.RDMAWrite, rdma.OpRead: doca.RDMARead,
}

// maxImports bounds the regions of the peer that a connection uses.
const maxImports = 256

// remoteOf returns the peer's memory that a Write or Read names. If its key is not known yet,
// remoteOf asks the peer for it, and asking is set until it has answered.
func (c *connection) remoteOf(r *rdma.SendRequest) (doca.Segment, error) {
	if r.Opcode == rdma.OpSend || r.Local.Length == 0 {
		return doca.Segment{}, nil
	}
	m := c.imports[r.RemoteKey]
	if i := (*c.domain.imports.Load())[r.RemoteKey]; c.stream == nil && i != nil {
		m = i.memory
	}
	if m == nil {
		switch {
		case c.stream == nil:
			return doca.Segment{}, errNoSuchMemory
		case len(c.imports) >= maxImports:
			return doca.Segment{}, status.Errorf(status.Full,
				"the connection uses %d regions of its peer already", maxImports)
		}
		c.asking = true
		c.stream.send(frame{frameAsk, binary.LittleEndian.AppendUint32(nil, r.RemoteKey)})
		return doca.Segment{}, nil
	}
	offset := r.RemoteAddress - m.Base()
	if r.RemoteAddress < m.Base() || offset > m.Len() ||
		uint64(r.Local.Length) > m.Len()-offset {
		return doca.Segment{}, status.Errorf(status.IOFailed,
			"%d bytes at %#x are not within the peer's memory", r.Local.Length, r.RemoteAddress)
	}
	return doca.Segment{Map: m, Offset: offset, Length: uint64(r.Local.Length)}, nil
}

// learn takes the peer's answer about a key.
func (c *connection) learn() {
	if !c.asking {
		return
	}
	a := c.answered.Swap(nil)
	if a == nil {
		return
	}
	c.asking = false
	w := c.sends.At(c.sends.Next)
	if a.err == nil && a.key != w.request.RemoteKey {
		a.release()
		a.err = badFrame("an export that was not asked for")
	}
	if a.err != nil {
		w.ended, w.status = true, rdma.StatusRemoteAccess
		c.fail(a.err)
		return
	}
	c.imports[a.key] = a.memory
}

// turnRecords is how many operations one turn of a connection takes from libdoca.
const turnRecords = 64

// turn submits what was posted and collects what has ended.
func (c *connection) turn() {
	c.learn()
	c.submit()
	c.collect()
	if c.failure.Load() != nil {
		c.end()
	}
}

// collect delivers what libdoca has done, and returns whether there was something.
func (c *connection) collect() bool {
	c.rdma.Turn(turnRecords)
	found := false
	for {
		done, ok := c.rdma.Next()
		if !ok {
			break
		}
		found = true
		c.note(&done)
	}
	before := c.queue.Completions.Len()
	c.deliver()
	return found || c.queue.Completions.Len() > before
}

// note records the end of an operation.
func (c *connection) note(done *doca.Worked) {
	q, slot := &c.sends, done.Slot
	if slot >= c.sends.Slots() {
		q, slot = &c.receives, slot-c.sends.Slots()
	}
	w := q.At(uint32(slot))
	w.ended, w.length = true, done.Length
	w.region.Store(nil)
	if done.Err == nil {
		return
	}
	w.status = outcomeOf(q == &c.receives, done.Err)
	if w.status != rdma.StatusFlushed || c.stream == nil {
		c.fail(c.device.withGID(done.Err))
		return
	}
	// The peer has gone. The stream will tell whether that was in order.
	time.AfterFunc(endTimeout, func() { c.fail(c.device.withGID(done.Err)) })
}

// outcomeOf translates an error of libdoca.
func outcomeOf(isReceive bool, err error) rdma.CompletionStatus {
	switch status.CodeOf(err) {
	case status.NotConnected, status.ConnectionReset, status.ConnectionAborted, status.Shutdown:
		return rdma.StatusFlushed
	case status.TooBig:
		if isReceive {
			return rdma.StatusLocalLength
		}
	case status.TimeOut:
		return rdma.StatusRetryExceeded
	}
	if isReceive {
		return rdma.StatusFatal
	}
	return rdma.StatusRemoteAccess
}

// deliver completes the requests that have ended, in the order in which they were posted. One that
// the end of the connection has flushed waits for that end.
func (c *connection) deliver() {
	for q := &c.receives; q.Head != q.Next; {
		w := q.At(q.Head)
		if !w.ended || w.status == rdma.StatusFlushed {
			break
		}
		c.complete(q, w, rdma.OpReceive)
	}
	for q := &c.sends; q.Head != q.Next; {
		w := q.At(q.Head)
		if !w.ended || w.status == rdma.StatusFlushed {
			break
		}
		c.completeSend(w)
	}
}

// complete removes w, the request at the head of q.
func (c *connection) complete(q *workqueue.Queue[work], w *work, opcode rdma.Opcode) {
	w.region.Store(nil)
	*q.Complete(&c.queue.Completions) = rdma.Completion{ID: w.request.ID,
		Context: c.Context, Length: w.length, Opcode: opcode, Status: w.status}
}

func (c *connection) completeSend(w *work) {
	if w.request.Opcode == rdma.OpRead {
		c.reads--
	}
	if w.request.Silent && w.status == rdma.StatusSuccess {
		w.region.Store(nil)
		c.sends.CompleteSilently()
		return
	}
	c.complete(&c.sends, w, w.request.Opcode)
}

// end ends the connection: what has arrived is delivered, memory is out of use, and what is left is
// flushed.
func (c *connection) end() {
	for c.collect() {
	}
	reason := c.failure.Load().err
	if err := c.halt(); err != nil {
		reason = errors.Join(reason, err)
	}
	c.SetErr(reason)
	if c.stream != nil {
		c.stream.send(encodeEnd(reason))
	}
	c.Phase = softrdma.PhaseEnded
	c.flushReceives()
	c.flushSends()
	c.queue.remove(c)
}

// flushReceives completes the receives that have not ended.
func (c *connection) flushReceives() {
	for q := &c.receives; q.Head != q.Tail; {
		w := q.At(q.Head)
		flush(w)
		c.complete(q, w, rdma.OpReceive)
	}
	c.receives.Next = c.receives.Tail
}

func (c *connection) flushSends() {
	for q := &c.sends; q.Head != q.Tail; {
		w := q.At(q.Head)
		flush(w)
		c.completeSend(w)
	}
	c.sends.Next = c.sends.Tail
}

func flush(w *work) {
	if !w.ended {
		w.ended, w.status = true, rdma.StatusFlushed
	}
}
