//go:build cgo

package verbs

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// PostSend implements rdma.Connection. Flush, or the next Poll, posts all requests since the last
// flush to the device, as one chain.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	c.openIfEstablished()
	if c.phase == phaseDetached {
		return workqueue.ErrDetached
	}
	r := &c.sends
	if uint32(len(requests)) > r.Room() {
		return workqueue.ErrSendQueueFull
	}
	before, reads := len(c.unflushed), 0
	for i := range requests {
		if err := c.prepareSend(&requests[i], r.Tail+uint32(i)); err != nil {
			c.unflushed = c.unflushed[:before]
			return err
		}
		if requests[i].Opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && c.phase == phaseOpen && c.reads+reads > c.parameters.OutboundReads {
		c.unflushed = c.unflushed[:before]
		return workqueue.ErrReadDepth
	}
	c.reads += reads
	r.Tail += uint32(len(requests))
	if c.phase == phaseOpen {
		if !c.listed {
			c.listed = true
			c.queue.unflushed = append(c.queue.unflushed, c)
		}
		return nil
	}
	c.unflushed = c.unflushed[:0]
	if c.phase == phaseClosed {
		c.completeAllSends()
	}
	return nil
}

// prepareSend checks a request, puts it into the ring, and appends it to unflushed.
func (c *connection) prepareSend(r *rdma.SendRequest, index uint32) error {
	work := ibv.SendWork{
		WorkID:        sendWorkID(c.token, index),
		Address:       r.Local.Address,
		Length:        r.Local.Length,
		LocalKey:      r.Local.Key,
		RemoteAddress: r.RemoteAddress,
		RemoteKey:     r.RemoteKey,
	}
	switch r.Opcode {
	case rdma.OpSend:
		work.Opcode = ibv.WorkSend
	case rdma.OpWrite:
		work.Opcode = ibv.WorkWrite
	case rdma.OpRead:
		work.Opcode = ibv.WorkRead
	}
	rights, err := workqueue.CheckSend(r,
		uint32(min(c.device.limits.MessageBytes, maxMessage)))
	if err != nil {
		return err
	}
	region, err := c.domain.resolve(&r.Local, rights)
	if err != nil {
		return workqueue.PostError(r.Opcode.String(), r.ID, err)
	}
	if !r.Silent || r.Opcode == rdma.OpRead {
		work.Flags = ibv.Signaled
	}
	// The CPU reads inline bytes, and would fault on memory that another process has made
	// inaccessible.
	if region != nil && !region.untrusted && r.Opcode != rdma.OpRead &&
		int(r.Local.Length) <= c.qp.InlineBytes {
		work.Flags |= ibv.Inline
	}
	*c.sends.At(index) = sendEntry{id: r.ID, opcode: r.Opcode, silent: r.Silent}
	c.unflushed = append(c.unflushed, work)
	return nil
}

// Flush posts to the device what PostSend has added since the last flush.
func (c *connection) Flush() {
	c.openIfEstablished()
	c.flush()
}

// flush posts the unflushed requests to the device, unless the connection is ending.
func (c *connection) flush() {
	if len(c.unflushed) == 0 || c.phase != phaseOpen {
		return
	}
	work := c.unflushed
	c.unflushed = c.unflushed[:0]
	if err := c.qp.PostSend(work); err != nil {
		c.beginClose(err)
	}
}

// PostReceive implements rdma.Connection. It posts the receives to the device at once, without
// waiting for Flush.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	c.openIfEstablished()
	if c.phase == phaseDetached {
		return workqueue.ErrDetached
	}
	work, err := c.prepareReceives(requests)
	if err != nil || len(work) == 0 {
		return err
	}
	switch c.phase {
	case phaseOpen:
		if err := c.qp.PostReceive(work); err != nil {
			c.beginClose(err)
		}
	case phaseClosed:
		c.completeAllReceives()
	}
	return nil
}

// prepareReceives puts receives into the ring and returns the work requests for the device, which
// are valid until the next call.
func (c *connection) prepareReceives(requests []rdma.ReceiveRequest) ([]ibv.ReceiveWork, error) {
	r := &c.receives
	if uint32(len(requests)) > r.Room() {
		return nil, workqueue.ErrReceiveQueueFull
	}
	for i := range requests {
		request := &requests[i]
		if _, err := c.domain.resolve(&request.Local, memory.LocalWrite); err != nil {
			return nil, workqueue.PostError("receive", request.ID, err)
		}
		index := r.Tail + uint32(i)
		*r.At(index) = receiveEntry{id: request.ID}
		c.scratch[i] = ibv.ReceiveWork{
			WorkID:   receiveWorkID(c.token, index),
			Address:  request.Local.Address,
			Length:   request.Local.Length,
			LocalKey: request.Local.Key,
		}
	}
	r.Tail += uint32(len(requests))
	return c.scratch[:len(requests)], nil
}

// Poll implements rdma.CompletionQueue. If the completion ring already holds enough completions for
// the caller, Poll does not touch the device. The OpDisconnected of a connection follows all its
// other completions.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.Len() < len(completions) {
		q.progress()
	}
	n := q.completions.Collect(completions)
	for ; n < len(completions) && len(q.disconnected) > 0; n++ {
		last := len(q.disconnected) - 1
		c := q.disconnected[last]
		q.disconnected[last] = nil
		q.disconnected = q.disconnected[:last]
		c.phase = phaseDetached
		q.stopPolling(c.deviceQueue)
		q.detach(c)
		c.domain.release()
		outcome := rdma.StatusSuccess
		if c.Err() != nil {
			outcome = rdma.StatusFatal
		}
		completions[n] = rdma.Completion{
			Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome,
		}
	}
	return n
}

// progress flushes the connections, polls each device queue once, and moves connections towards
// their end.
func (q *completionQueue) progress() {
	if q.wakePending.Load() {
		q.handleWake()
	}
	for i, c := range q.unflushed {
		q.unflushed[i] = nil
		c.listed = false
		c.flush()
	}
	q.unflushed = q.unflushed[:0]
	// Completions that Arm polled earlier say nothing about the present.
	if q.next < q.end {
		q.dispatchPolled()
		return
	}
	// A connection that opens meanwhile may append to polling.
	empty := true
	for i := 0; i < len(q.polling); i++ {
		q.pollDevice(q.polling[i])
		empty = empty && q.end < len(q.polled)
		q.dispatchPolled()
	}
	// A queue was empty if the poll above returned fewer completions than it asked for.
	if !empty {
		return
	}
	for _, dq := range q.polling {
		// No completions of detached connections are left, so their room is free again.
		if dq.released.Load() > 0 {
			q.mu.Lock()
			dq.reserved -= int(dq.released.Swap(0))
			q.mu.Unlock()
		}
	}
	for len(q.closing) > 0 {
		q.closing[len(q.closing)-1].finishClose()
	}
}

// handleWake handles what other threads called wake for: finished handshakes and interruptions.
func (q *completionQueue) handleWake() {
	q.poller.clear()
	// Clear the flag before looking: anything that comes later sets it again.
	q.wakePending.Store(false)
	for _, c := range *q.slots.Load() {
		if c == nil {
			continue
		}
		c.openIfEstablished()
		cause := c.interruption.Load()
		switch {
		case cause == nil || c.phase != phaseOpen:
		case errors.Is(*cause, errPeerDisconnected):
			c.beginClose(c.disconnectReason())
		default:
			c.beginClose(*cause)
		}
	}
}

// pollDevice polls a device queue into polled, whose entries must all have been dispatched.
func (q *completionQueue) pollDevice(dq *deviceQueue) {
	n, err := dq.cq.Poll(q.polled[:])
	if err != nil {
		q.fail(err)
	}
	q.next, q.end = 0, n
}

func (q *completionQueue) dispatchPolled() {
	for ; q.next < q.end; q.next++ {
		q.dispatch(&q.polled[q.next])
	}
}

// fail ends all connections of a completion queue that has failed.
func (q *completionQueue) fail(err error) {
	q.device.log.Error("completion queue failed", zap.Error(err))
	for _, c := range *q.slots.Load() {
		if c != nil {
			c.interrupt(fmt.Errorf("completion queue failed: %w", err))
		}
	}
}

// dispatch records a completion from the device with its connection, and delivers all completions
// of the connection that have become known.
func (q *completionQueue) dispatch(w *ibv.Completion) {
	token, index, receive := splitWorkID(w.WorkID)
	slots, slot := *q.slots.Load(), slotOf(token)
	if slot >= len(slots) || slots[slot] == nil || slots[slot].token != token {
		return // left over from a connection that no longer exists
	}
	c := slots[slot]
	c.openIfEstablished()
	if c.phase == phaseClosed {
		return // all its requests have completed as flushed
	}
	outcome := outcomeOf(w.Status)
	opcode, id := rdma.OpReceive, uint64(0)
	switch {
	case receive && c.receives.IsOutstanding(index):
		c.receives.report(index, w.Length, outcome)
		id = c.receives.At(index).id
	case !receive && c.sends.IsOutstanding(index):
		c.sends.report(index, outcome)
		opcode, id = c.sends.At(index).opcode, c.sends.At(index).id
	default:
		return
	}
	if outcome != rdma.StatusSuccess {
		c.requestFailed(opcode, id, w)
	}
	if c.phase != phaseConnecting {
		c.deliver()
	}
}

// requestFailed ends the connection because of a failed request. The failure of a flushed request
// does not show why the connection failed; usually the connection manager is about to report that.
func (c *connection) requestFailed(opcode rdma.Opcode, id uint64, w *ibv.Completion) {
	switch {
	case c.phase == phaseConnecting: // the handshake still uses the queue pair
		c.earlyFailure = workError(opcode, id, w)
	case c.phase != phaseOpen:
	case w.Status == ibv.WorkFlushed:
		c.beginClose(c.disconnectReason())
	default:
		c.beginClose(workError(opcode, id, w))
	}
}

// deliver queues the completions of all requests whose outcome is known.
func (c *connection) deliver() {
	for e := c.sends.next(); e != nil; e = c.sends.next() {
		c.completeSend(e)
	}
	for e := c.receives.next(); e != nil; e = c.receives.next() {
		c.completeReceive(e)
	}
}

// completeAllSends completes every request of the send queue. Requests whose outcome is unknown
// complete as flushed.
func (c *connection) completeAllSends() {
	for e := c.sends.nextFlushed(); e != nil; e = c.sends.nextFlushed() {
		c.completeSend(e)
	}
}

// completeAllReceives does the same for the receive queue.
func (c *connection) completeAllReceives() {
	for e := c.receives.nextFlushed(); e != nil; e = c.receives.nextFlushed() {
		c.completeReceive(e)
	}
}

func (c *connection) completeSend(e *sendEntry) {
	if e.opcode == rdma.OpRead {
		c.reads--
	}
	if e.silent && e.status == rdma.StatusSuccess {
		c.sends.CompleteSilently()
		return
	}
	*c.sends.Complete(&c.queue.completions) = rdma.Completion{
		ID: e.id, Context: c.context, Opcode: e.opcode, Status: e.status,
	}
}

func (c *connection) completeReceive(e *receiveEntry) {
	*c.receives.Complete(&c.queue.completions) = rdma.Completion{
		ID: e.id, Context: c.context, Opcode: rdma.OpReceive, Status: e.status, Length: e.length,
	}
}

// outcomeOf converts the status of a completion from the device.
func outcomeOf(s ibv.WorkStatus) rdma.CompletionStatus {
	switch s {
	case ibv.WorkSuccess:
		return rdma.StatusSuccess
	case ibv.WorkFlushed:
		return rdma.StatusFlushed
	case ibv.WorkLocalLength:
		return rdma.StatusLocalLength
	case ibv.WorkLocalProtection, ibv.WorkLocalAccess, ibv.WorkLocalQueuePair:
		return rdma.StatusLocalProtection
	case ibv.WorkRemoteAccess:
		return rdma.StatusRemoteAccess
	case ibv.WorkRemoteOperation, ibv.WorkRemoteInvalidRequest, ibv.WorkRemoteAborted:
		return rdma.StatusRemoteOperation
	case ibv.WorkRetryExceeded, ibv.WorkRNRRetryExceeded, ibv.WorkResponseTimeout:
		return rdma.StatusRetryExceeded
	}
	return rdma.StatusFatal
}

// workError describes a failed request. It gives the status, its usual cause, and what to do.
func workError(opcode rdma.Opcode, id uint64, w *ibv.Completion) error {
	cause := workCauses[w.Status]
	if cause == "" {
		cause = "see `man ibv_poll_cq`"
	}
	return status.Errorf(outcomeOf(w.Status).Code(), "%v %#x failed with %v (vendor error %#x): %s",
		opcode, id, w.Status, w.VendorError, cause)
}

// workCauses holds the usual cause of each failure.
var workCauses = map[ibv.WorkStatus]string{
	ibv.WorkLocalLength:          "the message is too long for its buffer or the device",
	ibv.WorkLocalProtection:      "the local memory was deregistered, or forbids the access",
	ibv.WorkLocalAccess:          "the local memory was deregistered, or forbids the access",
	ibv.WorkLocalQueuePair:       "the link is down, or the queue pair cannot execute the request",
	ibv.WorkBadResponse:          "the peer's device sent an unexpected response",
	ibv.WorkRemoteInvalidRequest: "the peer does not support the request, or such a long message",
	ibv.WorkRemoteAccess: "the peer's memory is too short, was deregistered, or forbids the " +
		"access",
	ibv.WorkRemoteOperation: "the peer's device could not execute the request",
	ibv.WorkRetryExceeded: "the peer does not acknowledge: it is down, the network drops " +
		"packets, or the two sides differ in path MTU or RoCE version",
	ibv.WorkRNRRetryExceeded: "the peer has posted no receive",
	ibv.WorkRemoteAborted:    "the peer aborted the request",
	ibv.WorkFatal:            "the device has failed: check the kernel log",
	ibv.WorkResponseTimeout:  "the peer does not respond",
	ibv.WorkGeneral:          "the driver reports no reason: check the kernel log",
}
