// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

// window is how many bytes each direction of a stream holds: sent and not read yet.
const window = 64 << 10

// lossTimeout is when a kernel gives up a connection whose peer does not acknowledge: relay and
// target set TCP_USER_TIMEOUT and keep-alive to about this.
const lossTimeout = 6 * time.Second

// internet carries TCP streams between the processes of a world. What one side sends is in flight
// until the scheduler delivers it.
type internet struct {
	network   *networktest.Network
	processes map[*networktest.Host]*process

	mu     sync.Mutex
	dials  []*dial
	moving []*networktest.Flow // with something in flight

	// The rest belongs to the scheduler.
	cut     map[[2]netip.Addr]time.Time // partitions, since when
	holds   []*hold
	stalled map[*networktest.Flow]time.Time // full ones, since when
	arrived map[*networktest.Flow]int       // bytes delivered
	sent    map[*networktest.Flow][]byte    // the first of them, from relays to RDMA ports
}

// dial is an attempt to connect, which the scheduler lets happen.
type dial struct {
	from, to netip.AddrPort
	allowed  chan struct{}
}

// newInternet returns an internet in which resets drop what is in flight, or follow it.
func newInternet(resetsFollow bool) *internet {
	n := &internet{
		processes: make(map[*networktest.Host]*process),
		cut:       make(map[[2]netip.Addr]time.Time),
		stalled:   make(map[*networktest.Flow]time.Time),
		arrived:   make(map[*networktest.Flow]int),
		sent:      make(map[*networktest.Flow][]byte),
	}
	n.network = networktest.New(networktest.Config{
		BufferBytes: window, Transmit: n.transmit, Dial: n.dial, ResetsFollow: resetsFollow,
	})
	return n
}

// host returns a process's access to the internet.
func (n *internet) host(p *process) *networktest.Host {
	h := n.network.Host(p.address)
	n.processes[h] = p
	return h
}

func (n *internet) transmit(f *networktest.Flow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.moving, f) {
		n.moving = append(n.moving, f)
	}
}

func (n *internet) dial(ctx context.Context, from, to netip.AddrPort) error {
	d := &dial{from, to, make(chan struct{})}
	n.mu.Lock()
	n.dials = append(n.dials, d)
	n.mu.Unlock()
	select {
	case <-d.allowed:
		return nil
	case <-ctx.Done():
		n.forget(d)
		return ctx.Err()
	}
}

func (n *internet) forget(d *dial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials = slices.DeleteFunc(n.dials, func(other *dial) bool { return other == d })
}

// allow lets an attempt to connect happen.
func (n *internet) allow(d *dial) {
	n.forget(d)
	close(d.allowed)
}

// deliverable reports whether what is in flight can arrive now.
func (n *internet) deliverable(f *networktest.Flow) bool {
	return f.InFlight() > 0 && !n.processes[f.Writer()].frozen && !n.processes[f.Reader()].frozen &&
		!n.isCut(f.From().Addr(), f.To().Addr()) && !n.isHeld(f)
}

// deliver lets up to limit bytes arrive, or what follows the last of them. It inverts the bit flip
// in them, unless that is negative.
func (n *internet) deliver(f *networktest.Flow, limit, flip int) {
	if flip >= 0 {
		f.Edit(func(inFlight []byte) {
			if at := flip / 8; at < min(limit, len(inFlight)) {
				inFlight[at] ^= 1 << (flip % 8)
			}
		})
	}
	count := min(limit, f.InFlight())
	n.arrived[f] += count
	n.noteArrival(f, count)
	f.Deliver(count)
	n.settle(f)
}

// recordedBytes is how much of an RDMA connection is recorded: the handshake and some frames.
const recordedBytes = 2048

// record keeps what a relay sends first on an RDMA connection, of which limit bytes are about to
// arrive.
func (n *internet) record(f *networktest.Flow, limit int) {
	if f.To().Port() != rdmaPort || f.From().Addr() != relayAddress(0) ||
		n.processes[f.Writer()].relay == nil || len(n.sent[f]) >= recordedBytes {
		return
	}
	f.Edit(func(inFlight []byte) {
		n.sent[f] = append(n.sent[f], inFlight[:min(limit, len(inFlight))]...)
	})
}

// recording returns what a relay has sent on one of the RDMA connections that a target has
// accepted, or nil if it has accepted none.
func (n *internet) recording(target netip.Addr) []byte {
	flows := n.network.Flows()
	for i, f := range flows {
		if n.sent[f] != nil && f.To().Addr() == target && n.arrived[flows[i^1]] >= mpaReplyBytes {
			return n.sent[f]
		}
	}
	return nil
}

// settle forgets a flow that has nothing in flight.
func (n *internet) settle(f *networktest.Flow) {
	if f.InFlight() > 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moving = slices.DeleteFunc(n.moving,
		func(other *networktest.Flow) bool { return other == f && f.InFlight() == 0 })
}

// handshakeBytes is more than the MPA request and reply, which no CRC protects.
const handshakeBytes = 256

// What is in flight often begins with an FPDU. Its headers take about frameHeaderBytes. At byte
// taggedOffset is the part of a tagged offset in which another bit means another place of the same
// memory (RFC 5044 section 4, RFC 5041 section 4.1).
const (
	frameHeaderBytes  = 20
	taggedOffset      = 14
	taggedOffsetBytes = 2
)

// carriesFrames reports whether the next bytes belong to frames of RDMA.
func (n *internet) carriesFrames(f *networktest.Flow) bool {
	return n.arrived[f] >= handshakeBytes && isData(f)
}

// fail breaks a connection for both ends.
func (n *internet) fail(f *networktest.Flow, errno syscall.Errno) {
	f.Fail(errno)
	n.settle(f)
}

// isCut reports whether nothing passes between two hosts.
func (n *internet) isCut(a, b netip.Addr) bool {
	_, cut := n.cut[pair(a, b)]
	return cut
}

func pair(a, b netip.Addr) [2]netip.Addr {
	if b.Less(a) {
		a, b = b, a
	}
	return [2]netip.Addr{a, b}
}

// expire fails the connections whose peers have acknowledged nothing for too long.
func (n *internet) expire() {
	now := time.Now()
	for _, f := range slices.Clone(n.moving) {
		n.settle(f) // a failure may have dropped what was in flight
	}
	for _, f := range n.network.Flows() {
		if since, cut := n.cut[pair(f.From().Addr(), f.To().Addr())]; cut {
			if now.Sub(since) > lossTimeout {
				n.fail(f, syscall.ETIMEDOUT)
			}
			continue
		}
		if f.Buffered() < window || n.deliverable(f) || n.isHeld(f) {
			delete(n.stalled, f)
			continue
		}
		since, stalled := n.stalled[f]
		if !stalled {
			n.stalled[f] = now
		} else if now.Sub(since) > lossTimeout {
			n.fail(f, syscall.ETIMEDOUT)
		}
	}
}

func describe(f *networktest.Flow) string { return fmt.Sprintf("%v→%v", f.From(), f.To()) }
