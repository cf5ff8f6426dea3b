package datapath

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Poll implements progress.Source: it goes on with what the volume has done.
func (l *TargetLane) Poll() int {
	if l.submitted == 0 {
		return 0
	}
	n := l.pollVolume()
	if n > 0 {
		l.finish()
	}
	return n
}

// complete implements connectionUser.
func (l *TargetLane) complete(role iomsg.ConnectionRole, c *rdma.Completion) {
	e := &l.endpoints[role]
	if c.Opcode == rdma.OpDisconnected {
		e.disconnected = true
		if !e.closed {
			l.fail(e.failure(c))
		}
		return
	}
	if c.Status != rdma.StatusSuccess {
		l.fail(e.failure(c))
		return
	}
	if l.state != targetServing {
		return
	}
	if c.Opcode == rdma.OpReceive {
		l.takeRequests(e, c)
		return
	}
	switch kind, index := splitWorkID(c.ID); kind {
	case messageWork:
		l.sent(e, index)
	case transferWork:
		l.fetched(index)
	}
}

// endBatch implements connectionUser.
func (l *TargetLane) endBatch() {
	if l.submitted > 0 {
		l.pollVolume()
	}
	l.finish()
}

// finish sends off what a batch has caused.
func (l *TargetLane) finish() {
	l.answerStop()
	for role := range iomsg.ConnectionRoleCount {
		e := &l.endpoints[role]
		l.post(e)
		if err := e.postReceives(); err != nil {
			l.fail(err)
		}
		e.flush()
	}
	l.nowNs = 0
	waiting := l.endpoints[iomsg.DataConnection].out.waiting() + l.endpoints[iomsg.ControlConnection].out.waiting()
	l.inFlight.Store(int64(l.answering+l.backlog.count) + int64(waiting))
	l.counters.publish()
	l.checkDrained()
}

// answerStop returns the stop message when everything before it has been
// answered.
func (l *TargetLane) answerStop() {
	if !l.stopping || l.answering > 0 || !l.backlog.empty() || l.state != targetServing {
		return
	}
	l.stopping, l.stopped = false, true
	*l.endpoints[iomsg.ControlConnection].out.message() = l.stop
}

// Start takes requests from now on. Both connections must be ready.
func (l *TargetLane) Start(ctx context.Context) error {
	var failed error
	err := l.worker.do(ctx, func() {
		for role := range iomsg.ConnectionRoleCount {
			if e := &l.endpoints[role]; l.state != targetServing || !e.ready || e.connection == nil {
				failed = status.Errorf(status.BadState, "start target lane: its %v connection is not ready", role)
				return
			}
		}
		l.started = true
	})
	return errors.Join(err, failed)
}

// Drain refuses new requests with status.Shutdown, so that those in flight can
// run out.
func (l *TargetLane) Drain(ctx context.Context) error {
	return l.worker.do(ctx, func() { l.draining = true })
}

// InFlight is how many requests have not been answered yet, or have answers
// that have not left, for observers.
func (l *TargetLane) InFlight() int { return int(l.inFlight.Load()) }

func (l *TargetLane) fail(err error) {
	if l.state != targetServing {
		return
	}
	l.state = targetFailed
	for role := range iomsg.ConnectionRoleCount {
		l.tellReady(role, err)
	}
	l.config.OnFailure(err)
}

// Revoke closes both connections and takes no more requests. Drained tells
// when the last volume request has ended.
func (l *TargetLane) Revoke(ctx context.Context) error {
	return l.worker.do(ctx, func() {
		if l.state == targetServing {
			l.state = targetFailed
		}
		for role := range iomsg.ConnectionRoleCount {
			l.tellReady(role, status.Errorf(status.ConnectionReset, "the session has ended"))
			l.endpoints[role].close()
		}
		l.checkDrained()
	})
}

// Drained is closed when, after Revoke, no volume request of the lane is
// under way and its connections have seen their last completion.
func (l *TargetLane) Drained() <-chan struct{} { return l.drained }

func (l *TargetLane) checkDrained() {
	if l.state == targetServing || l.submitted > 0 {
		return
	}
	for role := range iomsg.ConnectionRoleCount {
		if !l.endpoints[role].gone() {
			return
		}
	}
	select {
	case <-l.drained:
	default:
		close(l.drained)
	}
}

// Close revokes the lane, waits until it is drained and releases it. If ctx
// ends before, the lane's memory is leaked rather than freed under a device
// or a volume that may still use it.
func (l *TargetLane) Close(ctx context.Context) error {
	if err := l.Revoke(ctx); err != nil {
		return fmt.Errorf("close target lane: %w", err)
	}
	select {
	case <-l.drained:
	case <-ctx.Done():
		return fmt.Errorf("close target lane: wait for %d volume requests and its connections: %w", l.InFlight(), ctx.Err())
	}
	if err := l.worker.do(ctx, l.detach); err != nil {
		return fmt.Errorf("close target lane: %w", err)
	}
	return l.release()
}

func (l *TargetLane) detach() {
	l.state = targetClosed
	l.counters.giveUp(l.answering + l.backlog.count)
	l.counters.publish()
	l.worker.engine.Remove(l)
	l.worker.engine.RemoveWaiter(l.lane)
	l.dispatch.unregister(l.place)
	l.worker.lanes.Add(-1)
}
