package datapath

import (
	"errors"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// complete implements connectionUser.
func (l *RelayLane) complete(role iomsg.ConnectionRole, c *rdma.Completion) {
	e := &l.endpoints[role]
	if c.Opcode == rdma.OpDisconnected {
		l.disconnected(e, c)
		return
	}
	if c.Status != rdma.StatusSuccess {
		l.lose(e, c)
		return
	}
	if c.Opcode == rdma.OpReceive {
		l.takeAnswers(e, c)
		return
	}
	if kind, position := splitWorkID(c.ID); kind == messageWork {
		e.out.release(position)
	}
}

// takesAnswers reports whether the target is listened to. What it has answered
// before a connection of its ended counts, in whatever order the ends of two
// connections are seen.
func (l *RelayLane) takesAnswers() bool {
	return l.state == relayWaiting || l.state == relayRunning || l.state == relayFailed && l.lost
}

// takeAnswers deals with the messages of one Send of the target.
func (l *RelayLane) takeAnswers(e *endpoint, c *rdma.Completion) {
	if !l.takesAnswers() {
		return
	}
	first, count, err := e.received(c)
	if err != nil {
		l.fail(err)
		return
	}
	for i := first; i < first+count && l.takesAnswers(); i++ {
		l.takeAnswer(e, l.messages.at(i))
	}
	if err := e.giveBack(first); err != nil {
		l.fail(err)
	}
}

// takeAnswer deals with one message of the target.
func (l *RelayLane) takeAnswer(e *endpoint, answer *message) {
	var m iomsg.Message
	iomsg.Decode(answer[:], &m)
	switch {
	case !e.ready:
		l.takeHello(e, &m)
	case m.Type == iomsg.Result:
		l.settle(&m)
	case m.Type == iomsg.Stop && l.stop.passed && !l.stop.answered:
		l.stop.answered = true
	default:
		l.fail(status.Errorf(status.Unexpected, "target sent a message of type %d on the %v connection", uint32(m.Type), e.role))
	}
}

func (l *RelayLane) takeHello(e *endpoint, m *iomsg.Message) {
	if m.Type != iomsg.Hello {
		l.fail(status.Errorf(status.Unexpected, "target answered the hello on the %v connection with type %d", e.role, uint32(m.Type)))
		return
	}
	e.greeted(m)
	l.tellReady(e.role, nil)
}

// settle answers the transaction that the target has answered. The client
// gets its own request back, so the target can change nothing but the result.
func (l *RelayLane) settle(m *iomsg.Message) {
	slot := l.slots.find(m.Slot, m.Generation)
	if slot == nil {
		l.fail(status.Errorf(status.Unexpected, "target answered slot %d generation %d, which is not in flight", m.Slot, m.Generation))
		return
	}
	if l.nowNs == 0 {
		l.nowNs = nanotime()
	}
	l.counters.answer(slot.ioType, m.Result, slot.ioSize, l.nowNs-slot.startNs)
	iomsg.TurnIntoResult(slot.request[:], m.Result)
	l.answer(&slot.request)
	l.slots.release(m.Slot)
}

// endBatch implements connectionUser.
func (l *RelayLane) endBatch() {
	for role := range iomsg.ConnectionRoleCount {
		e := &l.endpoints[role]
		if err := e.postReceives(); err != nil {
			l.fail(err)
		}
		e.flush()
	}
	l.nowNs = 0
	l.inFlight.Store(int64(l.slots.inFlight()))
	l.passStop()
	l.finishStop()
	l.counters.publish()
	l.flushAnswers()
}

// finishStop passes the target's answer to stop on.
func (l *RelayLane) finishStop() {
	if !l.stop.answered || l.stop.delivered {
		return
	}
	l.stop.delivered = true
	l.answer(&l.stop.message)
	close(l.stopped)
}

// answer sends a message to the client, or keeps it until the client has
// posted a receive. An answer to a client that is gone is dropped.
func (l *RelayLane) answer(m *message) {
	if l.outbox.empty() {
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
	l.counters.pressed(NoClientReceive)
	if !l.outbox.push(m) {
		l.fail(status.Errorf(status.Full, "client takes no answers"))
	}
}

// drainOutbox sends what was kept and returns how much it was.
func (l *RelayLane) drainOutbox() int {
	sent := 0
	for !l.outbox.empty() {
		err := l.config.Producer.Send(l.outbox.first()[:], nil)
		if errors.Is(err, status.Again) {
			break
		}
		l.outbox.pop()
		if err != nil {
			l.fail(err)
			break
		}
		l.unflushed = true
		sent++
	}
	return sent
}

func (l *RelayLane) flushAnswers() {
	if l.unflushed {
		l.unflushed = false
		l.config.Producer.Flush()
	}
}
