// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// class tells connections of the control protocol from those for RDMA, by their port.
type class int

const (
	control class = iota
	data
	classes
)

func (c class) String() string { return [classes]string{"control", "data"}[c] }

// The ports of a target.
const (
	controlPort = 7470
	dataPort    = 7471
	metricsPort = 9471
)

// host is the number of a target, each of which has an address of its own.
type host int

func (h host) address(port uint16) string { return fmt.Sprintf("127.0.0.%d:%d", h+1, port) }

// network lies between a relay and a target. It keeps the order of the bytes of each connection,
// and otherwise does with them what a network may: it can hold them for any time, in any order of
// connections. What a process has sent is delivered also after its death, and only then the end of
// its connections.
type network struct {
	relay, target *namespace
	journal       *journal

	mu          sync.Mutex
	changed     *sync.Cond // the fields below, and those of streams
	host        host       // where the target's address leads to
	number      int        // of connections so far
	stalled     stall      // what is held
	stalls      int        // so far
	connections []*connection
}

// stall is what a network holds.
type stall struct {
	classes [classes]bool
	ends    bool // the ends of connections, until everything else has been delivered
	fresh   bool // also connections that begin during the stall
	answers bool // also what the target sends
}

// connection is a connection of the relay with the one that continues it to the target.
type connection struct {
	network *network
	class   class
	name    string
	born    int       // how many stalls there had been
	streams [2]stream // to the target, and to the relay
}

// stream is a direction of a connection.
type stream struct {
	connection *connection
	toRelay    bool
	freed      int // the last stall that does not hold it any more
	queue      [][]byte
	bytes      int
	end        error // that the sender has ended it: io.EOF, or any other error
	delivered  bool  // the end, too
}

func newNetwork(t testing.TB, name string, relay, target *namespace, h host, j *journal) *network {
	n := &network{relay: relay, target: target, host: h, journal: j}
	n.changed = sync.NewCond(&n.mu)
	for i, port := range [classes]uint16{controlPort, dataPort} {
		go n.accept(relay.listen(t, h.address(port)), name, class(i), port)
	}
	return n
}

func (n *network) accept(l *net.TCPListener, name string, class class, port uint16) {
	for {
		accepted, err := l.AcceptTCP()
		if err != nil {
			return // the test ends
		}
		n.mu.Lock()
		n.number++
		c := &connection{network: n, class: class, born: n.stalls,
			name: fmt.Sprintf("%s %v %d", name, class, n.number)}
		for i := range c.streams {
			c.streams[i] = stream{connection: c, toRelay: i == 1}
		}
		n.connections = append(n.connections, c)
		n.mu.Unlock()
		n.journal.add("%s begins", c.name)
		go c.carry(accepted, port)
	}
}

// carry continues a connection to the target.
func (c *connection) carry(relay *net.TCPConn, port uint16) {
	forth, back := &c.streams[0], &c.streams[1]
	go forth.receive(relay)
	forth.await(func() bool { return !forth.isHeld() })
	target, err := c.network.target.dial(c.network.destination().address(port))
	if err != nil {
		c.network.journal.add("%s: %v", c.name, err)
		_ = relay.SetLinger(0)
		_ = relay.Close()
		forth.discard(err)
		back.discard(err)
		return
	}
	go back.receive(target)
	var sending sync.WaitGroup
	sending.Go(func() { forth.send(target, back) })
	sending.Go(func() { back.send(relay, forth) })
	sending.Wait()
	_ = relay.Close()
	_ = target.Close()
}

// receive queues what the sender has sent.
func (s *stream) receive(from *net.TCPConn) {
	n := s.connection.network
	for {
		b := make([]byte, 64<<10)
		length, err := from.Read(b)
		n.mu.Lock()
		if length > 0 && !s.delivered {
			s.queue = append(s.queue, b[:length])
			s.bytes += length
		}
		if err != nil && s.end == nil {
			s.end = err
		}
		n.changed.Broadcast()
		n.mu.Unlock()
		if err != nil {
			n.journal.add("%v: the sender has ended it: %v", s, err)
			return
		}
	}
}

// send delivers what is queued, and then the end. back is the other direction, which ends too if
// the receiver is gone.
func (s *stream) send(to *net.TCPConn, back *stream) {
	n := s.connection.network
	for {
		s.await(func() bool {
			return len(s.queue) > 0 && !s.isHeld() ||
				len(s.queue) == 0 && s.end != nil && !s.isHeld() && !s.isEndHeld()
		})
		n.mu.Lock()
		var b []byte
		if len(s.queue) > 0 {
			b = s.queue[0]
		}
		n.mu.Unlock()
		if b == nil {
			break
		}
		if _, err := to.Write(b); err != nil {
			s.discard(err)
			back.finish(err)
			return
		}
		n.mu.Lock()
		s.queue, s.bytes = s.queue[1:], s.bytes-len(b)
		n.changed.Broadcast()
		n.mu.Unlock()
	}
	if errors.Is(s.end, io.EOF) {
		_ = to.CloseWrite()
	} else {
		_ = to.SetLinger(0) // a reset
		_ = to.Close()
	}
	s.discard(nil)
}

// finish ends a stream after what is queued.
func (s *stream) finish(err error) {
	n := s.connection.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.end == nil {
		s.end = err
	}
	n.changed.Broadcast()
}

// discard drops what nobody will receive any more.
func (s *stream) discard(err error) {
	n := s.connection.network
	n.mu.Lock()
	lost := s.bytes
	s.queue, s.bytes, s.delivered = nil, 0, true
	if s.end == nil {
		s.end = err
	}
	n.changed.Broadcast()
	n.mu.Unlock()
	n.journal.add("%v: the end is delivered, %d bytes are lost, %v", s, lost, err)
}

func (s *stream) String() string {
	if s.toRelay {
		return s.connection.name + " to relay"
	}
	return s.connection.name + " to target"
}

func (s *stream) await(condition func() bool) {
	n := s.connection.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for !condition() {
		n.changed.Wait()
	}
}

// isHeld reports whether the network holds the stream. The network's mutex must be locked.
func (s *stream) isHeld() bool {
	n := s.connection.network
	return n.stalled.classes[s.connection.class] && s.freed < n.stalls && s.isStalled()
}

// isEndHeld reports whether the network holds the end of the stream. Its mutex must be locked.
func (s *stream) isEndHeld() bool { return s.connection.network.stalled.ends && s.isStalled() }

func (s *stream) isStalled() bool {
	n := s.connection.network
	return (n.stalled.fresh || s.connection.born < n.stalls) && (n.stalled.answers || !s.toRelay)
}

// hold begins a stall.
func (n *network) hold(h stall) {
	n.mu.Lock()
	h.classes = [classes]bool{true, true}
	n.stalled = h
	n.stalls++
	n.mu.Unlock()
	n.journal.add("the network holds bytes: %+v", h)
}

// holdAnswers makes a stall hold what the target sends, too.
func (n *network) holdAnswers() {
	n.free(func() { n.stalled.answers = true })
	n.journal.add("the network also holds what the target sends")
}

// redirect makes the address of the target lead to another one. A connection that the network has
// held from its beginning leads there, too.
func (n *network) redirect(to host) {
	n.free(func() { n.host = to })
	n.journal.add("the address of a target leads to target %d", to)
}

func (n *network) destination() host {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.host
}

// order is in which order a stall ends.
type order int

const (
	dataFirst order = iota
	controlFirst
	anyOrder
)

func (o order) String() string {
	return [...]string{"data first", "control first", "any order"}[o]
}

// heal ends a stall. What comes later in the order does so after the gap, or spread over it.
func (n *network) heal(o order, gap time.Duration, random *rand.Rand) {
	n.journal.add("the network delivers what it has held: %v, within %v", o, gap)
	if o == anyOrder {
		n.mu.Lock()
		var held []*stream
		for _, c := range n.connections {
			for i := range c.streams {
				if s := &c.streams[i]; s.isHeld() {
					held = append(held, s)
				}
			}
		}
		n.mu.Unlock()
		random.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		for i, s := range held {
			if i > 0 {
				time.Sleep(gap / time.Duration(len(held)))
			}
			n.journal.add("%v is delivered", s)
			n.free(func() { s.freed = n.stalls })
		}
	} else {
		first := data
		if o == controlFirst {
			first = control
		}
		n.journal.add("%v is delivered", first)
		n.free(func() { n.stalled.classes[first] = false })
		time.Sleep(gap)
	}
	n.journal.add("everything is delivered")
	n.free(func() { n.stalled.classes = [classes]bool{} })
	time.Sleep(endGap)
	n.free(func() { n.stalled = stall{} })
}

// endGap is how much later the ends of connections are delivered, if a stall holds them.
const endGap = 200 * time.Millisecond

func (n *network) free(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	n.changed.Broadcast()
}

// held returns how many bytes for the target the network holds on connections for RDMA.
func (n *network) held() (bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.connections {
		if s := &c.streams[0]; c.class == data && s.isHeld() {
			bytes += s.bytes
		}
	}
	return bytes
}

// awaitDelivery waits until nothing is on the way to the target.
func (n *network) awaitDelivery(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "the network has delivered everything", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.connections {
			s := &c.streams[0]
			if s.bytes > 0 || s.end != nil && !s.delivered {
				return false
			}
		}
		return true
	})
}
