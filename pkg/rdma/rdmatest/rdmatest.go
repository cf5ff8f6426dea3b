// SPDX-License-Identifier: Apache-2.0

// Package rdmatest is the conformance suite for providers of package rdma. It checks every promise
// of that package, whatever the transport.
package rdmatest

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Feature is a promise of package rdma that some providers cannot keep.
type Feature string

// The features that Config.Missing can name.
const (
	// ReceiverNotReady: a Send that finds no posted receive ends the connection. Some transports
	// retry the Send instead.
	ReceiverNotReady Feature = "a Send without a posted receive ends the connection"
	// OrderlyClose: both sides can distinguish an orderly end from a failure, so Err is nil after
	// an orderly end.
	OrderlyClose Feature = "an orderly end is no error"
	// ExactPrivateData: private data arrives without padding.
	ExactPrivateData Feature = "private data keeps its length"
	// LengthStatus: a receive completes with StatusLocalLength, and not with another failure, if
	// the message is too long for it.
	LengthStatus Feature = "a message that is too long is reported as such"
	// RemoteReadRight: peers cannot read memory that was registered without RemoteRead.
	RemoteReadRight Feature = "the right to be read is checked"
	// AnswersNeedPolling: while nobody polls the peer, it does not execute a Read, and a Write
	// behind the Read does not complete, so both can be flushed.
	AnswersNeedPolling Feature = "only a peer that is polled executes a Read"
	// Descriptor: a thread can sleep on the descriptor of a completion queue.
	Descriptor Feature = "a completion queue has a descriptor"
	// WritesNeedPolling: while nobody polls the peer, only a bounded number of bytes is written.
	WritesNeedPolling Feature = "a Write waits for a peer that is not polled"
	// SendsOutliveClose: a Send that was flushed before Close arrives, even if it has not
	// completed.
	SendsOutliveClose Feature = "what was flushed before Close arrives"
	// ReadDepthPerPost: PostSend rejects a Read beyond the agreed depth.
	ReadDepthPerPost Feature = "a Read beyond the read depth is rejected"
)

// DefaultTimeout bounds each wait of the suite, so that a test that would hang fails. No test
// depends on being faster.
const DefaultTimeout = 30 * time.Second

// Config describes the provider to test.
type Config struct {
	Provider rdma.Provider
	// Responder is a second provider with the same transport, which then accepts all connections.
	// If it is set, the suite runs only the tests that concern both sides.
	Responder rdma.Provider
	// Address is the local address of a device. Both sides of all connections use it.
	Address netip.Addr
	// Missing lists the features that the provider lacks, each with the reason.
	Missing map[Feature]string
	// Lend makes each endpoint lend its memory to its peers.
	Lend Lending
	// Timeout bounds each wait; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Lending says whether memory is lent (rdma.ConnectionConfig.Lent).
type Lending uint8

// The values of Lending.
const (
	LendNothing Lending = iota
	LendForReading
	LendForWriting
)

// Run runs the suite as subtests of t. It skips a test only if Config.Missing lists its feature, or
// if opening the device fails with status.NotSupported.
func Run(t *testing.T, config Config) {
	groups := [][]conformanceTest{
		messageTests, transferTests, readTests, protectionTests, revocationTests, endTests,
	}
	if config.Responder == nil {
		config.Responder = config.Provider
		groups = append(groups, setUpTests, rejectionTests, postTests, waitTests)
	}
	if config.Timeout == 0 {
		config.Timeout = DefaultTimeout
	}
	for _, group := range groups {
		for _, test := range group {
			t.Run(test.name, func(t *testing.T) {
				if reason := config.Missing[test.needs]; reason != "" {
					t.Skipf("provider %s does not promise that %s: %s", config.Provider.Name(),
						test.needs, reason)
				}
				// The thread that polls a completion queue owns its connections.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				test.run(newBench(t, config))
			})
		}
	}
}

// has reports whether the provider has a feature.
func (b *bench) has(f Feature) bool { return b.config.Missing[f] == "" }

// conformanceTest checks one promise of package rdma.
type conformanceTest struct {
	name  string
	needs Feature // empty if every provider must pass
	run   func(*bench)
}

// bench is the state of one test: the device that connects, the device that accepts, which may be
// the same, and the endpoints on both. The thread of the test drives all endpoints.
type bench struct {
	*testing.T
	config    Config
	device    rdma.Device
	responder rdma.Device
	endpoints []*endpoint
	random    *rand.Rand // of contexts, and of where the content of a memory begins
}

func newBench(t *testing.T, config Config) *bench {
	t.Helper()
	device := open(t, config.Provider, config.Address)
	responder := device
	if config.Responder != config.Provider {
		responder = open(t, config.Responder, config.Address)
	}
	return &bench{T: t, config: config, device: device, responder: responder,
		random: rand.New(rand.NewPCG(1, 1))}
}

func open(t *testing.T, provider rdma.Provider, address netip.Addr) rdma.Device {
	t.Helper()
	device, err := provider.Open(address)
	testkit.SkipIfNotSupported(t, "open device "+address.String(), err)
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

// connect connects two endpoints.
func (b *bench) connect(initiator, responder *endpoint) {
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

// pair returns two connected endpoints. The responder may send, because it has received a message
// from the initiator.
func (b *bench) pair() (initiator, responder *endpoint) {
	b.Helper()
	return b.pairOf(memoryBytes)
}

// pairOf returns a pair whose endpoints have size bytes of memory each.
func (b *bench) pairOf(size uint64) (initiator, responder *endpoint) {
	b.Helper()
	initiator, responder = b.newEndpoint(b.device, size), b.newEndpoint(b.responder, size)
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

// drive polls all endpoints until done reports true.
func (b *bench) drive(what string, done func() bool) {
	b.Helper()
	deadline := time.Now().Add(b.config.Timeout)
	for !done() {
		work := 0
		for _, e := range b.endpoints {
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

// settle polls all endpoints until a message has made a round trip on a connection of its own. That
// is long enough for an error to show.
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
