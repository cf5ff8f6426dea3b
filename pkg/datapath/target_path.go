// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// An IO passes through this file from top to bottom. A read runs through receiveRequest, begin,
// submit, pollVolume, respondWithData, and flushResponses. A write whose data the relay has not
// pushed runs through fetch before submit. Reads from registered volume memory skip submit and
// pollVolume.

// transaction is a request of the relay until it completes.
type transaction struct {
	inUse   bool
	message message // as received; becomes the response
	ioSize  uint32
	remote  uint64 // address in the client's memory
	startNs int64
	next    next
	request volume.Request
}

// handleCompletion handles a completion of one of the lane's connections. The worker's dispatcher
// calls it.
func (l *TargetLane) handleCompletion(role iomsg.ConnectionRole, completion *rdma.Completion) {
	c := &l.connections[role]
	if l.handleConnectionEnd(c, completion) || !l.isAlive() {
		return
	}
	if completion.Opcode != rdma.OpReceive {
		switch kind, index := splitWorkID(completion.ID); kind {
		case messageWork:
			c.release(index)
			l.beginBacklog()
		case readWork:
			l.completeFetch(index)
		case writeWork:
			l.respond(index, status.Success)
		}
		return
	}
	first, count, err := c.received(completion)
	if err != nil {
		l.fail(err)
		return
	}
	for i := first; i < first+count && l.isAlive(); i++ {
		l.receiveRequest(c, l.messages.at(i))
	}
	if err := c.recycle(first); err != nil {
		l.fail(err)
	}
}

// receiveRequest handles one message of the relay, nearly always a request.
func (l *TargetLane) receiveRequest(c *connection, received *message) {
	var m iomsg.Message
	request := received
	if t := l.config.Foreign; t != nil {
		request = &l.translated
		*request = *received
		t.FromClient(request[:])
	}
	iomsg.Decode(request[:], &m)
	operation := m.Type.Operation()
	switch {
	case !c.ready:
		if m.Type != iomsg.Hello {
			l.fail(status.Errorf(status.Unexpected,
				"relay sent a message of type %d instead of hello on the %v connection",
				uint32(m.Type), c.role))
			return
		}
		c.receiveHello(&m)
		if c.rdma == nil {
			l.helloReceived[c.role] = true // Accept responds
			return
		}
		l.respondHello(c)
	case l.state != laneRunning:
		l.fail(status.Errorf(status.BadState,
			"relay sent a message of type %d before start storage", uint32(m.Type)))
	case c.role != l.connectionOf(operation) || l.stop != stopNone:
		l.fail(status.Errorf(status.Unexpected,
			"relay sent a message of type %d on the wrong connection (%v) or after stop",
			uint32(m.Type), c.role))
	case m.Type == iomsg.Stop:
		l.stop, l.stopMessage = stopReceived, *received
	case l.active+l.backlog.Len() >= l.config.Depth:
		l.fail(status.Errorf(status.Full,
			"relay exceeded the agreed depth of %d requests", l.config.Depth))
	case l.config.Foreign != nil:
		last := len(l.freeSlots) - 1
		m.Slot = l.freeSlots[last]
		l.freeSlots = l.freeSlots[:last]
		iomsg.StampTag(request[:], m.Slot, 0)
		l.accept(c, received, request, operation, &m)
	case m.Slot >= uint32(l.config.Depth) || l.transactions[m.Slot].inUse:
		l.fail(status.Errorf(status.Unexpected,
			"relay sent a request in slot %d, which does not exist or is in use", m.Slot))
	default:
		l.accept(c, received, request, operation, &m)
	}
}

// accept claims a request's slot, and begins the transaction if there is room for the response.
// received becomes that response; request is the same, translated.
func (l *TargetLane) accept(
	c *connection, received, request *message, operation iomsg.Operation, m *iomsg.Message,
) {
	t := &l.transactions[m.Slot]
	t.inUse, t.message = true, *received
	l.counters.begin()
	if l.hasRoom(c) {
		l.begin(operation, m)
		return
	}
	l.counters.backpressure(NoResponseRoom)
	*l.backlog.Push() = *request // it has room for the whole depth
}

// connectionOf returns the connection that carries an operation's requests and responses, and with
// OpOther the stop message.
func (l *TargetLane) connectionOf(operation iomsg.Operation) iomsg.ConnectionRole {
	if l.config.Foreign != nil {
		return iomsg.DataConnection
	}
	return operation.Connection()
}

// transferConnection returns the connection on which the lane moves data. A response on another one
// must wait until the data has been placed.
func (l *TargetLane) transferConnection() *connection {
	if l.config.Foreign != nil {
		return &l.connections[iomsg.ControlConnection]
	}
	return &l.connections[iomsg.DataConnection]
}

func (l *TargetLane) respondHello(c *connection) {
	c.sendHello()
	l.postGathered(c)
	l.signalReady(c.role, nil)
}

// hasRoom reports whether the response to one more request fits, in addition to those to all active
// requests and to stop. A response takes up room until the completion of its Send has been polled.
// That may be after the next request, or after many if the Send waits for a long RDMA Read.
func (l *TargetLane) hasRoom(c *connection) bool { return int(c.room()) > l.active+1 }

// beginBacklog begins the requests that have been waiting for room.
func (l *TargetLane) beginBacklog() {
	for l.isAlive() && l.backlog.Len() > 0 {
		var m iomsg.Message
		iomsg.Decode(l.backlog.Front()[:], &m)
		operation := m.Type.Operation()
		if !l.hasRoom(&l.connections[l.connectionOf(operation)]) {
			return
		}
		l.backlog.Pop()
		l.begin(operation, &m)
	}
}

// begin starts the transaction of a request's slot, or rejects the request.
func (l *TargetLane) begin(operation iomsg.Operation, m *iomsg.Message) {
	slot := m.Slot
	l.active++
	t := &l.transactions[slot]
	t.ioSize, t.startNs = m.IOSize, l.now()
	t.remote = l.config.Export.Base + m.RequesterOffset
	t.request.Operation = operation
	t.request.Offset, t.request.Length = m.StorageOffset, uint64(m.IOSize)
	if operation == iomsg.OpExtents {
		t.request.Length = m.Range
	}
	t.request.ForceUnitAccess = m.Flags&iomsg.FUA != 0
	t.request.Deallocate = m.Flags&iomsg.Deallocate != 0
	t.request.Buffer = nil
	code := l.check(t, m)
	if code == status.InvalidValue && l.follow() {
		code = l.check(t, m)
	}
	if code != status.Success {
		l.respond(slot, code)
		return
	}
	if operation == iomsg.OpRead && l.config.VolumeMemory != nil {
		l.respondWithData(slot, rdma.Segment{
			Key: l.config.VolumeMemory.LocalKey(), Length: t.ioSize,
			Address: l.config.VolumeMemory.Base() + t.request.Offset,
		})
		return
	}
	if operation == iomsg.OpRead || operation == iomsg.OpWrite {
		t.request.Buffer = l.staging.bytes(slot, t.ioSize)
	}
	if operation == iomsg.OpWrite && m.Flags&iomsg.Pushed == 0 {
		l.fetch(slot)
		return
	}
	l.submit(slot)
}

// follow adopts the size of the volume if that has grown. Only a request beyond the end is a reason
// to look.
func (l *TargetLane) follow() bool {
	size := l.config.Volume.Info().Size
	if size <= l.info.Size {
		return false
	}
	l.info.Size = size
	return true
}

// check returns the code with which to reject a request, or Success if it may be carried out.
func (l *TargetLane) check(t *transaction, m *iomsg.Message) status.Code {
	operation := t.request.Operation
	switch {
	case l.draining:
		return status.Shutdown
	case m.Flags&^iomsg.KnownFlags != 0, operation == iomsg.OpOther:
		return status.InvalidValue
	case !operation.MovesData():
		return status.CodeOf(l.info.Check(&t.request))
	}
	export := &l.config.Export
	blockMask := uint64(l.info.BlockSize) - 1
	switch {
	case m.IOSize > l.config.BufferSize:
		return status.TooBig
	case operation == iomsg.OpExtents:
		return l.checkExtents(t, m)
	case m.IOSize == 0, uint64(m.IOSize)&blockMask != 0, m.StorageOffset&blockMask != 0,
		uint64(m.IOSize) > l.info.Size, m.StorageOffset > l.info.Size-uint64(m.IOSize),
		uint64(m.IOSize) > export.Length, m.RequesterOffset > export.Length-uint64(m.IOSize):
		return status.InvalidValue
	case operation == iomsg.OpWrite && l.info.ReadOnly,
		operation == iomsg.OpRead && !export.Access.Has(memory.RemoteWrite),
		operation == iomsg.OpWrite && !export.Access.Has(memory.RemoteRead):
		return status.NotPermitted
	}
	return status.Success
}

// checkExtents is check for a request of that type, whose size does not exceed the buffer.
func (l *TargetLane) checkExtents(t *transaction, m *iomsg.Message) status.Code {
	export := &l.config.Export
	if uint64(m.IOSize) > export.Length ||
		m.RequesterOffset > export.Length-uint64(m.IOSize) {
		return status.InvalidValue
	}
	if !export.Access.Has(memory.RemoteWrite) {
		return status.NotPermitted
	}
	t.request.Buffer = l.staging.bytes(m.Slot, m.IOSize)
	return status.CodeOf(l.info.Check(&t.request))
}

// fetch reads the data of a write from the client's memory. Reads beyond the agreed read depth wait
// in waitingReads: in the send queue they would hold up everything after them.
func (l *TargetLane) fetch(slot uint32) {
	if l.reads >= l.maxReads {
		l.counters.backpressure(NoReadCredit)
		*l.waitingReads.Push() = slot // it has room for the whole depth
		return
	}
	t := &l.transactions[slot]
	l.fetching[0] = rdma.SendRequest{
		ID: workID(readWork, slot), Opcode: rdma.OpRead,
		Local:         l.staging.segment(slot, t.ioSize),
		RemoteAddress: t.remote, RemoteKey: l.config.Export.Key,
	}
	l.reads++
	l.transfer()
}

// transfer posts the work request in fetching.
func (l *TargetLane) transfer() {
	if err := l.transferConnection().post(l.fetching[:]); err != nil {
		l.fail(err)
	}
}

// completeFetch submits a write whose data has arrived.
func (l *TargetLane) completeFetch(slot uint32) {
	l.reads--
	l.submit(slot)
	if l.waitingReads.Len() > 0 {
		l.fetch(l.waitingReads.Pop())
	}
}

// submit hands a transaction to the volume, or parks it. The lease counts now and not when the
// request arrived: a write may have waited long for its data.
func (l *TargetLane) submit(slot uint32) {
	if l.transactions[slot].request.Operation.Changes() && !l.mayChange() {
		l.counters.backpressure(NoLease)
		*l.parked.Push() = slot // it has room for the whole depth
		return
	}
	l.submitted++
	l.transactions[slot].next.begin(&l.transactions[slot].message)
	if err := l.volume.Submit(&l.transactions[slot].request); err != nil {
		l.submitted--
		l.respond(slot, status.CodeOf(err))
	}
}

// mayChange reports whether the lease lets the session change the volume.
func (l *TargetLane) mayChange() bool {
	s := l.config.Lease
	if s == nil {
		return true
	}
	if l.leaseNow == 0 {
		l.leaseNow = s.Now()
	}
	return s.Check(l.leaseNow) == lease.Valid
}

// Poll responds to the requests that the volume has completed. The worker's engine calls it once
// per turn.
func (l *TargetLane) Poll() int {
	if l.submitted == 0 {
		return 0
	}
	n := l.pollVolume()
	if n > 0 {
		l.flushResponses()
	}
	return n
}

// pollVolume responds to the requests that the volume has completed, and returns their number.
func (l *TargetLane) pollVolume() int {
	total := 0
	for {
		n := l.volume.Poll(l.completed[:])
		for _, request := range l.completed[:n] {
			l.submitted--
			if !l.isAlive() {
				continue // nobody is left to respond to
			}
			slot := uint32(request.UserData)
			t := &l.transactions[slot]
			t.next.end(&t.message)
			if request.Err == nil && t.request.Operation.FillsMemory() {
				l.respondWithData(slot, l.staging.segment(slot, t.ioSize))
				continue
			}
			if request.Err != nil && l.config.Foreign == nil {
				iomsg.SetCause(t.message[:], volume.RequestCause(request.Err))
			}
			l.respond(slot, status.CodeOf(request.Err))
		}
		if total += n; n < len(l.completed) || total >= 4*volumeBatch {
			return total
		}
	}
}

// respondWithData writes the data of a read into the client's memory and then sends the response on
// the same connection; no other order is safe on every transport. When the relay has the response,
// the data has been placed, so the slot's staging buffer can be used again. A Foreign relay expects
// the response on another connection, so it waits for the completion of the Write: doca_rdma
// completes one when the data has been placed.
func (l *TargetLane) respondWithData(slot uint32, source rdma.Segment) {
	t := &l.transactions[slot]
	if l.config.Foreign != nil { // the completion responds
		l.fetching[0] = rdma.SendRequest{
			ID: workID(writeWork, slot), Opcode: rdma.OpWrite, Local: source,
			RemoteAddress: t.remote, RemoteKey: l.config.Export.Key,
		}
		l.transfer()
		return
	}
	r := l.connections[iomsg.DataConnection].addTransfer(t.ioSize)
	r.Opcode, r.Local = rdma.OpWrite, source
	r.RemoteAddress, r.RemoteKey = t.remote, l.config.Export.Key
	l.respond(slot, status.Success)
}

// respond ends a transaction. Its response may share a Send with others.
func (l *TargetLane) respond(slot uint32, code status.Code) {
	t := &l.transactions[slot]
	l.traced(l.config.Queue, &t.message, code, t.startNs, &t.next)
	c := &l.connections[l.connectionOf(t.request.Operation)]
	m := c.addMessage()
	*m = t.message
	iomsg.TurnIntoResult(m[:], code)
	t.inUse = false
	if l.config.Foreign != nil {
		l.freeSlots = append(l.freeSlots, slot)
	}
	l.active--
	l.counters.complete(t.request.Operation, code, t.ioSize, l.now()-t.startNs)
	if c.isFull() {
		l.postGathered(c)
	}
}

// endBatch posts and publishes what a batch of completions caused.
func (l *TargetLane) endBatch() {
	if l.submitted > 0 {
		l.pollVolume()
	}
	l.flushResponses()
}

// flushResponses returns the stop message to the relay if everything before it has completed, posts
// and flushes everything gathered, and publishes the counters.
func (l *TargetLane) flushResponses() {
	if l.stop == stopReceived && l.active == 0 && l.backlog.Len() == 0 && l.isAlive() {
		l.stop = stopCompleted
		*l.connections[l.connectionOf(iomsg.OpOther)].addMessage() = l.stopMessage
		close(l.stopped)
	}
	unsent := 0
	for role := range iomsg.ConnectionRoleCount {
		c := &l.connections[role]
		l.postGathered(c)
		if err := c.postReceives(); err != nil {
			l.fail(err)
		}
		c.flush()
		if l.state != laneConnecting { // a hello answers no request
			unsent += int(c.pending())
		}
	}
	l.nowNs, l.leaseNow = 0, 0
	l.inFlight.Store(int64(l.active + l.backlog.Len() + unsent))
	l.counters.publish()
	l.checkQuiesced()
}
