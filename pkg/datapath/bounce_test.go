// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// heldEngine starts a copy when the test releases it.
type heldEngine struct {
	dma.Engine
	*doorbell

	held     []*dma.Copy
	released int // of the copies in held
	fail     error
}

// newBounce returns bounce buffers for the rig. Another queue's lie ahead of them.
func (r *relayRig) newBounce() *BounceConfig {
	r.t.Helper()
	const offset = testDepth * testBufferSize
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	device, err := software.New(software.Options{Inline: true}).Open(software.DefaultDevice)
	must(err)
	engine, err := device.NewEngine(testDepth)
	must(err)
	r.engine = &heldEngine{Engine: engine, doorbell: newDoorbell(r.t)}
	r.bounced, err = memory.Alloc("bounce", offset+testDepth*testBufferSize)
	must(err)
	client, err := device.Register(r.region, memory.PCIRead|memory.PCIWrite)
	must(err)
	buffers, err := device.Register(r.bounced, memory.LocalWrite)
	must(err)
	r.cleanUp = []func() error{client.Deregister, buffers.Deregister, r.bounced.Close, device.Close}
	return &BounceConfig{Engine: r.engine, Client: client, Buffers: buffers, Offset: offset}
}

func (e *heldEngine) Submit(c *dma.Copy) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = append(e.held, c)
	return nil
}

// release lets n copies proceed, or fail with an error, once they have been submitted.
func (e *heldEngine) release(n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released += n
	e.fail = err
	if e.armed {
		e.ring()
	}
}

// awaitHeld waits until n copies have been submitted and not released.
func (e *heldEngine) awaitHeld(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		held := len(e.held) - e.released
		e.mu.Unlock()
		if held == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d copies are held, want %d", held, n)
		}
	}
}

func (e *heldEngine) Poll(done []*dma.Copy) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for ; n < len(done) && e.released > 0 && len(e.held) > 0; n++ {
		c := e.held[0]
		e.held, e.released = e.held[1:], e.released-1
		if c.Err = e.fail; c.Err == nil {
			if err := e.Engine.Submit(c); err != nil {
				panic(err)
			}
			e.Engine.Poll(done[n : n+1])
			continue
		}
		done[n] = c
	}
	return n
}

func (e *heldEngine) Arm() bool {
	return e.arm(func() bool { return e.released > 0 && len(e.held) > 0 })
}

func (e *heldEngine) Descriptor() int { return e.doorbell.Descriptor() }
func (e *heldEngine) Disarm()         { e.doorbell.Disarm() }
func (e *heldEngine) Clear()          { e.doorbell.Clear() }

// buffer returns the bounce buffer of a slot.
func (r *relayRig) buffer(slot uint32) []byte {
	return r.bounced.Bytes()[(testDepth+slot)*testBufferSize:][:testBufferSize]
}

// expectNothing fails the test if the target or the client receives something for a while.
func (r *relayRig) expectNothing() {
	r.t.Helper()
	select {
	case <-r.target.received[iomsg.DataConnection]:
		r.t.Fatal("the target received a request")
	case b := <-r.client.producer.responses:
		r.t.Fatalf("the client received %x", b[:iomsg.Size])
	case <-time.After(30 * time.Millisecond):
	}
}

func TestAWriteIsForwardedOnceItsDataIsInTheBounceBuffer(t *testing.T) {
	for name, pushed := range map[string]bool{"fetched": false, "pushed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRelayRigWith(t, relayRigOptions{bounce: true, staging: pushed})
			r.start()
			content := r.region.Bytes()[8192:][:4096]
			for i := range content {
				content[i] = byte(i)
			}
			r.client.send(writeRequest(7))
			r.engine.awaitHeld(t, 1)
			r.expectNothing()
			r.engine.release(1, nil)
			m := r.target.receive(iomsg.DataConnection)
			if want := uint64(testDepth+m.Slot) * testBufferSize; m.RequesterOffset != want ||
				m.UserData != 7 || (m.Flags == iomsg.Pushed) != pushed {
				t.Errorf("the target received %+v, want requester offset %d", m, want)
			}
			if !bytes.Equal(r.buffer(m.Slot)[:4096], content) {
				t.Error("the bounce buffer does not hold the client's data")
			}
			if pushed && !bytes.Equal(r.staging[m.Slot*testBufferSize:][:4096], content) {
				t.Error("the target's staging does not hold the client's data")
			}
			m.Type = iomsg.Result
			r.target.send(iomsg.DataConnection, &m)
			want := *writeRequest(7)
			want.Type = iomsg.Result
			if got := r.response(); got != want {
				t.Errorf("the client got %+v, want %+v", got, want)
			}
		})
	}
}

func TestAReadCompletesOnceItsDataIsInTheClientsMemory(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	r.client.send(readRequest(7))
	m := r.target.receive(iomsg.DataConnection)
	segment, content := r.target.register(4096, 0)
	for i := range content {
		content[i] = byte(i)
	}
	if got := r.target.transfer(iomsg.DataConnection, rdma.SendRequest{
		Opcode: rdma.OpWrite, RemoteKey: r.exported.RemoteKey(),
		RemoteAddress: r.exported.Base() + m.RequesterOffset,
		Local: rdma.Segment{Key: segment.LocalKey(), Address: segment.Base(),
			Length: 4096},
	}); got != rdma.StatusSuccess {
		t.Fatal(got)
	}
	response := m
	response.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &response)
	r.engine.awaitHeld(t, 1)
	r.expectNothing()
	if bytes.Equal(r.region.Bytes()[8192:][:4096], content) {
		t.Fatal("the data reached the client without a copy")
	}
	r.engine.release(1, nil)
	want := *readRequest(7)
	want.Type = iomsg.Result
	if got := r.response(); got != want {
		t.Errorf("the client got %+v, want %+v", got, want)
	}
	if !bytes.Equal(r.region.Bytes()[8192:][:4096], content) {
		t.Error("the client's memory does not hold the data")
	}
}

func TestAReadThatFailsIsNotCopied(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	r.client.send(readRequest(7))
	m := r.target.receive(iomsg.DataConnection)
	m.Type, m.Result = iomsg.Result, status.IOFailed
	r.target.send(iomsg.DataConnection, &m)
	if got := r.response(); got.Result != status.IOFailed {
		t.Errorf("completed with %v", got.Result)
	}
}

func TestACopyThatFailsFailsOnlyItsRequest(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	r.client.send(writeRequest(7))
	r.engine.awaitHeld(t, 1)
	r.engine.release(1, status.Errorf(status.IOFailed, "the client's memory is gone"))
	if got := r.response(); got.Result != status.IOFailed || got.UserData != 7 {
		t.Errorf("the write completed with %+v", got)
	}
	r.client.send(readRequest(8))
	m := r.target.receive(iomsg.DataConnection)
	if m.UserData != 8 {
		t.Fatalf("the target received %+v", m)
	}
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	r.engine.awaitHeld(t, 1)
	r.engine.release(1, status.Errorf(status.IOFailed, "the client's memory is gone"))
	if got := r.response(); got.Result != status.IOFailed || got.UserData != 8 {
		t.Errorf("the read completed with %+v", got)
	}
}

func TestATargetCannotRespondWhileDataIsBeingCopied(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	r.client.send(writeRequest(7))
	r.engine.awaitHeld(t, 1)
	// A target can guess the tag of a request that it has not received.
	r.target.send(iomsg.DataConnection, &iomsg.Message{Type: iomsg.Result, Slot: 0, Generation: 1})
	r.expectFailure(status.Unexpected)
	r.engine.release(1, nil)
}

func TestASlowCopyIsNotBlamedOnTheTarget(t *testing.T) {
	for name, request := range map[string]*iomsg.Message{
		"write": writeRequest(7), "read": readRequest(7),
	} {
		r := newRelayRigWith(t, relayRigOptions{bounce: true})
		r.start()
		r.client.send(request)
		if request.Type == iomsg.Read {
			m := r.target.receive(iomsg.DataConnection)
			m.Type = iomsg.Result
			r.target.send(iomsg.DataConnection, &m)
		}
		r.engine.awaitHeld(t, 1)
		r.lane.CheckDeadline(0)
		err := r.awaitFailure()
		if !errors.Is(err, status.TimeOut) || strings.Contains(err.Error(), "target") ||
			!strings.Contains(err.Error(), "DMA") {
			t.Errorf("%s: the lane failed with %v", name, err)
		}
		r.engine.release(1, nil)
	}
}

func TestARequestIsFailedOnlyWhenItsCopyHasEnded(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	ctx := testContext(t)
	r.client.send(readRequest(7))
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	r.engine.awaitHeld(t, 1)
	r.client.send(writeRequest(8))
	r.engine.awaitHeld(t, 2)
	r.client.send(readRequest(9))
	r.target.receive(iomsg.DataConnection)
	if err := r.lane.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.FailRequests(ctx, status.ConnectionReset); err != nil {
		t.Fatal(err)
	}
	if got := r.response(); got.UserData != 9 || got.Result != status.ConnectionReset {
		t.Errorf("completed with %+v", got)
	}
	r.expectNothing()
	closing, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := r.lane.Close(closing); err == nil {
		t.Fatal("the lane was closed while data was being copied")
	}
	r.engine.release(2, nil)
	want := map[uint64]status.Code{7: status.Success, 8: status.ConnectionReset}
	for range 2 {
		got := r.response()
		if code, ok := want[got.UserData]; !ok || code != got.Result {
			t.Errorf("completed with %+v", got)
		}
		delete(want, got.UserData)
	}
}

func TestAStopFollowsTheCopies(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	r.client.send(writeRequest(7))
	r.client.send(&iomsg.Message{Type: iomsg.Stop, UserData: 99})
	r.engine.awaitHeld(t, 1)
	r.expectNothing()
	r.engine.release(1, nil)
	m := r.target.receive(iomsg.DataConnection)
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	r.response()
	if stop := r.target.receive(iomsg.ControlConnection); stop.Type != iomsg.Stop {
		t.Errorf("the target received %+v", stop)
	}
}

func TestABouncedTableOfExtentsReachesTheClient(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	request := readRequest(7)
	request.Type, request.Range = iomsg.Extents, 1<<20
	r.client.send(request)
	m := r.target.receive(iomsg.DataConnection)
	table := r.buffer(m.Slot)[:request.IOSize]
	for i := range table {
		table[i] = byte(i)
	}
	m.Type = iomsg.Result
	r.target.send(iomsg.DataConnection, &m)
	r.engine.release(1, nil)
	if got := r.response(); got.Result != status.Success {
		t.Errorf("completed with %v", got.Result)
	}
	if !bytes.Equal(r.region.Bytes()[request.RequesterOffset:][:request.IOSize], table) {
		t.Error("the client's memory does not hold the table")
	}
}

func TestWritesThatAreBeingCopiedKeepTheirRoom(t *testing.T) {
	r := newRelayRigWith(t, relayRigOptions{bounce: true})
	r.start()
	const copying = testDepth / 2
	for i := range uint64(copying) {
		r.client.send(writeRequest(i))
	}
	r.engine.awaitHeld(t, copying)
	together(t, r.lane.worker, func() {
		send := &r.lane.connections[iomsg.DataConnection]
		completed := send.completed
		defer func() { send.completed = completed }()
		for room := range send.capacity + 1 {
			send.completed = send.tail - (send.capacity - room)
			// What is being copied, what the client may still send, and stop must fit.
			if got, want := r.lane.hasRoom(), room > testDepth; got != want {
				t.Errorf("with room for %d messages, reads more is %v, want %v", room, got, want)
			}
		}
	})
	r.engine.release(copying, nil)
}
