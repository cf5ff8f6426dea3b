package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// fetch reads the data of a write that was not pushed from the client's
// memory. Reads beyond the
// agreed depth wait here and not in the send queue, where they would hold up
// everything behind them.
func (l *TargetLane) fetch(index uint32) {
	if l.reads >= l.maxReads {
		l.counters.pressed(NoReadCredit)
		l.waitRead.push(index)
		return
	}
	t := &l.transactions[index]
	l.chain[0] = rdma.SendRequest{
		ID: workID(transferWork, index), Opcode: rdma.OpRead,
		Local:         l.staging.segment(t.slot, t.ioSize),
		RemoteAddress: t.remote, RemoteKey: l.config.Export.Key,
	}
	l.reads++
	if err := l.endpoints[dataRole].post(l.chain[:1]); err != nil {
		l.fail(err)
	}
}

// sendData writes the data of a read into the client's memory and sends the
// answer behind it on the same connection: no other order is safe on every
// transport. When the relay has the answer, it has the data too, so that the
// slot's staging buffer may be used again.
func (l *TargetLane) sendData(index uint32, source rdma.Segment) {
	t := &l.transactions[index]
	l.prepareAnswer(index, status.Success)
	l.chain[0] = rdma.SendRequest{
		ID: workID(transferWork, index), Opcode: rdma.OpWrite, Silent: true, Local: source,
		RemoteAddress: t.remote, RemoteKey: l.config.Export.Key,
	}
	l.chain[1] = rdma.SendRequest{ID: workID(messageWork, index), Opcode: rdma.OpSend, Local: l.messages.segment(index)}
	if err := l.endpoints[dataRole].post(l.chain[:]); err != nil {
		l.fail(err)
	}
}

// submit hands a transaction to the volume.
func (l *TargetLane) submit(index uint32) {
	t := &l.transactions[index]
	l.submitted++
	if err := l.lane.Submit(&t.request); err != nil {
		l.submitted--
		l.answer(index, status.CodeOf(err))
	}
}

// pollVolume goes on with transactions whose volume request is done.
func (l *TargetLane) pollVolume() int {
	total := 0
	for {
		n := l.lane.Poll(l.completed[:])
		for _, request := range l.completed[:n] {
			l.submitted--
			l.afterVolume(uint32(request.UserData), request)
		}
		if total += n; n < len(l.completed) || total >= 4*volumeBatch {
			return total
		}
	}
}

func (l *TargetLane) afterVolume(index uint32, request *volume.Request) {
	t := &l.transactions[index]
	if l.state != targetServing {
		return // there is nobody to answer
	}
	if request.Err != nil {
		l.answer(index, status.CodeOf(request.Err))
		return
	}
	if t.ioType == iomsg.Read {
		l.sendData(index, l.staging.segment(t.slot, t.ioSize))
		return
	}
	l.answer(index, status.Success)
}

// answer sends the outcome of a transaction that sends no data.
func (l *TargetLane) answer(index uint32, code status.Code) {
	l.prepareAnswer(index, code)
	l.chain[0] = rdma.SendRequest{ID: workID(messageWork, index), Opcode: rdma.OpSend, Local: l.messages.segment(index)}
	if err := l.endpoints[roleOf(l.transactions[index].ioType)].post(l.chain[:1]); err != nil {
		l.fail(err)
	}
}

func (l *TargetLane) prepareAnswer(index uint32, code status.Code) {
	t := &l.transactions[index]
	iomsg.TurnIntoResult(t.message[:], code)
	*l.messages.at(index) = t.message
	l.answering--
	l.slotsInUse[t.slot] = false
	l.counters.answer(t.ioType, code, t.ioSize, l.now()-t.startNs)
}

// sent ends a transaction: its answer is on its way and nothing refers to its
// memory any more.
func (l *TargetLane) sent(index uint32) {
	l.free = append(l.free, index)
	if !l.backlog.empty() {
		request := *l.backlog.first()
		l.backlog.pop()
		var m iomsg.Message
		iomsg.Decode(request[:], &m)
		l.begin(&request, &m)
	}
}

// fetched goes on with a write whose data has arrived.
func (l *TargetLane) fetched(index uint32) {
	l.reads--
	l.submit(index)
	if !l.waitRead.empty() {
		l.fetch(l.waitRead.pop())
	}
}

func (l *TargetLane) now() int64 {
	if l.nowNs == 0 {
		l.nowNs = nanotime()
	}
	return l.nowNs
}
