package datapath

import (
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestNothingIsAnsweredBeforeTheTargetsAccessIsRevoked(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(5))
	r.target.receive(iomsg.DataConnection)
	r.lane.CheckDeadline(0)
	r.expectFailure(status.TimeOut)
	// The target is late, but not gone: it can still write.
	segment, content := r.target.register(4096, 0)
	content[0] = 0xAB
	write := rdma.SendRequest{
		Opcode: rdma.OpWrite, Local: rdma.Segment{Key: segment.LocalKey(), Address: segment.Base(), Length: 4096},
		RemoteKey: r.exported.RemoteKey(), RemoteAddress: r.exported.Base() + 8192,
	}
	if got := r.target.transfer(iomsg.DataConnection, write); got != rdma.StatusSuccess {
		t.Fatalf("write before the revocation: %v", got)
	}
	select {
	case <-r.client.producer.answers:
		t.Fatal("the client was answered while the target could write")
	case <-time.After(50 * time.Millisecond):
	}
	if err := r.lane.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	r.region.Bytes()[8192] = 0
	r.target.transfer(iomsg.DataConnection, write) // flushed, or lost on the way
	if err := r.lane.Refuse(ctx, status.TimeOut); err != nil {
		t.Fatal(err)
	}
	if got := r.answer(); got.Result != status.TimeOut || got.UserData != 5 {
		t.Errorf("answered with %+v", got)
	}
	if r.region.Bytes()[8192] != 0 {
		t.Error("the target has written after the revocation")
	}
	r.client.send(readRequest(6))
	if got := r.answer(); got.Result != status.TimeOut || got.UserData != 6 {
		t.Errorf("a request after the end is answered with %+v", got)
	}
}

func TestALostTargetFailsTheLaneAndEveryRequestIsAnsweredOnce(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	for i := range uint64(testDepth) {
		r.client.send(readRequest(i))
	}
	r.target.receive(iomsg.DataConnection)
	r.target.disconnect()
	r.expectFailure(status.ConnectionReset)
	if err := r.lane.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.Refuse(ctx, status.ConnectionReset); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]int{}
	for range testDepth {
		m := r.answer()
		seen[m.UserData]++
		if m.Result != status.ConnectionReset {
			t.Errorf("request %d is answered with %v", m.UserData, m.Result)
		}
	}
	for i := range uint64(testDepth) {
		if seen[i] != 1 {
			t.Errorf("request %d was answered %d times", i, seen[i])
		}
	}
	if n := len(r.client.producer.answers); n != 0 {
		t.Errorf("%d answers too many", n)
	}
}

func TestAnswersThatHaveArrivedAreTakenBeforeTheRevocation(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	// The worker is held up twice: the second time, which Revoke follows
	// without a poll in between, the answer arrives.
	first, second := make(chan struct{}), make(chan struct{})
	holding := make(chan struct{})
	engine := r.lane.worker.engine
	engine.Do(func() { <-first })
	engine.Do(func() { close(holding); <-second })
	revoked := make(chan error, 1)
	go func() { revoked <- r.lane.Revoke(ctx) }()
	time.Sleep(20 * time.Millisecond) // for Revoke to queue up
	close(first)
	<-holding
	r.target.send(iomsg.DataConnection, &m)
	time.Sleep(20 * time.Millisecond) // for the answer to arrive
	close(second)
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if err := r.lane.Refuse(ctx, status.Shutdown); err != nil {
		t.Fatal(err)
	}
	if got := r.answer(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("answered with %+v", got)
	}
}

func TestAnAnswerCountsAlsoIfTheEndOfTheOtherConnectionIsSeenFirst(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	r.target.do(func() { r.target.connections[iomsg.ControlConnection].Close() })
	r.expectFailure(status.ConnectionReset)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	if got := r.answer(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("answered with %+v", got)
	}
}
