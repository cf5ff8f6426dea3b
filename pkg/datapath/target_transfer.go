package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// fetch reads the data of a write that was not pushed from the client's
// memory. Reads beyond the agreed depth wait here and not in the send queue,
// where they would hold up everything behind them.
func (l *TargetLane) fetch(index uint32) {
	if l.reads >= l.maxReads {
		l.counters.pressed(NoReadCredit)
		l.waitRead.push(index)
		return
	}
	t := &l.transactions[index]
	l.fetching[0] = rdma.SendRequest{
		ID: workID(transferWork, index), Opcode: rdma.OpRead,
		Local:         l.staging.segment(index, t.ioSize),
		RemoteAddress: t.remote, RemoteKey: l.config.Export.Key,
	}
	l.reads++
	if err := l.endpoints[iomsg.DataConnection].post(l.fetching[:]); err != nil {
		l.fail(err)
	}
}

// sendData writes the data of a read into the client's memory and sends the
// answer behind it on the same connection: no other order is safe on every
// transport. When the relay has the answer, it has the data too, so that the
// slot's staging buffer may be used again.
func (l *TargetLane) sendData(index uint32, source rdma.Segment) {
	t := &l.transactions[index]
	r := l.endpoints[iomsg.DataConnection].out.transfer(t.ioSize)
	r.Opcode, r.Local = rdma.OpWrite, source
	r.RemoteAddress, r.RemoteKey = t.remote, l.config.Export.Key
	l.answer(index, status.Success)
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
		l.sendData(index, l.staging.segment(index, t.ioSize))
		return
	}
	l.answer(index, status.Success)
}

// answer ends a transaction with its outcome, which is sent behind the data,
// if there is any, with others.
func (l *TargetLane) answer(index uint32, code status.Code) {
	t := &l.transactions[index]
	e := &l.endpoints[t.ioType.Connection()]
	m := e.out.message()
	*m = t.message
	iomsg.TurnIntoResult(m[:], code)
	t.inUse = false
	l.answering--
	l.counters.answer(t.ioType, code, t.ioSize, l.now()-t.startNs)
	if e.out.full() {
		l.post(e)
	}
}

// post posts what has been gathered for the relay, unless the lane has failed.
func (l *TargetLane) post(e *endpoint) {
	if l.state != targetServing {
		e.out.take()
		return
	}
	if err := e.postGathered(); err != nil {
		l.fail(err)
	}
}

// sent goes on when Sends have completed: there is room for more answers.
func (l *TargetLane) sent(e *endpoint, position uint32) {
	e.out.release(position)
	for l.state == targetServing && !l.backlog.empty() {
		var m iomsg.Message
		iomsg.Decode(l.backlog.first()[:], &m)
		if !l.hasRoom(m.Type.Connection()) {
			return
		}
		request := *l.backlog.first()
		l.backlog.pop()
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
