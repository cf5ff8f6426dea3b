package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Poll implements progress.Source: it forwards what the client has sent.
func (l *RelayLane) Poll() int {
	if !l.serves() {
		return 0
	}
	work := 0
	if !l.outbox.empty() {
		// The client owes receives: nothing more is taken from it until it
		// has posted them, so what it can make us keep is bounded.
		if work = l.drainOutbox(); !l.outbox.empty() {
			l.flushAnswers()
			return work
		}
	}
	n := 0
	if !l.draining && l.hasRoom() {
		n = l.config.Consumer.Poll(l.received[:])
	}
	if n > 0 {
		l.nowNs = nanotime()
		for i := range l.received[:n] {
			l.takeRequest(&l.received[i])
		}
		l.config.Consumer.Flush()
		l.sendRequests()
		l.counters.publish()
		l.nowNs = 0
	}
	l.flushAnswers()
	return work + n
}

// hasRoom reports whether there is room for the messages of all that the
// client may ask for: those of requests that have been answered may still wait
// for a completion.
func (l *RelayLane) hasRoom() bool {
	if l.state != relayRunning {
		return true // nothing is sent
	}
	for role := range iomsg.ConnectionRoleCount {
		if l.endpoints[role].out.room() <= uint32(l.slots.room()) {
			return false
		}
	}
	return true
}

// takeRequest copies one request out of the client's reach, hands its receive
// back and deals with it.
func (l *RelayLane) takeRequest(r *comch.Received) {
	request := &l.request
	if r.Length != iomsg.Size || r.Offset > uint32(len(l.config.Consumer.Memory()))-iomsg.Size {
		l.fail(status.Errorf(status.InvalidValue, "client sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return
	}
	*request = *(*message)(l.config.Consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := l.config.Consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		l.fail(err)
		return
	}
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	if m.Type == iomsg.Stop {
		l.takeStop(request)
		return
	}
	if code := l.judge(&m); code != status.Success {
		l.counters.refuse(m.Type, code, 0, 0)
		iomsg.TurnIntoResult(request[:], code)
		l.answer(request)
		return
	}
	l.forward(request, &m)
}

// judge says whether a request may be forwarded.
func (l *RelayLane) judge(m *iomsg.Message) status.Code {
	switch {
	case l.state == relayRefused:
		return l.failCode
	case l.state != relayRunning:
		return status.ConnectionReset
	case l.stop.requested:
		return status.BadState
	case !m.Type.IsRequest(), m.Flags&^iomsg.ClientFlags != 0:
		return status.InvalidValue
	case !m.Type.MovesData():
		return status.Success
	case m.IOSize > l.config.BufferSize:
		return status.TooBig
	case m.IOSize == 0, m.RequesterOffset > l.config.ExportLength,
		uint64(m.IOSize) > l.config.ExportLength-m.RequesterOffset:
		return status.InvalidValue
	case m.Type == iomsg.Read && !l.config.ExportAccess.Has(memory.RemoteWrite),
		m.Type == iomsg.Write && !l.config.ExportAccess.Has(memory.RemoteRead):
		return status.NotPermitted
	}
	return status.Success
}

// forward gives a request a slot and adds it to the batch for the target.
func (l *RelayLane) forward(request *message, m *iomsg.Message) {
	index, ok := l.slots.claim(request, m, l.nowNs)
	if !ok {
		// More than the agreed depth.
		l.counters.refuse(m.Type, status.Full, 0, 0)
		iomsg.TurnIntoResult(request[:], status.Full)
		l.answer(request)
		return
	}
	l.counters.take()
	iomsg.StampTag(request[:], index, l.slots.slots[index].generation)
	role := m.Type.Connection()
	out := &l.endpoints[role].out
	if m.Type == iomsg.Write && l.staging.Length > 0 {
		iomsg.SetFlags(request[:], iomsg.Pushed)
		l.push(out.transfer(m.IOSize), index, m)
	}
	*out.message() = *request
	if out.full() {
		l.post(role)
	}
}

// push writes the data of a write into the target's staging buffer of the
// slot: the request that follows it on the same connection finds it there,
// and the target need not fetch it, which would take another round trip.
func (l *RelayLane) push(r *rdma.SendRequest, index uint32, m *iomsg.Message) {
	r.Opcode = rdma.OpWrite
	r.Local = l.export
	r.Local.Address += m.RequesterOffset
	r.Local.Length = m.IOSize
	r.RemoteKey = l.staging.Key
	r.RemoteAddress = l.staging.Base + uint64(index)*uint64(l.config.BufferSize)
}

func (l *RelayLane) takeStop(request *message) {
	if l.state != relayRunning || l.stop.requested {
		l.fail(status.Errorf(status.BadState, "client sent stop twice or outside the data path"))
		return
	}
	l.stop.requested = true
	l.stop.message = *request
}

// passStop passes the client's stop on when everything before it has been
// answered: requests on the data connection could still be on their way.
func (l *RelayLane) passStop() {
	if !l.stop.requested || l.stop.passed || l.state != relayRunning || l.slots.inFlight() > 0 {
		return
	}
	l.stop.passed = true
	*l.endpoints[iomsg.ControlConnection].out.message() = l.stop.message
	l.post(iomsg.ControlConnection)
	l.endpoints[iomsg.ControlConnection].flush()
}

// sendRequests sends what the requests of a poll have caused.
func (l *RelayLane) sendRequests() {
	l.inFlight.Store(int64(l.slots.inFlight()))
	for role := range iomsg.ConnectionRoleCount {
		l.post(role)
		l.endpoints[role].flush()
	}
	l.passStop()
}

// post posts what has been gathered for the target, unless the lane has ended:
// its slots are answered later.
func (l *RelayLane) post(role iomsg.ConnectionRole) {
	e := &l.endpoints[role]
	if l.state != relayWaiting && l.state != relayRunning {
		e.out.take()
		return
	}
	if err := e.postGathered(); err != nil {
		l.fail(err)
	}
}
