// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

const (
	testDepth      = 8
	testQueue      = 3
	testBufferSize = 64 << 10
	testExport     = 1 << 20
)

// relayRig is a relay lane between a fake client and an RDMA peer that plays
// the target.
type relayRig struct {
	t        *testing.T
	client   *fakeClient
	target   *rdmaPeer
	lane     *RelayLane
	region   *memory.Region
	exported rdma.MemoryRegion
	domain   rdma.ProtectionDomain
	staging  []byte // of the target, nil without
	offered  rdma.RemoteMemory
	failure  chan error
	counters CounterSet
	tracer   trace.Tracer
	// targetShutdown gets an element when the lane reports that the target shuts down.
	targetShutdown chan struct{}
	// bounced is the memory of the bounce buffers and engine copies to and from them; both are nil
	// without.
	bounced *memory.Region
	engine  *heldEngine
	cleanUp []func() error
}

// relayRigOptions selects what the target of a rig offers.
type relayRigOptions struct {
	staging bool
	// accepts is the size in bytes of the Sends that the target accepts on its
	// data connection, as its hello announces it; 0 announces nothing.
	accepts uint32
	// bounce makes data pass through bounce buffers. Copies end when the test says so.
	bounce bool
	// policy is the worker's. channel and session, if set, throttle the lane.
	policy           progress.Policy
	channel, session *Throttle
	// connecting, if set, is the device that the lane connects with.
	connecting func(rdma.Device) rdma.Device
}

func newRelayRig(t *testing.T) *relayRig { return newRelayRigWith(t, relayRigOptions{}) }

func newRelayRigWith(t *testing.T, options relayRigOptions) *relayRig {
	t.Helper()
	ctx := testContext(t)
	device := openDevice(t)
	r := &relayRig{t: t, client: newFakeClient(t, testDepth), failure: make(chan error, 16),
		targetShutdown: make(chan struct{}, 16)}
	worker := runWorkerWith(t, options.policy)
	var err error
	if r.domain, err = device.NewProtectionDomain(); err != nil {
		t.Fatal(err)
	}
	if r.region, err = memory.Alloc("client", testExport); err != nil {
		t.Fatal(err)
	}
	reachable := r.region
	var bounce *BounceConfig
	if options.bounce {
		bounce = r.newBounce()
		reachable = r.bounced
	}
	if r.exported, err = r.domain.Register(reachable,
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	connecting := device
	if options.connecting != nil {
		connecting = options.connecting(device)
	}
	r.lane, err = NewRelayLane(ctx, RelayLaneConfig{
		Worker: worker, Device: connecting, Queue: testQueue, Counters: []*CounterSet{&r.counters},
		Domain: r.domain, Export: r.exported, ExportLength: testExport,
		ExportAccess: memory.RemoteRead | memory.RemoteWrite,
		Bounce:       bounce,
		Tracer:       &r.tracer,
		Consumer:     r.client.consumer, Producer: r.client.producer, Depth: testDepth,
		ChannelThrottle: options.channel, SessionThrottle: options.session,
		BufferSize:       testBufferSize,
		OnFailure:        func(err error) { r.failure <- err },
		OnTargetShutdown: func() { r.targetShutdown <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	r.target = newRDMAPeer(t, device)
	r.target.accepts[iomsg.DataConnection] = options.accepts
	if options.staging {
		registered, content := r.target.register(testDepth*testBufferSize,
			memory.LocalWrite|memory.RemoteWrite)
		r.staging, r.offered = content, rdma.RemoteMemory{Key: registered.RemoteKey(),
			Base: registered.Base(), Length: registered.Len()}
	}
	r.connect(ctx, device)
	return r
}

// connect makes both connections, with the peer as the accepting side.
func (r *relayRig) connect(ctx context.Context, device rdma.Device) {
	r.t.Helper()
	listener, err := device.Listen(ctx, netip.AddrPortFrom(loopback, 0))
	if err != nil {
		r.t.Fatal(err)
	}
	defer listener.Close()
	for role := range iomsg.ConnectionRoleCount {
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			request, err := listener.Accept(ctx)
			if err != nil {
				r.t.Errorf("accept: %v", err)
				return
			}
			connection, err := request.Accept(ctx, r.target.config(role, nil))
			if err != nil {
				r.t.Errorf("accept: %v", err)
				return
			}
			r.target.attach(role, connection)
			if m := r.target.receive(role); m.Type != iomsg.Hello {
				r.t.Errorf("the first message on the %v connection is of type %v", role, m.Type)
			}
			r.target.sendHello(role)
		}()
		err := r.lane.Connect(ctx, ConnectConfig{Role: role, Remote: listener.Address(),
			InboundReads: 8, Staging: r.offered})
		if err != nil {
			r.t.Fatal(err)
		}
		<-accepted
	}
}

// The kernel's siw can miss what arrives right behind its reply, until more arrives.
func TestATargetThatMissesTheHelloIsReminded(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{connecting: func(device rdma.Device) rdma.Device {
		return holdingDevice{device}
	}})
	r.start()
}

// holdingDevice holds back what is posted first on each connection, until more is posted.
type holdingDevice struct{ rdma.Device }

type holdingConnection struct {
	rdma.Connection
	held     []rdma.SendRequest
	released bool
}

func (d holdingDevice) Connect(ctx context.Context, remote netip.AddrPort,
	config rdma.ConnectionConfig) (rdma.Connection, error) {
	established, err := d.Device.Connect(ctx, remote, config)
	return &holdingConnection{Connection: established}, err
}

func (c *holdingConnection) PostSend(requests []rdma.SendRequest) error {
	if c.released {
		return c.Connection.PostSend(requests)
	}
	c.released = c.held != nil
	c.held = append(c.held, requests...)
	if !c.released {
		return nil
	}
	return c.Connection.PostSend(c.held)
}

func (r *relayRig) close() {
	ctx := testContext(r.t)
	if err := r.lane.Close(ctx); err != nil {
		r.t.Error(err)
	} else if !r.counters.isIdle() {
		r.t.Error("the closed lane still counts")
	}
	for _, step := range append([]func() error{r.exported.Deregister, r.domain.Close},
		append(r.cleanUp, r.region.Close)...) {
		if err := step(); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *relayRig) start() {
	r.t.Helper()
	if err := r.lane.Start(testContext(r.t)); err != nil {
		r.t.Fatal(err)
	}
}

// response waits for the next message to the client.
func (r *relayRig) response() iomsg.Message {
	r.t.Helper()
	select {
	case b := <-r.client.producer.responses:
		var m iomsg.Message
		iomsg.Decode(b[:], &m)
		return m
	case <-time.After(testkit.Patience):
		r.t.Fatal("the client got no response")
	}
	panic("unreachable")
}

// expectFailure waits until the lane has failed and checks its code.
func (r *relayRig) expectFailure(code status.Code) {
	r.t.Helper()
	if err := r.awaitFailure(); !errors.Is(err, code) {
		r.t.Errorf("the lane failed with %v, want %v", err, code)
	}
}

// awaitFailure waits until the lane has failed, and returns the reason.
func (r *relayRig) awaitFailure() error {
	r.t.Helper()
	select {
	case err := <-r.failure:
		return err
	case <-time.After(testkit.Patience):
		r.t.Fatal("the lane did not fail")
	}
	panic("unreachable")
}

func readRequest(userData uint64) *iomsg.Message {
	return &iomsg.Message{Type: iomsg.Read, UserData: userData, IOSize: 4096, RequesterOffset: 8192,
		StorageOffset: 1 << 20, Trace: 77}
}

func TestARequestReachesTheTargetUnchangedExceptForItsTag(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(42))
	got := r.target.receive(iomsg.DataConnection)
	want := *readRequest(42)
	want.Slot, want.Generation = got.Slot, got.Generation
	if got != want {
		t.Errorf("target received %+v, want %+v", got, want)
	}
}

func TestAResponseOnEitherConnectionReachesTheClientWithItsResult(t *testing.T) {
	for role := range iomsg.ConnectionRoleCount {
		t.Run(role.String(), func(t *testing.T) {
			r := newRelayRig(t)
			r.start()
			r.client.send(readRequest(42))
			m := r.target.receive(iomsg.DataConnection)
			m.Type, m.Result = iomsg.Result, status.IOFailed
			m.Cause = status.Cause(syscall.EROFS)
			m.UserData, m.IOSize = 1, 1 // a target can change nothing but the result
			r.target.send(role, &m)
			got := r.response()
			want := *readRequest(42)
			want.Type, want.Result = iomsg.Result, status.IOFailed
			want.Cause = status.Cause(syscall.EROFS)
			if got != want {
				t.Errorf("client received %+v, want %+v", got, want)
			}
			awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
				return q.IO(iomsg.OpRead, status.IOFailed) == 1 && q.Bytes(iomsg.OpRead) == 0 &&
					q.InFlight == 0
			})
		})
	}
}

func TestABadRequestIsRejectedAndTheLaneKeepsRunning(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	for _, c := range []struct {
		name   string
		change func(*iomsg.Message)
		want   status.Code
	}{
		{"unknown type", func(m *iomsg.Message) { m.Type = 99 }, status.InvalidValue},
		{"a result", func(m *iomsg.Message) { m.Type = iomsg.Result }, status.InvalidValue},
		{"a hello", func(m *iomsg.Message) { m.Type = iomsg.Hello }, status.InvalidValue},
		{"unknown flags", func(m *iomsg.Message) { m.Flags = 1 << 9 }, status.InvalidValue},
		{"no data", func(m *iomsg.Message) { m.IOSize = 0 }, status.InvalidValue},
		{"larger than the buffer size", func(m *iomsg.Message) { m.IOSize = testBufferSize + 1 },
			status.TooBig},
		{"beyond the export", func(m *iomsg.Message) { m.RequesterOffset = testExport - 1 },
			status.InvalidValue},
		{"an offset that wraps", func(m *iomsg.Message) { m.RequesterOffset = ^uint64(0) - 100 },
			status.InvalidValue},
	} {
		request := readRequest(7)
		c.change(request)
		r.client.send(request)
		if got := r.response(); got.Result != c.want || got.UserData != 7 ||
			got.Type != iomsg.Result {
			t.Errorf("%s: completed with %+v, want %v", c.name, got, c.want)
		}
	}
	r.client.send(readRequest(8))
	if m := r.target.receive(iomsg.DataConnection); m.UserData != 8 {
		t.Errorf("target received %+v", m)
	}
}

func TestARequestBeyondTheDepthIsRejectedAsFull(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	for i := range uint64(testDepth) {
		r.client.send(readRequest(i))
		r.target.receive(iomsg.DataConnection)
	}
	r.client.send(readRequest(100))
	if got := r.response(); got.Result != status.Full || got.UserData != 100 {
		t.Errorf("completed with %+v", got)
	}
}

func TestAResponseToNothingInFlightFailsTheLane(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*iomsg.Message)
	}{
		{"a slot out of range", func(m *iomsg.Message) { m.Slot = 1 << 30 }},
		{"a free slot", func(m *iomsg.Message) { m.Slot++ }},
		{"an older generation", func(m *iomsg.Message) { m.Generation-- }},
		{"a request", func(m *iomsg.Message) { m.Type = iomsg.Read }},
		{"an unsolicited stop", func(m *iomsg.Message) { m.Type = iomsg.Stop }},
		{"a second hello", func(m *iomsg.Message) { m.Type = iomsg.Hello }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRelayRig(t)
			r.start()
			r.client.send(readRequest(1))
			m := r.target.receive(iomsg.DataConnection)
			m.Type = iomsg.Result
			c.change(&m)
			r.target.send(iomsg.ControlConnection, &m)
			r.expectFailure(status.Unexpected)
		})
	}
}

func TestARequestCompletesOnce(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(1))
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	r.response()
	r.target.send(iomsg.DataConnection, &m)
	r.expectFailure(status.Unexpected)
}

func TestATargetMessageOfTheWrongSizeFailsTheLane(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.target.sendBytes(iomsg.ControlConnection, make([]byte, 10))
	r.expectFailure(status.InvalidValue)
}

func TestAClientMessageOfTheWrongSizeFailsTheLane(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.sendBytes(make([]byte, 10))
	r.expectFailure(status.InvalidValue)
}

func TestStopFollowsEveryResponse(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(1))
	m := r.target.receive(iomsg.DataConnection)
	r.client.send(&iomsg.Message{Type: iomsg.Stop, UserData: 99})
	awaitStop(t, &r.lane.lane)
	together(t, r.lane.worker, func() {
		if r.lane.stop != stopReceived {
			t.Error("the relay forwards stop with a read in flight")
		}
	})
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	if got := r.response(); got.Type != iomsg.Result {
		t.Errorf("the first response is %+v", got)
	}
	stop := r.target.receive(iomsg.ControlConnection)
	if stop.Type != iomsg.Stop || stop.UserData != 99 {
		t.Fatalf("target received %+v instead of stop", stop)
	}
	select {
	case b := <-r.client.producer.responses:
		t.Fatalf("the client got %x before the target returned the stop", b[:4])
	case <-r.lane.Stopped():
		t.Fatal("the lane has stopped before the target")
	case <-time.After(50 * time.Millisecond):
	}
	r.target.send(iomsg.ControlConnection, &stop)
	if got := r.response(); got != stop {
		t.Errorf("the second response is %+v, want the stop unchanged", got)
	}
	<-r.lane.Stopped()
	r.client.send(readRequest(2))
	if got := r.response(); got.Result != status.BadState {
		t.Errorf("a request after stop completed with %v", got.Result)
	}
}

func TestAStopWithNothingInFlightIsForwardedAtOnce(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(&iomsg.Message{Type: iomsg.Stop, UserData: 99})
	stop := r.target.receive(iomsg.ControlConnection)
	r.target.send(iomsg.ControlConnection, &stop)
	if got := r.response(); got != stop {
		t.Errorf("the client got %+v", got)
	}
}

func TestRequestsWithoutDataUseTheControlConnection(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	for _, kind := range []iomsg.Type{iomsg.Flush, iomsg.Trim, iomsg.WriteZeroes} {
		r.client.send(&iomsg.Message{Type: kind, IOSize: 4096})
		if m := r.target.receive(iomsg.ControlConnection); m.Type != kind {
			t.Errorf("target received %+v, want %v", m, kind)
		}
	}
}

func writeRequest(userData uint64) *iomsg.Message {
	return &iomsg.Message{Type: iomsg.Write, UserData: userData, IOSize: 4096,
		RequesterOffset: 8192, StorageOffset: 1 << 20}
}

func TestPushedDataIsInItsSlotsBufferBeforeTheRequest(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{staging: true})
	r.start()
	for round := range byte(3 * testDepth) {
		content := r.region.Bytes()[8192:][:4096]
		for i := range content {
			content[i] = round + 1
		}
		r.client.send(writeRequest(7))
		m := r.target.receive(iomsg.DataConnection)
		if m.Flags != iomsg.Pushed {
			t.Fatalf("the request has flags %#x", m.Flags)
		}
		if got := r.staging[m.Slot*testBufferSize:][:4096]; !bytes.Equal(got, content) {
			t.Fatalf("round %d: the buffer of slot %d holds %#x", round, m.Slot, got[0])
		}
		m.Type = iomsg.Result
		r.target.send(iomsg.DataConnection, &m)
		if got := r.response(); got.Flags != 0 || got.Result != status.Success {
			t.Fatalf("the client got %+v", got)
		}
	}
}

func TestEverySlotHasItsOwnStagingBuffer(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{staging: true})
	r.start()
	for i := range uint64(testDepth) {
		request := writeRequest(i)
		request.RequesterOffset = i * 4096
		r.region.Bytes()[request.RequesterOffset] = byte(i) + 1
		r.client.send(request)
	}
	for range testDepth {
		m := r.target.receive(iomsg.DataConnection)
		if got, want := r.staging[m.Slot*testBufferSize], byte(m.UserData)+1; got != want {
			t.Errorf("the buffer of slot %d holds %#x, want %#x", m.Slot, got, want)
		}
	}
}

func TestWithoutStagingTheRelayPushesNothing(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(writeRequest(7))
	if m := r.target.receive(iomsg.DataConnection); m.Flags != 0 {
		t.Errorf("the request has flags %#x", m.Flags)
	}
}

func TestAClientCannotSetThePushedFlag(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	request := writeRequest(7)
	request.Flags = iomsg.Pushed
	r.client.send(request)
	if got := r.response(); got.Result != status.InvalidValue {
		t.Errorf("completed with %+v", got)
	}
}

func TestResponsesWaitUntilTheClientPostsReceives(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.producer.setCredits(1)
	requests := make([]iomsg.Message, testDepth)
	for i := range requests {
		r.client.send(readRequest(uint64(i)))
		requests[i] = r.target.receive(iomsg.DataConnection)
	}
	for _, m := range requests {
		m.Type = iomsg.Result
		r.target.send(iomsg.ControlConnection, &m)
	}
	r.response()
	select {
	case <-r.client.producer.responses:
		t.Fatal("a response came without a receive")
	case <-time.After(20 * time.Millisecond):
	}
	awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
		return q.Total(iomsg.OpRead) == testDepth && q.BackPressure(NoClientReceive) == testDepth-1
	})
	r.client.producer.setCredits(testDepth)
	for i := uint64(1); i < testDepth; i++ {
		if m := r.response(); m.UserData != i {
			t.Errorf("response %d is for request %d", i, m.UserData)
		}
	}
}

func TestAClientThatOwesReceivesIsNotServed(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.producer.setCredits(0)
	bad := readRequest(1)
	bad.Type = 99
	r.client.send(bad)
	testkit.Eventually(t, "a response waits for a receive", func() (waits bool) {
		together(t, r.lane.worker, func() { waits = r.lane.outbox.Len() == 1 })
		return waits
	})
	if got := r.sendRequest(testContext(t), "unread"); got != "unread" {
		t.Errorf("a request of a client that owes receives is %s", got)
	}
}

func TestAResponseDoesNotOvertakeThoseThatWait(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	together(t, r.lane.worker, func() {
		r.client.producer.setCredits(0)
		r.lane.respond(&message{1})
		r.client.producer.setCredits(2)
		r.lane.respond(&message{2})
		r.lane.sendOutbox()
	})
	for want := range byte(2) {
		if got := <-r.client.producer.responses; got != (message{want + 1}) {
			t.Errorf("response %d comes in place of response %d", got[0], want+1)
		}
	}
}

func TestADrainingRelayLaneForwardsNothingNew(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(1))
	m := r.target.receive(iomsg.DataConnection)
	if err := r.lane.Drain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	r.client.send(readRequest(2))
	m.Type = iomsg.Result
	r.target.send(iomsg.ControlConnection, &m)
	if got := r.response(); got.UserData != 1 {
		t.Errorf("completed with %+v", got)
	}
	select {
	case <-r.target.received[iomsg.DataConnection]:
		t.Error("a draining lane forwarded a request")
	case <-time.After(30 * time.Millisecond):
	}
}

func TestStartNeedsReadyConnections(t *testing.T) {
	device := openDevice(t)
	worker := runWorker(t)
	domain, err := device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	client := newFakeClient(t, testDepth)
	ctx := testContext(t)
	lane, err := NewRelayLane(ctx, RelayLaneConfig{
		Worker: worker, Device: device, Domain: domain, Consumer: client.consumer,
		Producer: client.producer,
		Depth:    testDepth, BufferSize: testBufferSize, OnFailure: func(error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := lane.Start(ctx); !errors.Is(err, status.BadState) {
		t.Errorf("start without connections: %v", err)
	}
	if err := lane.Close(ctx); err != nil {
		t.Error(err)
	}
	if !client.consumer.closed || !client.producer.closed {
		t.Error("the lane did not close its consumer and producer")
	}
	if err := domain.Close(); err != nil {
		t.Error(err)
	}
}

// unprotectedDevice forgets that a connection was to have TLS.
type unprotectedDevice struct {
	rdma.Device
	connection *unprotectedConnection
}

// unprotectedConnection crashes whoever sends or receives anything.
type unprotectedConnection struct {
	rdma.Connection
	aborted bool
}

func (d unprotectedDevice) Connect(context.Context, netip.AddrPort, rdma.ConnectionConfig) (
	rdma.Connection, error) {
	return d.connection, nil
}

func (*unprotectedConnection) Parameters() rdma.Parameters { return rdma.Parameters{} }

func (c *unprotectedConnection) Abort() { c.aborted = true }

func TestALaneSendsNothingOnAConnectionWithoutTheProtectionThatItNeeds(t *testing.T) {
	connection := &unprotectedConnection{}
	device := unprotectedDevice{openDevice(t), connection}
	domain, err := device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	client, ctx := newFakeClient(t, testDepth), testContext(t)
	lane, err := NewRelayLane(ctx, RelayLaneConfig{
		Worker: runWorker(t), Device: device, Domain: domain, Consumer: client.consumer,
		Producer: client.producer,
		Depth:    testDepth, BufferSize: testBufferSize, OnFailure: func(error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = lane.Connect(ctx, ConnectConfig{TLS: &rdma.ClientTLS{}})
	if !errors.Is(err, status.Authentication) || !connection.aborted {
		t.Errorf("Connect: %v; the connection has been aborted: %v", err, connection.aborted)
	}
	if err := errors.Join(lane.Close(ctx), domain.Close()); err != nil {
		t.Error(err)
	}
}

func TestNoRequestCompletesBeforeTheTargetsAccessIsRevoked(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(5))
	r.target.receive(iomsg.DataConnection)
	r.lane.CheckDeadline(0)
	r.expectFailure(status.TimeOut)
	// The target is late, but still connected: it can write.
	segment, content := r.target.register(4096, 0)
	content[0] = 0xAB
	write := rdma.SendRequest{
		Opcode: rdma.OpWrite, Local: rdma.Segment{Key: segment.LocalKey(), Address: segment.Base(),
			Length: 4096},
		RemoteKey: r.exported.RemoteKey(), RemoteAddress: r.exported.Base() + 8192,
	}
	if got := r.target.transfer(iomsg.DataConnection, write); got != rdma.StatusSuccess {
		t.Fatalf("write before the revocation: %v", got)
	}
	select {
	case <-r.client.producer.responses:
		t.Fatal("a request completed while the target could still write")
	case <-time.After(50 * time.Millisecond):
	}
	if err := r.lane.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	r.region.Bytes()[8192] = 0
	r.target.transfer(iomsg.DataConnection, write) // flushed, or lost on the way
	if err := r.lane.FailRequests(ctx, status.TimeOut); err != nil {
		t.Fatal(err)
	}
	if got := r.response(); got.Result != status.TimeOut || got.UserData != 5 {
		t.Errorf("completed with %+v", got)
	}
	if r.region.Bytes()[8192] != 0 {
		t.Error("the target wrote after the revocation")
	}
	r.client.send(readRequest(6))
	if got := r.response(); got.Result != status.TimeOut || got.UserData != 6 {
		t.Errorf("a request after the end completed with %+v", got)
	}
}

func TestALostTargetFailsTheLaneAndEveryRequestCompletesOnce(t *testing.T) {
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
	if err := r.lane.FailRequests(ctx, status.ConnectionReset); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]int{}
	for range testDepth {
		m := r.response()
		seen[m.UserData]++
		if m.Result != status.ConnectionReset {
			t.Errorf("request %d completed with %v", m.UserData, m.Result)
		}
	}
	for i := range uint64(testDepth) {
		if seen[i] != 1 {
			t.Errorf("request %d completed %d times", i, seen[i])
		}
	}
	if n := len(r.client.producer.responses); n != 0 {
		t.Errorf("%d responses too many", n)
	}
}

func TestResponsesThatHaveArrivedAreDeliveredBeforeTheRevocation(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	// The worker revokes without a poll between the arrival and the revocation.
	held, arrived := make(chan struct{}), make(chan struct{})
	revoked := make(chan error, 1)
	go func() {
		revoked <- r.lane.worker.do(ctx, func() {
			close(held)
			<-arrived
			r.lane.deliverAndRevoke()
		})
	}()
	<-held
	r.target.send(iomsg.DataConnection, &m)
	queue := r.lane.dispatcher.queue // its thread is held
	for queue.Arm() {
		queue.Disarm()
		time.Sleep(time.Millisecond)
	}
	close(arrived)
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if err := r.lane.FailRequests(ctx, status.Shutdown); err != nil {
		t.Fatal(err)
	}
	if got := r.response(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("completed with %+v", got)
	}
}

func TestAResponseCountsEvenIfTheOtherConnectionIsLostFirst(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	r.target.do(func() { r.target.connections[iomsg.ControlConnection].Close() })
	r.expectFailure(status.ConnectionReset)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	if got := r.response(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("completed with %+v", got)
	}
}

// quietQueue is a completion queue that moves data without completions for a number of polls.
type quietQueue struct {
	rdma.CompletionQueue
	quiet int
}

func (q *quietQueue) Poll(completions []rdma.Completion) int {
	if q.quiet > 0 {
		q.quiet--
		return 0
	}
	return q.CompletionQueue.Poll(completions)
}

func (q *quietQueue) Arm() bool { return q.quiet == 0 && q.CompletionQueue.Arm() }

func TestAResponseIsDeliveredFromBehindTheDataThatPrecedesIt(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	together(t, r.lane.worker, func() {
		inner := r.lane.dispatcher.queue // this thread is its own
		r.target.send(iomsg.DataConnection, &m)
		for inner.Arm() {
			inner.Disarm()
			time.Sleep(time.Millisecond)
		}
		r.lane.dispatcher.queue = &quietQueue{inner, 10}
		r.lane.deliverAndRevoke()
		r.lane.dispatcher.queue = inner
	})
	if err := r.lane.FailRequests(ctx, status.Shutdown); err != nil {
		t.Fatal(err)
	}
	if got := r.response(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("completed with %+v", got)
	}
}

func TestATargetThatNeverStopsSendingDoesNotDelayTheRevocation(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(5))
	r.target.receive(iomsg.DataConnection)
	together(t, r.lane.worker, func() {
		inner := r.lane.dispatcher.queue
		endless := &quietQueue{inner, 1 << 30}
		r.lane.dispatcher.queue = endless
		r.lane.deliverAndRevoke()
		r.lane.dispatcher.queue = inner
		if polls := 1<<30 - endless.quiet; polls != lastPolls {
			t.Errorf("%d polls, want %d", polls, lastPolls)
		}
	})
}

func TestALateResponseCountsUntilTheRevocation(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	r.lane.CheckDeadline(0)
	r.expectFailure(status.TimeOut)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	if got := r.response(); got.Result != status.Success || got.UserData != 5 {
		t.Errorf("completed with %+v", got)
	}
}

func TestATargetCannotEndASessionByACodeOfTheRelays(t *testing.T) {
	for _, code := range []status.Code{status.TimeOut, status.ConnectionReset, status.InUse} {
		t.Run(code.String(), func(t *testing.T) {
			r := newRelayRig(t)
			r.start()
			r.client.send(readRequest(5))
			m := r.target.receive(iomsg.DataConnection)
			m.Type, m.Result = iomsg.Result, code
			r.target.send(iomsg.DataConnection, &m)
			if got := r.response(); got.Result != status.IOFailed || got.UserData != 5 {
				t.Errorf("completed with %+v", got)
			}
		})
	}
}

func TestARequestThatAStoppingTargetDeclinesCompletesWithTheSession(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	ctx := testContext(t)
	var forwarded [3]iomsg.Message
	for i := range forwarded {
		r.client.send(readRequest(uint64(i)))
		forwarded[i] = r.target.receive(iomsg.DataConnection)
		forwarded[i].Type = iomsg.Result
	}
	for i := range 2 {
		forwarded[i].Result = status.Shutdown
		r.target.send(iomsg.DataConnection, &forwarded[i])
	}
	r.target.send(iomsg.DataConnection, &forwarded[2])
	if got := r.response(); got.UserData != 2 || got.Result != status.Success {
		t.Errorf("the request that the target still carries out completed with %+v", got)
	}
	<-r.targetShutdown
	// The lane counts at the end of its turn.
	testkit.Eventually(t, "no request awaits the target", func() bool { return r.lane.InFlight() == 0 })
	if n := len(r.targetShutdown); n != 0 {
		t.Errorf("the lane reported the target's end %d more times", n)
	}
	if got := r.sendRequest(ctx, "unread"); got != "unread" {
		t.Errorf("a later request was %s", got)
	}
	if err := r.lane.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.FailRequests(ctx, status.Shutdown); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := r.response(); got.UserData > 1 || got.Result != status.Shutdown {
			t.Errorf("a declined request completed with %+v", got)
		}
	}
}

func TestASecondResponseToADeclinedRequestBreaksTheProtocol(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	r.client.send(readRequest(5))
	m := r.target.receive(iomsg.DataConnection)
	m.Type, m.Result = iomsg.Result, status.Shutdown
	r.target.send(iomsg.DataConnection, &m)
	r.target.send(iomsg.DataConnection, &m)
	r.expectFailure(status.Unexpected)
	if n := r.responses(); n != "none" {
		t.Errorf("the client got %s", n)
	}
}

// eagerConsumer is the consumer of a client that writes into a receive as soon as it is posted.
type eagerConsumer struct{ *fakeConsumer }

func (c eagerConsumer) PostReceive(offset, length uint32, userData uint64) error {
	clear(c.memory[offset:][:length])
	return c.fakeConsumer.PostReceive(offset, length, userData)
}

func TestARequestIsCopiedBeforeItsReceiveIsPostedAgain(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	together(t, r.lane.worker, func() { r.lane.config.Consumer = eagerConsumer{r.client.consumer} })
	r.client.send(readRequest(7))
	select {
	case <-r.target.received[iomsg.DataConnection]:
	case b := <-r.client.producer.responses:
		t.Errorf("the relay has read %x, which the client has written later", b)
	case <-time.After(testkit.Patience):
		t.Error("the relay does not forward the request")
	}
}

func TestARequestNeedsTheRightToTheClientsMemory(t *testing.T) {
	r := newRelayRig(t)
	r.start()
	extents := readRequest(3)
	extents.Type = iomsg.Extents
	for _, c := range []struct {
		name    string
		request *iomsg.Message
		needs   memory.Access
	}{
		{"read", readRequest(1), memory.RemoteWrite},
		{"write", writeRequest(2), memory.RemoteRead},
		{"extents", extents, memory.RemoteWrite},
	} {
		for _, access := range []memory.Access{memory.RemoteRead, memory.RemoteWrite} {
			together(t, r.lane.worker, func() { r.lane.config.ExportAccess = access })
			r.client.send(c.request)
			got := status.Success
			select {
			case b := <-r.target.received[iomsg.DataConnection]:
				var m iomsg.Message
				iomsg.Decode(b[:], &m)
				m.Type = iomsg.Result
				r.target.send(iomsg.DataConnection, &m)
				r.response()
			case b := <-r.client.producer.responses:
				var m iomsg.Message
				iomsg.Decode(b[:], &m)
				got = m.Result
			case <-time.After(testkit.Patience):
				t.Fatal("the relay does nothing")
			}
			want := status.NotPermitted
			if access == c.needs {
				want = status.Success
			}
			if got != want {
				t.Errorf("%s of memory exported as %v: %v, want %v", c.name, access, got, want)
			}
		}
	}
}

func TestTheOldestRequestDecidesTheDeadline(t *testing.T) {
	table := newSlotTable(3)
	var request message
	var slots [3]uint32
	for i, startNs := range []int64{5, 3, 9} {
		slots[i], _ = table.claim(&request, iomsg.OpRead, 0, startNs)
	}
	for _, want := range []int64{3, 5, 9} {
		if got := table.oldest(); got == nil || got.startNs != want {
			t.Errorf("the oldest request is %+v, want the one begun at %d", got, want)
		}
		for _, slot := range slots {
			if table.slots[slot].startNs == want {
				table.release(slot)
			}
		}
	}
	if table.oldest() != nil {
		t.Error("a request is in flight although all have completed")
	}
}
