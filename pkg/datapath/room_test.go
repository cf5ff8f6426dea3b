package datapath

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestARelayTakesNothingFromItsClientWhileItsSendsDoNotComplete(t *testing.T) {
	const depth = 4
	r := newForwardRig(t, depth)
	r.queue.withhold = true
	answered := 0
	turn := func() {
		r.worker.engine.Progress()
		answered += r.collect()
	}
	submitted := 0
	for submitted-answered < depth && submitted < 100 {
		r.submit(1)
		submitted++
		for range 4 {
			turn()
		}
	}
	// All are answered until as many Sends as there is room for are under way.
	if most := int(outgoingCapacity(depth)); answered > most || answered < most-depth {
		t.Fatalf("%d requests were answered while no Send completed, room is for %d", answered, most)
	}
	if r.lane.takesRequests() {
		t.Error("the lane would not sleep although it takes nothing")
	}
	r.queue.deliver()
	for range 100 {
		turn()
	}
	if answered != submitted {
		t.Errorf("%d of %d requests were answered when the Sends had completed", answered, submitted)
	}
}

// stalledConnection accepts requests and keeps them, as many as it could post.
type stalledConnection struct {
	rdma.Connection
	kept     []rdma.SendRequest
	capacity int
	open     bool
}

func (c *stalledConnection) PostSend(requests []rdma.SendRequest) error {
	if c.open {
		return c.Connection.PostSend(requests)
	}
	if len(c.kept)+len(requests) > c.capacity {
		return status.Full
	}
	c.kept = append(c.kept, requests...)
	return nil
}

func TestRequestsWaitAtATargetWhoseAnswersDoNotLeave(t *testing.T) {
	r := newTargetRig(t)
	stalled := &stalledConnection{capacity: sendRequests(testDepth)}
	e := &r.lane.endpoints[iomsg.DataConnection]
	together(t, r.lane.worker, func() {
		stalled.Connection = e.connection
		e.connection = stalled
	})
	// Requests come one by one, each slot again as soon as it is answered.
	total := uint64(outgoingCapacity(testDepth)) + 2
	for i := range total {
		r.relay.send(iomsg.DataConnection, &iomsg.Message{
			Type: iomsg.Read, UserData: i, Slot: uint32(i % testDepth), IOSize: testBlockSize, RequesterOffset: i % testDepth * testBlockSize,
		})
		awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
			return q.IO(iomsg.OpRead, status.Success)+q.BackPressure(NoAnswerRoom) == i+1
		})
	}
	if n := r.counters.Queues()[0].BackPressure(NoAnswerRoom); n == 0 || n > testDepth {
		t.Errorf("%d of %d requests had to wait", n, total)
	}
	together(t, r.lane.worker, func() {
		stalled.open = true
		if err := stalled.PostSend(stalled.kept); err != nil {
			t.Error(err)
		}
		stalled.Flush()
	})
	for i := range total {
		if m := r.relay.receive(iomsg.DataConnection); m.UserData != i || m.Result != status.Success {
			t.Errorf("answer %d is %+v", i, m)
		}
	}
	select {
	case err := <-r.failure:
		t.Error(err)
	default:
	}
}

func TestASecondStopEndsTheLane(t *testing.T) {
	r := newTargetRig(t)
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Stop})
	if m := r.relay.receive(iomsg.ControlConnection); m.Type != iomsg.Stop {
		t.Errorf("stop is answered with %+v", m)
	}
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Stop})
	r.expectFailure(status.Unexpected)
}
