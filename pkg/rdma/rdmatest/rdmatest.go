// Package rdmatest is the conformance suite of the rdma seam: what every
// provider must do, sentence by sentence, whatever its transport.
package rdmatest

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/conformancetest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Feature is a promise of the seam that a provider may be unable to keep.
type Feature string

// The features that Config.Missing can name.
const (
	// ReceiverNotReady: a Send that finds no posted receive ends the
	// connection. Transports that retry it for long do not have this.
	ReceiverNotReady Feature = "a Send without a posted receive ends the connection"
	// OrderlyClose: an orderly end can be told from a failure, so that Err is
	// nil on both sides.
	OrderlyClose Feature = "an orderly end is no error"
	// ExactPrivateData: private data arrives without padding.
	ExactPrivateData Feature = "private data keeps its length"
	// LengthStatus: the receive that a message is too long for completes with
	// StatusLocalLength, and not just with some failure.
	LengthStatus Feature = "a too long message is reported as such"
	// RemoteReadRight: memory that was registered without RemoteRead cannot be
	// read by peers.
	RemoteReadRight Feature = "the right to be read is checked"
	// AnswersNeedPolling: a Read is not answered, and a Write to it not
	// completed, as long as the peer is not polled, so that it can be flushed.
	AnswersNeedPolling Feature = "only a peer that is polled answers"
	// Descriptor: a completion queue has a descriptor, so that its thread can
	// sleep.
	Descriptor Feature = "a completion queue can be slept on"
	// ReadDepthPerPost: posting a Read beyond the agreed depth is refused.
	ReadDepthPerPost Feature = "a Read beyond the read depth is refused"
)

// DefaultTimeout is how long the suite waits for what must happen. It only
// bounds hanging; nothing depends on being faster.
const DefaultTimeout = 30 * time.Second

// Config says what is tested.
type Config struct {
	Provider rdma.Provider
	// Responder is the provider of the ends that accept connections, if it is
	// another one with the same transport. The suite is then what happens
	// between both.
	Responder rdma.Provider
	// Address is a local address of a device; both ends of all connections
	// are on it.
	Address netip.Addr
	// Missing names what the provider cannot do, each with the reason.
	Missing map[Feature]string
	// Timeout bounds each wait, DefaultTimeout if 0.
	Timeout time.Duration
}

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, config Config) {
	groups := [][]conformanceTest{
		messageTests, transferTests, readTests, protectionTests, revocationTests, endTests,
	}
	if config.Responder == nil {
		config.Responder = config.Provider
		groups = append(groups, setUpTests, refusalTests, postTests, waitTests)
	}
	if config.Timeout == 0 {
		config.Timeout = DefaultTimeout
	}
	for _, group := range groups {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) {
				if reason := config.Missing[test.needs]; reason != "" {
					t.Skipf("%s: not with provider %s, because %s", test.needs, config.Provider.Name(), reason)
				}
				// The thread that polls a completion queue owns its connections.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				test.run(newBench(t, config))
			})
		}
	}
}

// has tells whether the provider keeps a promise.
func (b *bench) has(f Feature) bool { return b.config.Missing[f] == "" }

// conformanceTest is one promise of the seam.
type conformanceTest struct {
	name  string
	needs Feature // empty if every provider must keep it
	run   func(*bench)
}

// bench is what one test works on: the devices of the ends that connect and of
// those that accept, which may be the same, and the ends it has made on them,
// all of them driven by the test's own thread.
type bench struct {
	*testing.T
	config    Config
	device    rdma.Device
	responder rdma.Device
	ends      []*end
}

func newBench(t *testing.T, config Config) *bench {
	t.Helper()
	device := open(t, config.Provider, config.Address)
	responder := device
	if config.Responder != config.Provider {
		responder = open(t, config.Responder, config.Address)
	}
	return &bench{T: t, config: config, device: device, responder: responder}
}

func open(t *testing.T, provider rdma.Provider, address netip.Addr) rdma.Device {
	t.Helper()
	device, err := provider.Open(address)
	conformancetest.SkipIfNotSupported(t, "open device "+address.String(), err)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return device
}

func (b *bench) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), b.config.Timeout)
	b.Cleanup(cancel)
	return ctx
}

func (b *bench) listen() rdma.Listener {
	b.Helper()
	l, err := b.responder.Listen(b.context(), netip.AddrPortFrom(b.config.Address, 0))
	if err != nil {
		b.Fatalf("listen: %v", err)
	}
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Errorf("close listener: %v", err)
		}
	})
	return l
}

// connect makes a connection between two ends.
func (b *bench) connect(initiator, responder *end) {
	b.Helper()
	listener := b.listen()
	failed := make(chan error, 1)
	go func() {
		c, err := b.device.Connect(b.context(), listener.Address(), initiator.config)
		initiator.conn = c
		failed <- err
	}()
	request, err := listener.Accept(b.context())
	if err != nil {
		b.Fatalf("accept request: %v (connect: %v)", err, <-failed)
	}
	responder.conn, err = request.Accept(b.context(), responder.config)
	if err != nil {
		b.Fatalf("accept connection: %v", err)
	}
	if err := <-failed; err != nil {
		b.Fatalf("connect: %v", err)
	}
	initiator.conns = append(initiator.conns, initiator.conn)
	responder.conns = append(responder.conns, responder.conn)
}

// pair makes two connected ends of which the responder may send, because it
// has received the initiator's hello.
func (b *bench) pair() (initiator, responder *end) {
	b.Helper()
	initiator, responder = b.end(), b.peer()
	b.connect(initiator, responder)
	responder.postReceive(helloID, 0, helloBytes)
	initiator.send(helloID, 0, helloBytes)
	initiator.awaitOne(rdma.OpSend, helloID)
	responder.awaitOne(rdma.OpReceive, helloID)
	return initiator, responder
}

const (
	helloBytes = 64
	helloID    = 0xe110
)

// drive polls all ends until done reports true.
func (b *bench) drive(what string, done func() bool) {
	b.Helper()
	deadline := time.Now().Add(b.config.Timeout)
	for !done() {
		work := 0
		for _, e := range b.ends {
			work += e.poll()
		}
		if work == 0 {
			runtime.Gosched()
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s did not happen within %v", what, b.config.Timeout)
		}
	}
}

// settle polls all ends for long enough that something wrong would show, by
// having a message go there and back on a connection of its own.
func (b *bench) settle() {
	b.Helper()
	x, y := b.pair()
	for i := range uint64(3) {
		y.postReceive(i, 0, helloBytes)
		x.send(i, 0, helloBytes)
		y.awaitOne(rdma.OpReceive, i)
		x.awaitOne(rdma.OpSend, i)
		x.postReceive(i, 0, helloBytes)
		y.send(i, 0, helloBytes)
		x.awaitOne(rdma.OpReceive, i)
		y.awaitOne(rdma.OpSend, i)
	}
}
