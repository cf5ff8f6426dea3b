// Package rdmatest is the conformance suite of the rdma seam: what every
// provider must do, sentence by sentence, whatever its transport.
package rdmatest

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

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
