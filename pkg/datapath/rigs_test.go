// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func openDevice(t testing.TB) rdma.Device {
	t.Helper()
	return openDeviceOf(t, iwarp.New(iwarp.Options{}))
}

func openDeviceOf(t testing.TB, provider rdma.Provider) rdma.Device {
	t.Helper()
	device, err := provider.Open(loopback)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return device
}

func runWorker(t testing.TB) *Worker {
	t.Helper()
	return runWorkerWith(t, progress.Policy{Mode: progress.Adaptive})
}

func runWorkerWith(t testing.TB, policy progress.Policy) *Worker {
	t.Helper()
	worker, err := startWorker(workerConfig{CPU: NoCPU, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := worker.Stop(); err != nil {
			t.Error(err)
		}
	})
	return worker
}

// rdmaPeer is the other end of a lane's connections, driven by the test.
type rdmaPeer struct {
	t        testing.TB
	domain   rdma.ProtectionDomain
	queue    rdma.CompletionQueue
	engine   *progress.Engine
	messages *messageMemory
	stopping atomic.Bool
	ended    sync.WaitGroup

	connections [iomsg.ConnectionRoleCount]rdma.Connection
	received    [iomsg.ConnectionRoleCount]chan message
	sends       [iomsg.ConnectionRoleCount]atomic.Int64 // received, hellos included
	accepts     [iomsg.ConnectionRoleCount]uint32       // what its hellos say
	completions chan rdma.Completion                    // of transfers
	gone        [iomsg.ConnectionRoleCount]chan struct{}
	nextSend    uint32
}

const (
	peerReceives = 64 // per role
	peerSends    = 64
	// peerReceiveSize is how many messages fit into a receive. The peer's hellos
	// announce it only if a test asks for that.
	peerReceiveSize = messagesPerSend
	transferID      = 1 << 40 // work request id of a transfer
)

func newRDMAPeer(t testing.TB, device rdma.Device) *rdmaPeer {
	t.Helper()
	p := &rdmaPeer{t: t, completions: make(chan rdma.Completion, 4096)}
	var err error
	if p.domain, err = device.NewProtectionDomain(); err != nil {
		t.Fatal(err)
	}
	if p.queue, err = device.NewCompletionQueue(4096); err != nil {
		t.Fatal(err)
	}
	if p.engine, err = progress.NewEngine(progress.Policy{}); err != nil {
		t.Fatal(err)
	}
	if p.messages, err = newMessageMemory(p.domain,
		peerSends+2*peerReceives*peerReceiveSize); err != nil {
		t.Fatal(err)
	}
	for role := range iomsg.ConnectionRoleCount {
		p.received[role] = make(chan message, 4096)
		p.gone[role] = make(chan struct{})
	}
	if err := errors.Join(p.engine.Add(p), p.engine.AddWaiter(p.queue)); err != nil {
		t.Fatal(err)
	}
	p.ended.Go(func() {
		runtime.LockOSThread()
		for !p.stopping.Load() {
			p.engine.Idle(p.engine.Progress())
		}
	})
	t.Cleanup(p.close)
	return p
}

// config returns the configuration of the peer's side of a connection.
func (p *rdmaPeer) config(role iomsg.ConnectionRole, privateData []byte) rdma.ConnectionConfig {
	receives := make([]rdma.ReceiveRequest, peerReceives)
	for i := range receives {
		receives[i] = p.receiveAt(peerSends + (uint32(role)*peerReceives+uint32(i))*peerReceiveSize)
	}
	return rdma.ConnectionConfig{
		Domain: p.domain, Queue: p.queue, Context: uint64(role), PrivateData: privateData,
		SendRequests: 256, ReceiveRequests: peerReceives, InboundReads: 16, OutboundReads: 16,
		Receives: receives,
	}
}

// receiveAt returns the receive whose first message has the given index.
func (p *rdmaPeer) receiveAt(index uint32) rdma.ReceiveRequest {
	local := p.messages.segment(index)
	local.Length = peerReceiveSize * iomsg.Size
	return rdma.ReceiveRequest{ID: uint64(index), Local: local}
}

// Poll passes received messages and completed transfers to the test.
func (p *rdmaPeer) Poll() int {
	var completions [32]rdma.Completion
	n := p.queue.Poll(completions[:])
	for _, c := range completions[:n] {
		role := iomsg.ConnectionRole(c.Context)
		switch {
		case c.Opcode == rdma.OpDisconnected:
			close(p.gone[role])
		case c.ID == transferID:
			p.completions <- c
		case c.Opcode == rdma.OpReceive && c.Status == rdma.StatusSuccess:
			p.sends[role].Add(1)
			for i := range c.Length / iomsg.Size {
				p.received[role] <- *p.messages.at(uint32(c.ID) + i)
			}
			if p.connections[role] != nil {
				receive := p.receiveAt(uint32(c.ID))
				_ = p.connections[role].PostReceive([]rdma.ReceiveRequest{receive})
			}
		}
	}
	for _, c := range p.connections {
		if c != nil && n > 0 {
			c.Flush()
		}
	}
	return n
}

// do runs f on the peer's thread.
func (p *rdmaPeer) do(f func()) {
	done := make(chan struct{})
	p.engine.Do(func() { f(); close(done) })
	<-done
}

// attach hands a connection to the peer's thread.
func (p *rdmaPeer) attach(role iomsg.ConnectionRole, c rdma.Connection) {
	p.do(func() { p.connections[role] = c })
}

func (p *rdmaPeer) sendHello(role iomsg.ConnectionRole) {
	p.send(role, &iomsg.Message{Type: iomsg.Hello, IOSize: p.accepts[role]})
}

// send sends all messages in one Send.
func (p *rdmaPeer) send(role iomsg.ConnectionRole, messages ...*iomsg.Message) {
	buf := make([]byte, len(messages)*iomsg.Size)
	for i, m := range messages {
		iomsg.Encode(buf[i*iomsg.Size:], m)
	}
	p.sendBytes(role, buf)
}

func (p *rdmaPeer) sendBytes(role iomsg.ConnectionRole, b []byte) {
	p.t.Helper()
	p.do(func() {
		count := uint32(len(b)+iomsg.Size-1) / iomsg.Size
		if p.nextSend%peerSends+count > peerSends {
			p.nextSend = 0
		}
		index := p.nextSend % peerSends
		p.nextSend += count
		copy(p.messages.bytes[index*iomsg.Size:], b)
		segment := p.messages.segment(index)
		segment.Length = uint32(len(b))
		err := p.connections[role].PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend,
			Local: segment}})
		if err != nil {
			p.t.Errorf("peer: %v", err)
		}
		p.connections[role].Flush()
	})
}

// receive waits for the next message on a connection.
func (p *rdmaPeer) receive(role iomsg.ConnectionRole) iomsg.Message {
	p.t.Helper()
	select {
	case b := <-p.received[role]:
		var m iomsg.Message
		iomsg.Decode(b[:], &m)
		return m
	case <-time.After(testkit.Patience):
		p.t.Fatalf("no message on the %v connection", role)
	}
	panic("unreachable")
}

// transfer carries out an RDMA Write or Read and returns its outcome.
func (p *rdmaPeer) transfer(role iomsg.ConnectionRole,
	request rdma.SendRequest) rdma.CompletionStatus {
	p.t.Helper()
	request.ID = transferID
	var refused error
	p.do(func() {
		refused = p.connections[role].PostSend([]rdma.SendRequest{request})
		p.connections[role].Flush()
	})
	if refused != nil {
		return rdma.StatusFlushed // the connection has ended
	}
	select {
	case c := <-p.completions:
		return c.Status
	case <-time.After(testkit.Patience):
		p.t.Fatal("the transfer does not complete")
	}
	panic("unreachable")
}

// register allocates and registers memory for transfers.
func (p *rdmaPeer) register(length uint64, access memory.Access) (rdma.MemoryRegion, []byte) {
	p.t.Helper()
	region, err := memory.Alloc("test", length)
	if err != nil {
		p.t.Fatal(err)
	}
	registered, err := p.domain.Register(region, access)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = registered.Deregister()
		_ = region.Close()
	})
	return registered, region.Bytes()
}

// disconnect closes the peer's connections.
func (p *rdmaPeer) disconnect() {
	p.do(func() {
		for _, c := range p.connections {
			if c != nil {
				c.Close()
			}
		}
	})
}

func (p *rdmaPeer) close() {
	p.disconnect()
	for role := range iomsg.ConnectionRoleCount {
		if p.connections[role] != nil {
			<-p.gone[role]
		}
	}
	p.stopping.Store(true)
	p.engine.Wake()
	p.ended.Wait()
	for _, err := range []error{p.messages.close(), p.queue.Close(), p.engine.Close()} {
		if err != nil {
			p.t.Errorf("close peer: %v", err)
		}
	}
	if err := p.domain.Close(); err != nil {
		p.t.Errorf("close peer's domain: %v", err)
	}
}

// fakeClient is the client's end of a queue. The lane's consumer returns what it
// sends, and it receives what the lane's producer sends.
type fakeClient struct {
	consumer *fakeConsumer
	producer *fakeProducer
}

func newFakeClient(t *testing.T, depth int) *fakeClient {
	config := RelayConsumerConfig(depth)
	return &fakeClient{
		consumer: &fakeConsumer{doorbell: newDoorbell(t), memory: make([]byte, config.MemorySize)},
		producer: &fakeProducer{doorbell: newDoorbell(t), responses: make(chan message, 1024),
			credits: 1 << 20},
	}
}

// send puts a request into the lane's next posted buffer.
func (c *fakeClient) send(m *iomsg.Message) {
	var buf message
	iomsg.Encode(buf[:], m)
	c.sendBytes(buf[:])
}

func (c *fakeClient) sendBytes(b []byte) {
	f := c.consumer
	f.mu.Lock()
	defer f.mu.Unlock()
	posted := f.posted[0]
	f.posted = f.posted[1:]
	n := copy(f.memory[posted.Offset:][:posted.Length], b)
	posted.Length = uint32(n)
	f.arrived = append(f.arrived, posted)
	if f.armed {
		f.ring()
	}
}

// doorbell is the part of a progress.Waiter that both fakes share.
type doorbell struct {
	mu         sync.Mutex
	armed      bool
	descriptor int
}

func newDoorbell(t *testing.T) *doorbell {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &doorbell{descriptor: fd}
}

func (d *doorbell) ring() { _, _ = unix.Write(d.descriptor, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (d *doorbell) Descriptor() int { return d.descriptor }

func (d *doorbell) arm(ready func() bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = !ready()
	return d.armed
}

func (d *doorbell) Disarm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = false
}

func (d *doorbell) Clear() {
	var count [8]byte
	_, _ = unix.Read(d.descriptor, count[:])
}

type fakeConsumer struct {
	*doorbell
	memory  []byte
	posted  []comch.Received
	arrived []comch.Received
	closed  bool
}

func (f *fakeConsumer) ID() comch.ConsumerID { return 1 }

func (f *fakeConsumer) Memory() []byte { return f.memory }

func (f *fakeConsumer) Flush() {}

func (f *fakeConsumer) State() progress.State { return progress.Running }

func (f *fakeConsumer) Arm() bool { return f.arm(func() bool { return len(f.arrived) > 0 }) }

func (f *fakeConsumer) PostReceive(offset, length uint32, userData uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posted = append(f.posted, comch.Received{Offset: offset, Length: length, UserData: userData})
	return nil
}

func (f *fakeConsumer) Poll(received []comch.Received) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(received, f.arrived)
	f.arrived = f.arrived[n:]
	return n
}

func (f *fakeConsumer) Stop() {}

func (f *fakeConsumer) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// fakeProducer passes responses to the test as long as there are credits.
type fakeProducer struct {
	*doorbell
	responses chan message
	credits   int
	gone      bool
	closed    bool
}

func (f *fakeProducer) ID() uint32 { return 1 }

func (f *fakeProducer) Flush() {}

func (f *fakeProducer) State() progress.State { return progress.Running }

func (f *fakeProducer) Arm() bool { return f.arm(func() bool { return f.credits > 0 }) }

func (f *fakeProducer) Send(b, _ []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return status.NotConnected
	}
	if f.credits == 0 {
		return status.Again
	}
	f.credits--
	f.responses <- message(b)
	return nil
}

// setCredits sets how many receives the client has posted.
func (f *fakeProducer) setCredits(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.credits = n
	if f.armed && n > 0 {
		f.ring()
	}
}

func (f *fakeProducer) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}
