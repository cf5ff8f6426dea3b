package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// transaction is a request of the relay until it is answered.
type transaction struct {
	inUse   bool
	message message // as received, becomes the answer
	ioType  iomsg.Type
	ioSize  uint32
	remote  uint64 // address in the client's memory
	startNs int64
	request volume.Request
}

// takeRequests deals with the messages of one Send of the relay.
func (l *TargetLane) takeRequests(e *endpoint, c *rdma.Completion) {
	first, count, err := e.received(c)
	if err != nil {
		l.fail(err)
		return
	}
	for i := first; i < first+count && l.state == targetServing; i++ {
		l.takeRequest(e, l.messages.at(i))
	}
	if err := e.giveBack(first); err != nil {
		l.fail(err)
	}
}

// takeRequest deals with one message of the relay.
func (l *TargetLane) takeRequest(e *endpoint, request *message) {
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	switch {
	case !e.ready:
		l.takeHello(e, &m)
	case !l.started:
		l.fail(status.Errorf(status.BadState, "relay sent a message of type %d before start storage", uint32(m.Type)))
	case e.role != m.Type.Connection() || l.stopping || l.stopped:
		l.fail(status.Errorf(status.Unexpected, "relay sent a message of type %d on the %v connection, out of order", uint32(m.Type), e.role))
	case m.Type == iomsg.Stop:
		l.stopping = true
		l.stop = *request
	case l.answering+l.backlog.count >= l.config.Depth:
		l.fail(status.Errorf(status.Full, "relay sent more than the agreed %d requests", l.config.Depth))
	case m.Slot >= uint32(l.config.Depth) || l.transactions[m.Slot].inUse:
		l.fail(status.Errorf(status.Unexpected, "relay sent a request in slot %d, which does not exist or is in use", m.Slot))
	case !l.hasRoom(e.role):
		l.transactions[m.Slot].inUse = true
		l.counters.take()
		l.counters.pressed(NoAnswerRoom)
		if !l.backlog.push(request) {
			panic("datapath: more requests wait than the depth")
		}
	default:
		l.transactions[m.Slot].inUse = true
		l.counters.take()
		l.begin(request, &m)
	}
}

// hasRoom reports whether the answer of one more request fits, besides those
// of all that are under way and the one to stop. Answers stay until their Send
// has completed, which may be seen after the next request, or after many where
// Sends wait behind a long RDMA Read.
func (l *TargetLane) hasRoom(role iomsg.ConnectionRole) bool {
	return int(l.endpoints[role].out.room()) > l.answering+1
}

func (l *TargetLane) takeHello(e *endpoint, m *iomsg.Message) {
	if m.Type != iomsg.Hello {
		l.fail(status.Errorf(status.Unexpected, "relay began the %v connection with a message of type %d instead of hello", e.role, uint32(m.Type)))
		return
	}
	e.greeted(m)
	if e.connection == nil {
		l.hello[e.role] = true // answered by adopt
		return
	}
	l.answerHello(e)
}

func (l *TargetLane) answerHello(e *endpoint) {
	e.hello()
	l.post(e)
	l.tellReady(e.role, nil)
}

// begin starts the transaction of a request's slot.
func (l *TargetLane) begin(request *message, m *iomsg.Message) {
	index := m.Slot
	l.answering++
	t := &l.transactions[index]
	t.message, t.ioType, t.ioSize, t.startNs = *request, m.Type, m.IOSize, l.now()
	t.remote = l.config.Export.Base + m.RequesterOffset
	t.request.Offset, t.request.Length = m.StorageOffset, uint64(m.IOSize)
	t.request.ForceUnitAccess = m.Flags&iomsg.FUA != 0
	t.request.Buffer = nil
	if code := l.judge(t, m); code != status.Success {
		l.answer(index, code)
		return
	}
	l.start(index, t, m.Flags&iomsg.Pushed != 0)
}

// judge says whether a request can be carried out, and completes its volume
// request but for the buffer.
func (l *TargetLane) judge(t *transaction, m *iomsg.Message) status.Code {
	if l.draining {
		return status.Shutdown
	}
	if m.Flags&^iomsg.KnownFlags != 0 {
		return status.InvalidValue
	}
	switch m.Type {
	case iomsg.Read:
		t.request.Operation = iomsg.OpRead
	case iomsg.Write:
		t.request.Operation = iomsg.OpWrite
	case iomsg.Flush:
		t.request.Operation = iomsg.OpFlush
	case iomsg.Trim:
		t.request.Operation = iomsg.OpTrim
	case iomsg.WriteZeroes:
		t.request.Operation = iomsg.OpWriteZeroes
	default:
		return status.InvalidValue
	}
	if m.Type.MovesData() {
		return l.judgeTransfer(m)
	}
	return status.CodeOf(l.info.Check(&t.request))
}

func (l *TargetLane) judgeTransfer(m *iomsg.Message) status.Code {
	export := &l.config.Export
	block := uint64(l.info.BlockSize) - 1
	switch {
	case m.IOSize > l.config.BufferSize:
		return status.TooBig
	case m.IOSize == 0, uint64(m.IOSize)&block != 0, m.StorageOffset&block != 0,
		uint64(m.IOSize) > l.info.Size, m.StorageOffset > l.info.Size-uint64(m.IOSize),
		uint64(m.IOSize) > export.Length, m.RequesterOffset > export.Length-uint64(m.IOSize):
		return status.InvalidValue
	case m.Type == iomsg.Write && l.info.ReadOnly,
		m.Type == iomsg.Read && !export.Access.Has(memory.RemoteWrite),
		m.Type == iomsg.Write && !export.Access.Has(memory.RemoteRead):
		return status.NotPermitted
	}
	return status.Success
}

// start takes the first step of a transaction.
func (l *TargetLane) start(index uint32, t *transaction, pushed bool) {
	if t.ioType == iomsg.Read && l.config.VolumeMemory != nil {
		l.sendData(index, rdma.Segment{
			Key: l.config.VolumeMemory.LocalKey(), Length: t.ioSize,
			Address: l.config.VolumeMemory.Base() + t.request.Offset,
		})
		return
	}
	if t.ioType.MovesData() {
		t.request.Buffer = l.staging.bytes(index, t.ioSize)
	}
	if t.ioType == iomsg.Write && !pushed {
		l.fetch(index)
		return
	}
	l.submit(index)
}
