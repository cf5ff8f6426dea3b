// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Client to target: Poll, receiveRequests, receiveRequest, forward, flushRequests; pollLate.

// Poll forwards what the client has sent. The worker's engine calls it once per turn.
func (l *RelayLane) Poll() int {
	sent := 0
	if l.bounce != nil {
		sent = l.pollCopies()
	}
	if !l.canAcceptRequests() {
		return sent
	}
	if l.isLate {
		sent += l.pollLate()
	}
	if l.outbox.Len() > 0 {
		// The client owes receives. Accepting nothing more until it posts them bounds the responses
		// that it can make the relay keep.
		if sent += l.sendOutbox(); l.outbox.Len() > 0 {
			l.flushResponses()
			return sent
		}
	}
	n := 0
	if !l.draining && l.hasRoom() {
		if n = l.receiveRequests(); n == 0 && l.watched != nil {
			l.watch = l.watched.Watch()
		}
	}
	if n > 0 {
		l.config.Consumer.Flush()
		l.flushRequests()
	}
	l.flushResponses()
	return sent + n
}

// Watch implements progress.WatchedSource. A lane with nothing else to do has work when a request
// arrives.
func (l *RelayLane) Watch() *progress.Watch { return &l.watch }

// receiveRequests reads a batch of requests, or fewer if the rate limits say so, and returns their
// number.
func (l *RelayLane) receiveRequests() int {
	if l.throttle.update() && l.state == laneRunning {
		return l.receiveThrottled()
	}
	n := l.config.Consumer.Poll(l.received[:])
	if n > 0 {
		l.nowNs = nanotime()
		for i := range l.received[:n] {
			l.receiveRequest(&l.received[i])
		}
	}
	return n
}

// receiveThrottled reads requests one by one while the rate limits permit. A wait counts only if
// it ends with a request: otherwise the client did not wait for anything.
func (l *RelayLane) receiveThrottled() int {
	nowNs := nanotime()
	n := 0
	for ; n < comchBatch && l.throttle.mayRead(nowNs); n++ {
		if l.config.Consumer.Poll(l.received[:1]) == 0 {
			break
		}
		if t := &l.throttle; t.waiting {
			l.counters.throttled(t.level, t.untilNs-t.sinceNs)
			t.totalNs.Store(t.totalNs.Load() + t.untilNs - t.sinceNs)
		}
		l.nowNs = nowNs
		l.receiveRequest(&l.received[0])
		l.throttle.charge(nowNs, l.size)
	}
	return n
}

// flushRequests starts what a batch of requests caused on both connections, and publishes it.
func (l *RelayLane) flushRequests() {
	l.inFlight.Store(int64(l.awaitingTarget()))
	for role := range iomsg.ConnectionRoleCount {
		c := &l.connections[role]
		l.postGathered(c)
		c.flush()
	}
	l.forwardStop()
	l.counters.publish()
	l.nowNs = 0
}

// pollLate collects the sends to the client that have completed, and returns their number. It fails
// the lane if the device has rejected a send or a receive that it had taken.
func (l *RelayLane) pollLate() int {
	n := 0
	if p := l.lateProducer; p != nil {
		n = p.Poll()
		if p.State() != progress.Running && p.Err() != nil {
			l.fail(fmt.Errorf("send a response to the client: %w", p.Err()))
		}
	}
	if c := l.lateConsumer; c != nil && c.State() != progress.Running && c.Err() != nil {
		l.fail(fmt.Errorf("receive requests of the client: %w", c.Err()))
	}
	return n
}

// canAcceptRequests reports whether the lane reads requests, to forward or to reject them.
func (l *RelayLane) canAcceptRequests() bool {
	return l.state == laneRunning || l.state == laneRejecting
}

// hasRoom reports whether all requests that the client may still send, and those that wait for a
// copy, fit into the send rings, in addition to stop. Messages of completed requests may still be
// there, until their Send completes.
func (l *RelayLane) hasRoom() bool {
	if l.state != laneRunning {
		return true // nothing is sent
	}
	coming := l.slots.room()
	if l.bounce != nil {
		coming += l.bounce.writes
	}
	for role := range iomsg.ConnectionRoleCount {
		if l.connections[role].room() <= uint32(coming) {
			return false
		}
	}
	return true
}

// receiveRequest copies one request out of the client's reach, posts its receive again, and adds
// the request to the batch for the target.
func (l *RelayLane) receiveRequest(r *comch.Received) {
	memory := l.config.Consumer.Memory()
	if r.Length != iomsg.Size || r.Offset > uint32(len(memory))-iomsg.Size {
		l.fail(status.Errorf(status.InvalidValue,
			"client sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return
	}
	request := &l.request
	l.size = 0
	*request = *(*message)(memory[r.Offset:][:iomsg.Size])
	if err := l.config.Consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		l.fail(err)
		return
	}
	if t := l.config.Translator; t != nil {
		t.FromClient(request[:])
	}
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	if m.Type == iomsg.Stop {
		if l.state == laneRejecting {
			return // the end of the session, of which the client learns next, overtakes its stop
		}
		if l.state != laneRunning || l.stop != stopNone {
			l.fail(status.Errorf(status.BadState,
				"client sent stop twice, or while the data path is not running"))
			return
		}
		l.stop, l.stopMessage = stopReceived, *request
		return
	}
	operation := m.Type.Operation()
	code := l.check(operation, &m)
	var slot uint32
	if code == status.Success {
		var ok bool
		if slot, ok = l.slots.claim(request, operation, m.IOSize, l.nowNs); !ok {
			code = status.Full // the client has exceeded the agreed depth
		}
	}
	if code != status.Success {
		l.counters.reject(operation, code)
		iomsg.TurnIntoResult(request[:], code)
		l.respond(request)
		return
	}
	l.counters.begin()
	if operation.MovesData() {
		l.size = m.IOSize
	}
	if l.bounce != nil && operation == iomsg.OpWrite {
		l.startCopy(slot)
		return
	}
	l.forward(slot, &l.slots.slots[slot], request)
}

// forward adds a claimed slot's request, of which the caller passes a copy, to the batch for the
// target.
func (l *RelayLane) forward(slot uint32, s *slot, request *message) {
	s.next.begin(request)
	iomsg.StampTag(request[:], slot, s.generation)
	if l.bounce != nil && s.operation.MovesData() {
		iomsg.SetRequesterOffset(request[:], l.bounce.buffer(slot))
	}
	c := &l.connections[s.operation.Connection()]
	if s.operation == iomsg.OpWrite && l.staging.Length > 0 {
		// Push the data: the request that follows on the same connection finds it in the slot's
		// staging buffer, which saves the target a round trip.
		iomsg.SetFlags(request[:], iomsg.Pushed)
		w := c.addTransfer(s.ioSize)
		w.Opcode = rdma.OpWrite
		w.Local = l.export
		w.Local.Address += iomsg.RequesterOffset(request[:])
		w.Local.Length = s.ioSize
		w.RemoteKey = l.staging.Key
		w.RemoteAddress = l.staging.Base + uint64(slot)*uint64(l.config.BufferSize)
	}
	sent := c.addMessage()
	*sent = *request
	if t := l.config.Foreign; t != nil {
		t.ToTarget(sent[:])
	}
	if c.isFull() {
		l.postGathered(c)
	}
}

// check returns the code with which to reject a request, or Success if it may be forwarded. The
// target repeats these checks and adds those that depend on the volume.
func (l *RelayLane) check(operation iomsg.Operation, m *iomsg.Message) status.Code {
	switch {
	case l.state == laneRejecting:
		return l.rejectCode
	case l.state != laneRunning:
		return status.ConnectionReset
	case l.stop != stopNone:
		return status.BadState
	case operation == iomsg.OpOther, m.Flags&^iomsg.ClientFlags != 0:
		return status.InvalidValue
	case l.config.Foreign != nil && (m.Flags&iomsg.FUA != 0 ||
		!l.config.Foreign.CanCarry(m.Type, m.RequesterOffset, m.StorageOffset)):
		return status.NotSupported
	case !operation.MovesData():
		return status.Success
	case m.IOSize > l.config.BufferSize:
		return status.TooBig
	case m.IOSize == 0, m.RequesterOffset > l.config.ExportLength,
		uint64(m.IOSize) > l.config.ExportLength-m.RequesterOffset:
		return status.InvalidValue
	case operation.FillsMemory() && !l.config.ExportAccess.Has(memory.RemoteWrite),
		operation == iomsg.OpWrite && !l.config.ExportAccess.Has(memory.RemoteRead):
		return status.NotPermitted
	}
	return status.Success
}

// forwardStop forwards the client's stop when every request before it has completed: requests on
// the data connection could otherwise overtake it.
func (l *RelayLane) forwardStop() {
	if l.stop != stopReceived || l.state != laneRunning || l.slots.inFlight() > 0 {
		return
	}
	role := iomsg.ControlConnection
	if t := l.config.Foreign; t != nil {
		if !t.TakesStop() {
			l.stop = stopReturned
			l.returnStop()
			return
		}
		role = iomsg.DataConnection
	}
	l.stop = stopForwarded
	c := &l.connections[role]
	*c.addMessage() = l.stopMessage
	l.postGathered(c)
	c.flush()
}

// Target to client: handleCompletion, receiveResponse, endBatch. What they send to the client
// passes through respond, below.

// handleCompletion handles a completion of one of the lane's connections. The worker's dispatcher
// calls it.
func (l *RelayLane) handleCompletion(role iomsg.ConnectionRole, completion *rdma.Completion) {
	c := &l.connections[role]
	if l.handleConnectionEnd(c, completion) {
		return
	}
	if completion.Opcode != rdma.OpReceive {
		if kind, position := splitWorkID(completion.ID); kind == messageWork {
			c.release(position)
		}
		return
	}
	if !l.canAcceptResponses() {
		return
	}
	first, count, err := c.received(completion)
	if err != nil {
		l.fail(err)
		return
	}
	for i := first; i < first+count && l.canAcceptResponses(); i++ {
		l.receiveResponse(c, l.messages.at(i))
	}
	if err := c.recycle(first); err != nil {
		l.fail(err)
	}
}

// canAcceptResponses reports whether messages of the target are handled. After one connection is
// lost they still are, because the target may have sent them before on the other, and after a
// timeout, because the target may only have been slow.
func (l *RelayLane) canAcceptResponses() bool {
	return l.isAlive() || l.state == laneFailed && l.keepsDelivering
}

// receiveResponse handles one message of the target, nearly always a response. The client gets its
// own request back, so the target can change nothing but the result and the cause of a failure.
func (l *RelayLane) receiveResponse(c *connection, response *message) {
	var m iomsg.Message
	iomsg.Decode(response[:], &m)
	switch {
	case !c.ready:
		if m.Type != iomsg.Hello {
			l.fail(status.Errorf(status.Unexpected,
				"target sent a message of type %d instead of hello on the %v connection",
				uint32(m.Type), c.role))
			return
		}
		c.receiveHello(&m)
		l.signalReady(c.role, nil)
	case m.Type == iomsg.Result:
		s := l.slots.find(m.Slot, m.Generation)
		if s == nil {
			l.fail(status.Errorf(status.Unexpected,
				"target responded to slot %d generation %d, which is not in flight",
				m.Slot, m.Generation))
			return
		}
		switch m.Result {
		case status.Shutdown:
			if l.config.Foreign == nil {
				l.keepDeclined(s)
				return
			}
			m.Result = status.IOFailed
		case status.TimeOut, status.ConnectionReset, status.InUse:
			// From the relay these mean that the session ends. A target cannot say that for it.
			m.Result = status.IOFailed
		}
		s.next.end(&s.request)
		if l.bounce != nil && s.operation.FillsMemory() && m.Result == status.Success {
			l.startCopy(m.Slot)
			return
		}
		if m.Result != status.Success {
			iomsg.SetCause(s.request[:], m.Cause)
		}
		l.complete(m.Slot, s, m.Result)
	case m.Type == iomsg.Stop && l.stop == stopForwarded:
		l.stop = stopReturned
	default:
		l.fail(status.Errorf(status.Unexpected,
			"target sent a message of type %d on the %v connection", uint32(m.Type), c.role))
	}
}

// complete responds to the client's request in a slot, and frees the slot.
func (l *RelayLane) complete(index uint32, s *slot, result status.Code) {
	l.counters.complete(s.operation, result, s.ioSize, l.now()-s.startNs)
	l.traced(l.config.Queue, &s.request, result, s.startNs, &s.next)
	iomsg.TurnIntoResult(s.request[:], result)
	l.respond(&s.request)
	l.slots.release(index)
}

// keepDeclined keeps a request in flight that the target has declined because it is shutting down.
// The client must not learn that before the session ends, in the usual order: it would abort a
// session in which other requests are still being completed.
func (l *RelayLane) keepDeclined(s *slot) {
	s.generation++ // so that another response to the request breaks the protocol
	s.declined = true
	l.declined++
	if l.declined == 1 {
		l.draining = true
		l.config.OnTargetShutdown()
	}
}

// endBatch posts and publishes what a batch of completions caused.
func (l *RelayLane) endBatch() {
	for role := range iomsg.ConnectionRoleCount {
		c := &l.connections[role]
		if err := c.postReceives(); err != nil {
			l.fail(err)
		}
		c.flush()
	}
	l.nowNs = 0
	l.inFlight.Store(int64(l.awaitingTarget()))
	l.forwardStop()
	if l.stop == stopReturned {
		l.returnStop()
	}
	l.counters.publish()
	l.flushResponses()
}

// returnStop answers the client's stop.
func (l *RelayLane) returnStop() {
	l.stop = stopCompleted
	l.respond(&l.stopMessage)
	close(l.stopped)
}

// To the client: respond, sendOutbox, flushResponses.

// respond sends a message to the client, or keeps it until the client has posted a receive. If the
// client is gone, it drops the response and fails the lane.
func (l *RelayLane) respond(m *message) {
	if t := l.config.Translator; t != nil {
		t.ToClient(m[:])
	}
	if l.outbox.Len() == 0 {
		err := l.config.Producer.Send(m[:], nil)
		if err == nil {
			l.unflushed = true
			return
		}
		if !errors.Is(err, status.Again) {
			l.fail(err)
			return
		}
	}
	l.counters.backpressure(NoClientReceive)
	l.watch = progress.Watch{}
	place := l.outbox.Push()
	if place == nil {
		l.fail(status.Errorf(status.Full, "client does not post receives for its responses"))
		return
	}
	*place = *m
}

// sendOutbox sends the responses that were kept, and returns how many.
func (l *RelayLane) sendOutbox() int {
	sent := 0
	for l.outbox.Len() > 0 {
		err := l.config.Producer.Send(l.outbox.Front()[:], nil)
		if errors.Is(err, status.Again) {
			break
		}
		l.outbox.Pop()
		if err != nil {
			l.fail(err)
			break
		}
		l.unflushed = true
		sent++
	}
	return sent
}

func (l *RelayLane) flushResponses() {
	if l.unflushed {
		l.unflushed = false
		l.config.Producer.Flush()
	}
}
