// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/socketstest"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// frozen is a relay that a test stops and lets go on, piece by piece, in the worst order.
type frozen struct {
	worker gate

	mu       sync.Mutex
	isFrozen bool
	held     []*socketstest.Delivery // of Comch, to the relay

	control sync.Mutex // locked while control messages with targets and clients wait
}

// inFlight holds up what the relay would receive over Comch.
func (f *frozen) inFlight(relay int) func(*socketstest.Delivery) {
	return func(d *socketstest.Delivery) {
		f.mu.Lock()
		hold := f.isFrozen && d.To.PID == relay
		if hold {
			f.held = append(f.held, d)
		}
		f.mu.Unlock()
		if !hold {
			d.Deliver()
		}
	}
}

func (f *frozen) deliver() {
	f.mu.Lock()
	f.isFrozen = false
	held := f.held
	f.mu.Unlock()
	for _, d := range held {
		d.Deliver()
	}
}

// frozenTransport holds control messages up in both directions.
type frozenTransport struct {
	controlmsg.Transport
	frozen *frozen
}

func (t frozenTransport) Send(ctx context.Context, message []byte) error {
	t.frozen.wait()
	return t.Transport.Send(ctx, message)
}

func (t frozenTransport) Receive(ctx context.Context) ([]byte, error) {
	b, err := t.Transport.Receive(ctx)
	t.frozen.wait()
	return b, err
}

func (f *frozen) wait() {
	f.control.Lock()
	defer f.control.Unlock()
}

// A client that has waited for a relay that is stopped may rely on it: what the relay still finds
// in the client's ring takes no effect when it goes on, although its worker goes on first, then its
// control connections, and nothing tells it that the client has gone.
func TestARelayThatWasStoppedChangesNothingForAClientThatHasGone(t *testing.T) {
	const leaseLength = 500 * time.Millisecond
	var f frozen
	var clock atomic.Int64
	clock.Store(int64(time.Hour))
	self := comch.Peer{PID: 1, UID: uint32(os.Geteuid())}
	host := comch.Peer{PID: 2, UID: self.UID}
	network := socketstest.NewNetwork(socketstest.Options{InFlight: f.inFlight(self.PID)})
	c := startChainWith(t, chainOptions{
		relayPolicy: f.worker.policy(), lease: leaseLength, clock: clock.Load,
		comch:     emulated.New(emulated.Options{Sockets: network.NewProcess(self)}),
		hostComch: emulated.New(emulated.Options{Sockets: network.NewProcess(host)}),
		hookTransport: func(t controlmsg.Transport) controlmsg.Transport {
			return frozenTransport{t, &f}
		},
	})
	send := c.openQueue()
	openWorker := f.worker.close(t)
	f.control.Lock()
	f.mu.Lock()
	f.isFrozen = true
	f.mu.Unlock()
	openControl := sync.OnceFunc(f.control.Unlock)
	t.Cleanup(func() {
		openWorker()
		openControl()
		f.deliver()
	})
	if err := c.memory.CopyIn(0, slices.Repeat([]byte("late"), 1024)); err != nil {
		t.Fatal(err)
	}
	send(iomsg.Message{Type: iomsg.Write, UserData: 6, IOSize: 4096})
	c.connection.Abort()
	clock.Add(int64(leaseLength + leaseLength/100 + time.Second)) // the client says "quarantined"

	openWorker()
	testkit.Eventually(t, "the relay forwards the write, which waits for its lease", func() bool {
		queues := c.target.Volumes()[0].Counters.Queues()
		return len(queues) > 0 && queues[0].BackPressure(datapath.NoLease) > 0
	})
	openControl()
	written := func() bool {
		var first [4]byte
		if err := c.volume.Memory().CopyOut(first[:], 0); err != nil {
			t.Fatal(err)
		}
		return string(first[:]) == "late"
	}
	testkit.Eventually(t, "the target ends the session", func() bool {
		return written() || c.target.Uses()["disk"].Sessions == 0
	})
	if written() {
		t.Error("the write has taken effect")
	}
}
