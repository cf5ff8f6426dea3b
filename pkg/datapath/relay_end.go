package datapath

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Start begins to forward requests. Both connections must be ready.
func (l *RelayLane) Start(ctx context.Context) error {
	var failed error
	err := l.worker.do(ctx, func() {
		if l.state != relayWaiting || !l.endpoints[iomsg.ControlConnection].ready || !l.endpoints[iomsg.DataConnection].ready {
			failed = status.Errorf(status.BadState, "start relay lane: its connections are not ready")
			return
		}
		l.state = relayRunning
	})
	return errors.Join(err, failed)
}

// Stopped is closed when the client's stop has passed through the whole chain
// and everything before it has been answered.
func (l *RelayLane) Stopped() <-chan struct{} { return l.stopped }

// Depth is how many requests the client may have outstanding.
func (l *RelayLane) Depth() int { return l.config.Depth }

// InFlight is how many requests await the target's answer, for observers.
func (l *RelayLane) InFlight() int { return int(l.inFlight.Load()) }

// Drain takes no more requests from the client, so that those in flight can
// run out.
func (l *RelayLane) Drain(ctx context.Context) error {
	return l.worker.do(ctx, func() { l.draining = true })
}

// CheckDeadline fails the lane if a request has waited longer than timeout
// for its answer.
func (l *RelayLane) CheckDeadline(timeout time.Duration) {
	l.worker.engine.Do(func() {
		oldestNs, waiting := l.slots.oldestNs()
		if waiting && nanotime()-oldestNs > int64(timeout) {
			l.fail(status.Errorf(status.TimeOut, "target did not answer an IO within %v", timeout))
		}
	})
}

// fail ends forwarding. Requests in flight are not answered before Refuse:
// until the session has been revoked, the target can still reach the
// client's memory.
func (l *RelayLane) fail(err error) {
	if l.state != relayWaiting && l.state != relayRunning {
		return
	}
	l.state = relayFailed
	for role := range iomsg.ConnectionRoleCount {
		l.tellReady(role, err)
	}
	l.config.OnFailure(err)
}

// Revoke closes both connections. When it returns, nothing is placed into or
// read from the client's memory on behalf of the target any more, over this
// lane.
func (l *RelayLane) Revoke(ctx context.Context) error {
	return l.worker.do(ctx, func() {
		if l.takesAnswers() {
			l.takeLastAnswers()
		}
		if l.state == relayWaiting || l.state == relayRunning {
			l.state = relayFailed
		}
		for role := range iomsg.ConnectionRoleCount {
			l.tellReady(role, status.Errorf(status.ConnectionReset, "the session has ended"))
			l.endpoints[role].close()
		}
		l.checkGone()
	})
}

// lastAnswerPolls bounds the answers that are still taken before a revocation.
const lastAnswerPolls = 64

// takeLastAnswers takes what has arrived already: a target that ends in order
// answers everything first, but says on another connection that it ends.
func (l *RelayLane) takeLastAnswers() {
	for range lastAnswerPolls {
		if l.slots.inFlight() == 0 || l.dispatch.Poll() == 0 {
			return
		}
	}
}

// Refuse answers every request in flight, and every further one, with code.
// The session must have been revoked.
func (l *RelayLane) Refuse(ctx context.Context, code status.Code) error {
	return l.worker.do(ctx, func() {
		if l.state == relayClosed {
			return
		}
		l.state = relayRefused
		l.draining = false
		l.failCode = code
		nowNs := nanotime()
		for i := range l.slots.slots {
			slot := &l.slots.slots[i]
			if !slot.inFlight {
				continue
			}
			l.counters.answer(slot.ioType, code, 0, nowNs-slot.startNs)
			iomsg.TurnIntoResult(slot.request[:], code)
			l.answer(&slot.request)
			l.slots.release(uint32(i))
		}
		l.inFlight.Store(0)
		l.counters.publish()
		l.flushAnswers()
	})
}

func (l *RelayLane) disconnected(e *endpoint, c *rdma.Completion) {
	e.disconnected = true
	if !e.closed {
		l.lose(e, c)
	}
	l.checkGone()
}

// lose fails the lane because a connection has ended.
func (l *RelayLane) lose(e *endpoint, c *rdma.Completion) {
	l.lost = l.lost || l.state == relayRunning
	l.fail(e.failure(c))
}

func (l *RelayLane) checkGone() {
	for role := range iomsg.ConnectionRoleCount {
		if !l.endpoints[role].gone() {
			return
		}
	}
	select {
	case <-l.gone:
	default:
		close(l.gone)
	}
}

// Close revokes the lane, waits for its last completions and releases it with
// its consumer and producer. If ctx ends before, the lane's memory is leaked
// rather than freed under a device that may still use it.
func (l *RelayLane) Close(ctx context.Context) error {
	if err := l.Revoke(ctx); err != nil {
		return fmt.Errorf("close relay lane: %w", err)
	}
	select {
	case <-l.gone:
	case <-ctx.Done():
		return fmt.Errorf("close relay lane: wait for its connections: %w", ctx.Err())
	}
	if err := l.worker.do(ctx, l.detach); err != nil {
		return fmt.Errorf("close relay lane: %w", err)
	}
	return errors.Join(l.config.Consumer.Close(), l.config.Producer.Close(), l.messages.close())
}

func (l *RelayLane) detach() {
	l.state = relayClosed
	l.counters.giveUp(l.slots.inFlight())
	l.counters.publish()
	l.worker.engine.Remove(l)
	l.worker.engine.RemoveWaiter(l.consumerWaiter())
	l.worker.engine.RemoveWaiter(l.producerWaiter())
	l.dispatch.unregister(l.place)
	l.worker.lanes.Add(-1)
}
