// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	"github.com/zc-relay/zc-relay/pkg/volume"
)

const (
	testVolumeSize = 1 << 20
	testBlockSize  = 4096
)

// slowVolume is a volume whose requests complete when the test allows it.
type slowVolume struct {
	content  []byte
	readOnly bool
	queue    *slowQueue
}

type slowQueue struct {
	volume  *slowVolume
	running []*volume.Request
	held    bool // by the test
	fail    error
	done    []*volume.Request
	bell    *doorbell
}

func (v *slowVolume) Info() volume.Info {
	return volume.Info{Name: "slow", Size: testVolumeSize, BlockSize: testBlockSize,
		ReadOnly: v.readOnly, Capabilities: volume.CanWriteZeroes | volume.CanReportExtents}
}
func (v *slowVolume) Memory() *memory.Region             { return nil }
func (*slowVolume) Ownership() *volume.Ownership         { return nil }
func (*slowVolume) CheckOwner(context.Context) error     { return nil }
func (*slowVolume) Failures() []volume.Failure           { return nil }
func (*slowVolume) Status() volume.Status                { return volume.Status{} }
func (*slowVolume) Resize(uint64, bool) error            { return status.NotSupported }
func (v *slowVolume) NewQueue(int) (volume.Queue, error) { return v.queue, nil }
func (v *slowVolume) Close(context.Context) error        { return nil }
func (l *slowQueue) Descriptor() int                     { return l.bell.Descriptor() }
func (l *slowQueue) Disarm()                             { l.bell.Disarm() }
func (l *slowQueue) Clear()                              { l.bell.Clear() }
func (l *slowQueue) Close() error                        { return nil }
func (l *slowQueue) Arm() bool {
	return l.bell.arm(func() bool { return len(l.done) > 0 })
}
func (l *slowQueue) Submit(request *volume.Request) error {
	l.bell.mu.Lock()
	defer l.bell.mu.Unlock()
	l.running = append(l.running, request)
	if !l.held {
		l.finish()
	}
	return nil
}

// finish carries out all running requests. The caller holds the lock.
func (l *slowQueue) finish() {
	for _, r := range l.running {
		r.Err = l.fail
		switch r.Operation {
		case iomsg.OpRead:
			copy(r.Buffer, l.volume.content[r.Offset:])
		case iomsg.OpExtents:
			iomsg.EncodeExtents(r.Buffer, []iomsg.Extent{{Length: r.Length - testBlockSize},
				{Length: testBlockSize, Flags: iomsg.Hole}})
		case iomsg.OpWrite:
			copy(l.volume.content[r.Offset:], r.Buffer)
		}
	}
	l.done = append(l.done, l.running...)
	l.running = nil
	if l.bell.armed {
		l.bell.ring()
	}
}

// block returns a copy of a block of the volume.
func (v *slowVolume) block(i int) []byte {
	v.queue.bell.mu.Lock()
	defer v.queue.bell.mu.Unlock()
	return bytes.Clone(v.content[i*testBlockSize:][:testBlockSize])
}

func (l *slowQueue) release() {
	l.bell.mu.Lock()
	defer l.bell.mu.Unlock()
	l.held = false
	l.finish()
}

func (l *slowQueue) hold() {
	l.bell.mu.Lock()
	defer l.bell.mu.Unlock()
	l.held = true
}

func (l *slowQueue) Poll(completed []*volume.Request) int {
	l.bell.mu.Lock()
	defer l.bell.mu.Unlock()
	n := copy(completed, l.done)
	l.done = append(l.done[:0], l.done[n:]...)
	return n
}

// targetRig is a target lane with an RDMA peer that plays the relay.
type targetRig struct {
	t        *testing.T
	relay    *rdmaPeer
	lane     *TargetLane
	volume   *slowVolume
	client   []byte // the exported memory
	domain   rdma.ProtectionDomain
	failure  chan error
	counters CounterSet
	tracer   trace.Tracer
}

func newTargetRig(t *testing.T) *targetRig { return makeTargetRig(t, true, 0) }

// makeTargetRig creates a lane with both connections, and starts it if start is
// set. The relay announces that it accepts Sends of the given size in bytes on
// the data connection; 0 announces nothing.
func makeTargetRig(t *testing.T, start bool, accepts uint32) *targetRig {
	t.Helper()
	ctx := testContext(t)
	device := openDevice(t)
	r := &targetRig{t: t, failure: make(chan error, 16),
		volume: &slowVolume{content: make([]byte, testVolumeSize)}}
	for i := range r.volume.content {
		r.volume.content[i] = byte(i / testBlockSize)
	}
	r.volume.queue = &slowQueue{volume: r.volume, bell: newDoorbell(t)}
	worker := runWorker(t)
	r.relay = newRDMAPeer(t, device)
	r.relay.accepts[iomsg.DataConnection] = accepts
	export, content := r.relay.register(testExport,
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	r.client = content
	var err error
	if r.domain, err = device.NewProtectionDomain(); err != nil {
		t.Fatal(err)
	}
	r.lane, err = NewTargetLane(ctx, TargetLaneConfig{
		Worker: worker, Device: device, Queue: testQueue,
		Counters: []*CounterSet{&r.counters}, Domain: r.domain,
		Volume: r.volume, Depth: testDepth, BufferSize: testBufferSize,
		Export: rdma.RemoteMemory{
			Key: export.RemoteKey(), Base: export.Base(), Length: testExport,
			Access: memory.RemoteRead | memory.RemoteWrite,
		},
		Tracer:    &r.tracer,
		OnFailure: func(err error) { r.failure <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	r.connect(ctx, device, start)
	return r
}

func (r *targetRig) connect(ctx context.Context, device rdma.Device, start bool) {
	r.t.Helper()
	listener, err := device.Listen(ctx, netip.AddrPortFrom(loopback, 0))
	if err != nil {
		r.t.Fatal(err)
	}
	defer listener.Close()
	for role := range iomsg.ConnectionRoleCount {
		accepted := make(chan error, 1)
		go func() {
			request, err := listener.Accept(ctx)
			if err == nil {
				err = r.lane.Accept(ctx, request, role, 4)
			}
			accepted <- err
		}()
		connection, err := device.Connect(ctx, listener.Address(), r.relay.config(role, nil))
		if err != nil {
			r.t.Fatal(err)
		}
		r.relay.attach(role, connection)
		if err := <-accepted; err != nil {
			r.t.Fatal(err)
		}
		r.relay.sendHello(role)
		if m := r.relay.receive(role); m.Type != iomsg.Hello {
			r.t.Fatalf("hello on the %v connection completed with %v", role, m.Type)
		}
	}
	if err := r.lane.Ready(ctx); err != nil {
		r.t.Fatal(err)
	}
	if !start {
		return
	}
	if err := r.lane.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
}

func (r *targetRig) close() {
	if err := r.lane.Close(testContext(r.t)); err != nil {
		r.t.Error(err)
	} else if !r.counters.isIdle() {
		r.t.Error("the closed lane still counts")
	}
	if err := r.domain.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *targetRig) expectFailure(code status.Code) {
	r.t.Helper()
	select {
	case err := <-r.failure:
		if !errors.Is(err, code) {
			r.t.Errorf("the lane failed with %v, want %v", err, code)
		}
	case <-time.After(testkit.Patience):
		r.t.Fatal("the lane did not fail")
	}
}

func TestReadDataArrivesBeforeItsResponse(t *testing.T) {
	r := newTargetRig(t)
	request := iomsg.Message{Type: iomsg.Read, IOSize: 2 * testBlockSize, RequesterOffset: 100,
		StorageOffset: 5 * testBlockSize, UserData: 9, Slot: 3, Generation: 4}
	r.relay.send(iomsg.DataConnection, &request)
	got := r.relay.receive(iomsg.DataConnection)
	request.Type = iomsg.Result
	if got != request {
		t.Errorf("completed with %+v, want %+v", got, request)
	}
	if !bytes.Equal(r.client[100:][:2*testBlockSize],
		r.volume.content[5*testBlockSize:][:2*testBlockSize]) {
		t.Error("the response arrived before the data")
	}
}

func TestATableOfExtentsArrivesBeforeItsResponse(t *testing.T) {
	r := newTargetRig(t)
	request := iomsg.Message{Type: iomsg.Extents, IOSize: 3 * iomsg.ExtentSize,
		RequesterOffset: 100, StorageOffset: 5 * testBlockSize, Range: 3 * testBlockSize, Slot: 3}
	r.relay.send(iomsg.DataConnection, &request)
	got := r.relay.receive(iomsg.DataConnection)
	request.Type = iomsg.Result
	if got != request {
		t.Errorf("completed with %+v, want %+v", got, request)
	}
	extents, err := iomsg.DecodeExtents(nil, r.client[100:][:3*iomsg.ExtentSize],
		3*testBlockSize)
	want := []iomsg.Extent{{Length: 2 * testBlockSize},
		{Length: testBlockSize, Flags: iomsg.Hole}}
	if err != nil || !slices.Equal(extents, want) {
		t.Errorf("extents are %v, %v, want %v", extents, err, want)
	}
}

func TestAWriteIsFetchedAndAppliedBeforeItsResponse(t *testing.T) {
	r := newTargetRig(t)
	for i := range r.client[:testBlockSize] {
		r.client[i] = 0x5A
	}
	r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Write, IOSize: testBlockSize,
		StorageOffset: 7 * testBlockSize})
	if got := r.relay.receive(iomsg.DataConnection); got.Type != iomsg.Result ||
		got.Result != status.Success {
		t.Errorf("completed with %+v", got)
	}
	if !bytes.Equal(r.volume.block(7), r.client[:testBlockSize]) {
		t.Error("the volume does not hold what was written")
	}
}

func TestWritesBeyondTheReadDepthAllComplete(t *testing.T) {
	r := newTargetRig(t) // four reads at a time
	for i := range uint64(testDepth) {
		r.client[i*testBlockSize] = byte(0x80 + i)
		r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Write, UserData: i,
			Slot: uint32(i), IOSize: testBlockSize, RequesterOffset: i * testBlockSize,
			StorageOffset: i * testBlockSize})
	}
	for range testDepth {
		if got := r.relay.receive(iomsg.DataConnection); got.Result != status.Success {
			t.Errorf("completed with %+v", got)
		}
	}
	for i := range testDepth {
		if got := r.volume.block(i)[0]; got != byte(0x80+i) {
			t.Errorf("block %d holds %#x", i, got)
		}
	}
	awaitCounts(t, &r.counters, func(q *QueueCounts) bool {
		return q.IO(iomsg.OpWrite, status.Success) == testDepth &&
			q.Bytes(iomsg.OpWrite) == testDepth*testBlockSize && q.InFlight == 0
	})
}

func TestATargetRejectsBadRequestsAndKeepsRunning(t *testing.T) {
	r := newTargetRig(t)
	base := iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize}
	for _, c := range []struct {
		name   string
		change func(*iomsg.Message)
		want   status.Code
	}{
		{"unknown type", func(m *iomsg.Message) { m.Type = 50 }, status.InvalidValue},
		{"unknown flags", func(m *iomsg.Message) { m.Flags = 1 << 9 }, status.InvalidValue},
		{"beyond the volume", func(m *iomsg.Message) { m.StorageOffset = testVolumeSize },
			status.InvalidValue},
		{"an offset that wraps",
			func(m *iomsg.Message) { m.StorageOffset = ^uint64(testBlockSize - 1) },
			status.InvalidValue},
		{"a part of a block", func(m *iomsg.Message) { m.IOSize = 100 }, status.InvalidValue},
		{"an offset inside a block", func(m *iomsg.Message) { m.StorageOffset = 1 },
			status.InvalidValue},
		{"beyond the export", func(m *iomsg.Message) { m.RequesterOffset = testExport - 1 },
			status.InvalidValue},
		{"too big", func(m *iomsg.Message) { m.IOSize = testBufferSize + testBlockSize },
			status.TooBig},
		{"nothing", func(m *iomsg.Message) { m.IOSize = 0 }, status.InvalidValue},
		{"extents of nothing", func(m *iomsg.Message) { m.Type = iomsg.Extents },
			status.InvalidValue},
		{"extents beyond the volume", func(m *iomsg.Message) {
			m.Type, m.StorageOffset, m.Range = iomsg.Extents, testBlockSize, testVolumeSize
		}, status.InvalidValue},
		{"extents from within a block", func(m *iomsg.Message) {
			m.Type, m.StorageOffset, m.Range = iomsg.Extents, 1, testBlockSize
		}, status.InvalidValue},
		{"a table with a part of an entry", func(m *iomsg.Message) {
			m.Type, m.Range, m.IOSize = iomsg.Extents, testBlockSize, iomsg.ExtentSize+1
		}, status.InvalidValue},
		{"no table", func(m *iomsg.Message) {
			m.Type, m.Range, m.IOSize = iomsg.Extents, testBlockSize, 0
		}, status.InvalidValue},
		{"a table that is too big", func(m *iomsg.Message) {
			m.Type, m.Range, m.IOSize = iomsg.Extents, testBlockSize,
				testBufferSize+iomsg.ExtentSize
		}, status.TooBig},
		{"a table beyond the export", func(m *iomsg.Message) {
			m.Type, m.Range, m.IOSize = iomsg.Extents, testBlockSize, iomsg.ExtentSize
			m.RequesterOffset = testExport - iomsg.ExtentSize + 1
		}, status.InvalidValue},
		{"trim, which the volume does not support", func(m *iomsg.Message) { m.Type = iomsg.Trim },
			status.NotSupported},
	} {
		m := base
		c.change(&m)
		r.relay.send(m.Type.Operation().Connection(), &m)
		if got := r.relay.receive(m.Type.Operation().Connection()); got.Result != c.want {
			t.Errorf("%s: completed with %v, want %v", c.name, got.Result, c.want)
		}
	}
	r.relay.send(iomsg.DataConnection, &base)
	if got := r.relay.receive(iomsg.DataConnection); got.Result != status.Success {
		t.Errorf("a good request afterwards: %v", got.Result)
	}
}

func TestAVolumeErrorIsTheResultOfItsIO(t *testing.T) {
	r := newTargetRig(t)
	r.volume.queue.hold()
	r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize})
	r.volume.queue.bell.mu.Lock()
	r.volume.queue.fail = status.Errorf(status.IOFailed, "write: %w", syscall.ENOSPC)
	r.volume.queue.bell.mu.Unlock()
	r.volume.queue.release()
	if got := r.relay.receive(iomsg.DataConnection); got.Result != status.IOFailed ||
		got.Cause != status.Cause(syscall.ENOSPC) {
		t.Errorf("completed with %v, cause %v", got.Result, got.Cause)
	}
}

func TestFlushAndWriteZeroesNeedNoData(t *testing.T) {
	r := newTargetRig(t)
	for _, kind := range []iomsg.Type{iomsg.Flush, iomsg.WriteZeroes} {
		r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: kind, IOSize: testBlockSize})
		if got := r.relay.receive(iomsg.ControlConnection); got.Result != status.Success {
			t.Errorf("%v completed with %v", kind, got.Result)
		}
	}
}

func TestStopReturnsAfterEverythingBeforeIt(t *testing.T) {
	r := newTargetRig(t)
	r.volume.queue.hold()
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Flush})
	stop := iomsg.Message{Type: iomsg.Stop, UserData: 77}
	r.relay.send(iomsg.ControlConnection, &stop)
	awaitStop(t, &r.lane.lane)
	select {
	case <-r.lane.Stopped():
		t.Fatal("the lane has stopped while a flush was running")
	default:
	}
	r.volume.queue.release()
	if got := r.relay.receive(iomsg.ControlConnection); got.Type != iomsg.Result {
		t.Errorf("the first response is %+v", got)
	}
	if got := r.relay.receive(iomsg.ControlConnection); got != stop {
		t.Errorf("the second response is %+v, want the stop unchanged", got)
	}
	<-r.lane.Stopped()
}

func TestMoreRequestsThanAgreedFailTheLane(t *testing.T) {
	r := newTargetRig(t)
	r.volume.queue.hold()
	for i := range uint32(testDepth + 1) {
		r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Flush, Slot: i})
	}
	r.expectFailure(status.Full)
	r.volume.queue.release()
}

func TestARequestOnTheWrongConnectionFailsTheLane(t *testing.T) {
	for role, kind := range map[iomsg.ConnectionRole]iomsg.Type{iomsg.ControlConnection: iomsg.Read,
		iomsg.DataConnection: iomsg.Flush} {
		r := newTargetRig(t)
		r.relay.send(role, &iomsg.Message{Type: kind, IOSize: testBlockSize})
		r.expectFailure(status.Unexpected)
	}
}

func TestASlotThatDoesNotExistOrIsInUseFailsTheLane(t *testing.T) {
	for name, slots := range map[string][]uint32{"beyond the depth": {testDepth},
		"in use": {1, 2, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newTargetRig(t)
			r.volume.queue.hold()
			defer r.volume.queue.release()
			for _, slot := range slots {
				r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Write,
					Flags: iomsg.Pushed, IOSize: testBlockSize, Slot: slot})
			}
			r.expectFailure(status.Unexpected)
		})
	}
}

func TestAPushedWriteIsAppliedFromTheBufferOfItsSlot(t *testing.T) {
	r := newTargetRig(t)
	source, content := r.relay.register(testBlockSize, 0)
	for i := range content {
		content[i] = 0xA5
	}
	staging := r.lane.Staging()
	push := rdma.SendRequest{
		Opcode: rdma.OpWrite, Local: rdma.Segment{Key: source.LocalKey(), Address: source.Base(),
			Length: testBlockSize},
		RemoteKey: staging.Key, RemoteAddress: staging.Base + 3*testBufferSize,
	}
	if got := r.relay.transfer(iomsg.DataConnection, push); got != rdma.StatusSuccess {
		t.Fatalf("push: %v", got)
	}
	r.relay.send(iomsg.DataConnection, &iomsg.Message{
		Type: iomsg.Write, Flags: iomsg.Pushed, Slot: 3, IOSize: testBlockSize,
		StorageOffset: 7 * testBlockSize,
	})
	if got := r.relay.receive(iomsg.DataConnection); got.Type != iomsg.Result ||
		got.Result != status.Success {
		t.Errorf("completed with %+v", got)
	}
	if !bytes.Equal(r.volume.block(7), content) {
		t.Error("the volume does not hold what was pushed")
	}
}

func TestAPushBeyondTheStagingFailsTheLane(t *testing.T) {
	r := newTargetRig(t)
	source, _ := r.relay.register(testBlockSize, 0)
	staging := r.lane.Staging()
	r.relay.transfer(iomsg.DataConnection, rdma.SendRequest{
		Opcode: rdma.OpWrite, Local: rdma.Segment{Key: source.LocalKey(), Address: source.Base(),
			Length: testBlockSize},
		RemoteKey: staging.Key, RemoteAddress: staging.Base + staging.Length - 1,
	})
	r.expectFailure(status.NotPermitted)
}

func TestRequestsBeforeStartFailTheLane(t *testing.T) {
	r := makeTargetRig(t, false, 0)
	r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize})
	r.expectFailure(status.BadState)
}

func TestALaneStartsOnlyWithBothConnections(t *testing.T) {
	r := makeTargetRig(t, false, 0)
	if err := r.lane.Revoke(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.Start(testContext(t)); !errors.Is(err, status.BadState) {
		t.Errorf("start: %v", err)
	}
}

func TestAHelloIsNoRequestInFlight(t *testing.T) {
	r := makeTargetRig(t, false, 0)
	together(t, r.lane.worker, func() {
		c := &r.lane.connections[iomsg.DataConnection]
		r.lane.respondHello(c)
		r.lane.flushResponses()
		if pending, n := c.pending(), r.lane.InFlight(); pending == 0 || n != 0 {
			t.Errorf("%d hellos are pending, %d requests are in flight", pending, n)
		}
	})
}

func TestADrainingTargetLaneRejectsNewRequests(t *testing.T) {
	r := newTargetRig(t)
	r.volume.queue.hold()
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Flush, UserData: 1})
	eventuallyInFlight(t, r.lane, 1)
	if err := r.lane.Drain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.Flush, UserData: 2, Slot: 1})
	if got := r.relay.receive(iomsg.ControlConnection); got.UserData != 2 ||
		got.Result != status.Shutdown {
		t.Errorf("a new request completed with %+v", got)
	}
	r.volume.queue.release()
	if got := r.relay.receive(iomsg.ControlConnection); got.UserData != 1 ||
		got.Result != status.Success {
		t.Errorf("the request in flight completed with %+v", got)
	}
}

func eventuallyInFlight(t *testing.T, l *TargetLane, count int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d requests are in flight", count),
		func() bool { return l.InFlight() == count })
}

func TestLongFetchesDoNotExhaustTheTransactions(t *testing.T) {
	r := newTargetRig(t)
	// Half of the requests fetch a lot of data while the others continue: the Sends
	// of their small responses complete only behind the large RDMA Reads.
	large := iomsg.Message{Type: iomsg.Write, IOSize: testBufferSize, UserData: 1}
	small := iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize, UserData: 2}
	for range testDepth / 2 {
		r.relay.send(iomsg.DataConnection, &large)
		large.Slot++
		small.Slot = large.Slot + testDepth/2 - 1
		r.relay.send(iomsg.DataConnection, &small)
	}
	for range 5000 {
		var b message
		select {
		case b = <-r.relay.received[iomsg.DataConnection]:
		case err := <-r.failure:
			t.Fatalf("the lane failed: %v", err)
		case <-time.After(testkit.Patience):
			t.Fatal("the lane has stopped responding")
		}
		var m iomsg.Message
		iomsg.Decode(b[:], &m)
		if m.Result != status.Success {
			t.Fatalf("completed with %v", m.Result)
		}
		if m.Type = iomsg.Read; m.UserData == large.UserData {
			m.Type = iomsg.Write
		}
		r.relay.send(iomsg.DataConnection, &m)
	}
}

func TestALaneQuiescesAfterItsRelayIsLostAndItsVolumeIOCompletes(t *testing.T) {
	r := newTargetRig(t)
	r.volume.queue.hold()
	r.relay.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Read, IOSize: testBlockSize})
	eventuallyInFlight(t, r.lane, 1)
	r.relay.disconnect()
	r.expectFailure(status.ConnectionReset)
	if err := r.lane.Revoke(testContext(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.lane.Quiesced():
		t.Error("the lane is quiesced while a volume request is running")
	case <-time.After(50 * time.Millisecond):
	}
	r.volume.queue.release()
	select {
	case <-r.lane.Quiesced():
	case <-time.After(testkit.Patience):
		t.Error("the lane does not quiesce")
	}
}

func TestAStoppedWorkerRejectsCommands(t *testing.T) {
	worker, err := startWorker(workerConfig{CPU: NoCPU, Policy: progress.Policy{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := worker.do(testContext(t), func() {}); !errors.Is(err, status.Shutdown) {
		t.Errorf("command after the end: %v", err)
	}
}

func TestATargetDemandsTheRightToEachRequest(t *testing.T) {
	r := newTargetRig(t)
	both := memory.RemoteRead | memory.RemoteWrite
	for _, c := range []struct {
		name     string
		kind     iomsg.Type
		access   memory.Access
		readOnly bool
		want     status.Code
	}{
		{"read from a volume for reading", iomsg.Read, both, true, status.Success},
		{"write to a volume for reading", iomsg.Write, both, true, status.NotPermitted},
		{"read into memory for writing", iomsg.Read, memory.RemoteWrite, false, status.Success},
		{"read into memory for reading", iomsg.Read, memory.RemoteRead, false, status.NotPermitted},
		{"extents into memory for reading", iomsg.Extents, memory.RemoteRead, false,
			status.NotPermitted},
		{"write from memory for reading", iomsg.Write, memory.RemoteRead, false, status.Success},
		{"write from memory for writing", iomsg.Write, memory.RemoteWrite, false,
			status.NotPermitted},
	} {
		together(t, r.lane.worker, func() {
			r.lane.config.Export.Access, r.lane.info.ReadOnly = c.access, c.readOnly
		})
		r.relay.send(iomsg.DataConnection,
			&iomsg.Message{Type: c.kind, IOSize: testBlockSize, Range: testBlockSize})
		if got := r.relay.receive(iomsg.DataConnection); got.Result != c.want {
			t.Errorf("%s: completed with %v, want %v", c.name, got.Result, c.want)
		}
	}
}

func TestFlagsOfARequestReachTheVolume(t *testing.T) {
	r := newTargetRig(t)
	for _, flags := range []iomsg.Flags{0, iomsg.FUA, iomsg.Deallocate} {
		r.volume.queue.hold()
		r.relay.send(iomsg.ControlConnection, &iomsg.Message{Type: iomsg.WriteZeroes, Flags: flags,
			IOSize: testBlockSize})
		eventuallyInFlight(t, r.lane, 1)
		r.volume.queue.bell.mu.Lock()
		got := r.volume.queue.running[0]
		if got.ForceUnitAccess != (flags == iomsg.FUA) ||
			got.Deallocate != (flags == iomsg.Deallocate) {
			t.Errorf("flags %v: the volume has got %+v", flags, got)
		}
		r.volume.queue.bell.mu.Unlock()
		r.volume.queue.release()
		if m := r.relay.receive(iomsg.ControlConnection); m.Result != status.Success {
			t.Errorf("flags %v: completed with %v", flags, m.Result)
		}
		eventuallyInFlight(t, r.lane, 0)
	}
}
