package datapath

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeClient is the client's end of a queue: what it sends comes out of the
// lane's consumer, what the lane's producer sends comes out here.
type fakeClient struct {
	consumer *fakeConsumer
	producer *fakeProducer
}

func newFakeClient(t *testing.T, depth int) *fakeClient {
	config := RelayConsumerConfig(depth)
	return &fakeClient{
		consumer: &fakeConsumer{doorbell: newDoorbell(t), memory: make([]byte, config.MemorySize)},
		producer: &fakeProducer{doorbell: newDoorbell(t), answers: make(chan message, 1024), credits: 1 << 20},
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

// doorbell is the part of a waiter that both fakes share.
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

func (d *doorbell) ring()           { _, _ = unix.Write(d.descriptor, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
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

func (d *doorbell) Drain() {
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

func (f *fakeConsumer) ID() comch.ConsumerID  { return 1 }
func (f *fakeConsumer) Memory() []byte        { return f.memory }
func (f *fakeConsumer) Flush()                {}
func (f *fakeConsumer) State() progress.State { return progress.Running }
func (f *fakeConsumer) Arm() bool             { return f.arm(func() bool { return len(f.arrived) > 0 }) }

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

// fakeProducer hands answers to the test as long as there are credits.
type fakeProducer struct {
	*doorbell
	answers chan message
	credits int
	gone    bool
	closed  bool
}

func (f *fakeProducer) ID() uint32            { return 1 }
func (f *fakeProducer) Flush()                {}
func (f *fakeProducer) State() progress.State { return progress.Running }
func (f *fakeProducer) Arm() bool             { return f.arm(func() bool { return f.credits > 0 }) }

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
	f.answers <- message(b)
	return nil
}

// setCredits says how many receives the client has posted.
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
