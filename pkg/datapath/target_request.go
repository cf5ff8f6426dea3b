package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// transaction is a request of the relay until the Send of its answer has
// completed.
type transaction struct {
	message message // as received, becomes the answer
	ioType  iomsg.Type
	ioSize  uint32
	remote  uint64 // address in the client's memory
	slot    uint32
	startNs int64
	request volume.Request
}

// takeRequest deals with one message of the relay.
func (l *TargetLane) takeRequest(e *endpoint, c *rdma.Completion) {
	if err := checkMessage(e.role, c); err != nil {
		l.fail(err)
		return
	}
	_, index := splitWorkID(c.ID)
	var request message
	if err := e.take(index, &request); err != nil {
		l.fail(err)
		return
	}
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	switch {
	case !e.ready:
		l.takeHello(e, &m)
	case !l.started:
		l.fail(status.Errorf(status.BadState, "relay sent a message of type %d before start storage", uint32(m.Type)))
	case e.role != roleOf(m.Type) || l.stopping:
		l.fail(status.Errorf(status.Unexpected, "relay sent a message of type %d on the %v connection, out of order", uint32(m.Type), e.role))
	case m.Type == iomsg.Stop:
		l.stopping = true
		l.stop = request
	case l.answering+l.backlog.count >= l.config.Depth:
		l.fail(status.Errorf(status.Full, "relay sent more than the agreed %d requests", l.config.Depth))
	case m.Slot >= uint32(l.config.Depth) || l.slotsInUse[m.Slot]:
		l.fail(status.Errorf(status.Unexpected, "relay sent a request in slot %d, which does not exist or is in use", m.Slot))
	case len(l.free) == 0:
		l.slotsInUse[m.Slot] = true
		l.counters.take()
		l.counters.pressed(NoTransaction)
		l.backlog.push(&request) // has room for the depth
	default:
		l.slotsInUse[m.Slot] = true
		l.counters.take()
		l.begin(&request, &m)
	}
}

func (l *TargetLane) takeHello(e *endpoint, m *iomsg.Message) {
	if m.Type != iomsg.Hello {
		l.fail(status.Errorf(status.Unexpected, "relay began the %v connection with a message of type %d instead of hello", e.role, uint32(m.Type)))
		return
	}
	e.ready = true
	if e.connection == nil {
		l.hello[e.role] = true // answered by adopt
		return
	}
	l.answerHello(e)
}

func (l *TargetLane) answerHello(e *endpoint) {
	index := l.helloMessage(e.role)
	iomsg.Encode(l.messages.at(index)[:], &iomsg.Message{Type: iomsg.Hello})
	err := e.post([]rdma.SendRequest{{
		ID: workID(helloWork, index), Opcode: rdma.OpSend, Local: l.messages.segment(index),
	}})
	if err != nil {
		l.fail(err)
		return
	}
	l.tellReady(e.role, nil)
}

// begin gives a request a transaction and starts it.
func (l *TargetLane) begin(request *message, m *iomsg.Message) {
	n := len(l.free)
	index := l.free[n-1]
	l.free = l.free[:n-1]
	l.answering++
	t := &l.transactions[index]
	t.message, t.ioType, t.ioSize, t.startNs = *request, m.Type, m.IOSize, l.now()
	t.slot, t.remote = m.Slot, l.config.Export.Base+m.RequesterOffset
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
		t.request.Operation = volume.Read
	case iomsg.Write:
		t.request.Operation = volume.Write
	case iomsg.Flush:
		t.request.Operation = volume.Flush
	case iomsg.Trim:
		t.request.Operation = volume.Trim
	case iomsg.WriteZeroes:
		t.request.Operation = volume.WriteZeroes
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
		t.request.Buffer = l.staging.bytes(t.slot, t.ioSize)
	}
	if t.ioType == iomsg.Write && !pushed {
		l.fetch(index)
		return
	}
	l.submit(index)
}
