// SPDX-License-Identifier: Apache-2.0

package socketstest

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// socket implements emulated.Socket.
type socket struct {
	process *Process
	link    *link
	peer    *socket

	// Guarded by link.mu.
	queue         []*Delivery // sent to this end, oldest first
	ready         int         // of queue: delivered without a gap
	closed        bool
	killed        bool      // with its process
	end           *Delivery // that this end has sent; nil if it has not
	ended         bool      // the end of either side has arrived
	reset         bool      // a call has to return ECONNRESET
	readDeadline  time.Time
	writeDeadline time.Time
}

// link is what both ends of a connection share.
type link struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

// newPairLocked returns two connected sockets. Its caller holds the lock of the network.
func newPairLocked(first, second *Process) (one, other *socket) {
	shared := &link{changed: make(chan struct{})}
	one = &socket{process: first, link: shared}
	other = &socket{process: second, link: shared, peer: one}
	one.peer = other
	first.sockets = append(first.sockets, one)
	second.sockets = append(second.sockets, other)
	return one, other
}

func (l *link) signalLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// waitLocked releases the lock and waits for the next change or the deadline.
func (l *link) waitLocked(deadline time.Time) {
	changed := l.changed
	l.mu.Unlock()
	defer l.mu.Lock()
	if deadline.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// Delivery is a packet, or the end of a connection, on its way to a socket.
type Delivery struct {
	From, To comch.Peer // the processes
	Length   int        // bytes of the packet
	End      bool       // the sender has closed its end, or has died

	to          *socket
	packet      []byte
	descriptors []int
	reset       bool // with End: the sender had not read everything
	delivered   bool // guarded by to.link.mu
}

// Deliver makes the delivery visible to its receiver. A second call does nothing.
func (d *Delivery) Deliver() {
	s := d.to
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	d.delivered = true
	for s.ready < len(s.queue) && s.queue[s.ready].delivered {
		if next := s.queue[s.ready]; next.End {
			s.ended, s.reset = true, next.reset
			s.queue = slices.Delete(s.queue, s.ready, s.ready+1)
		} else {
			s.ready++
		}
	}
	s.link.signalLocked()
}

// sendLocked puts a delivery on its way. The caller calls the result after it has released the
// lock.
func (s *socket) sendLocked(d *Delivery) (deliver func()) {
	d.From, d.To, d.to = s.process.identity, s.peer.process.identity, s.peer
	d.Length = len(d.packet)
	s.peer.queue = append(s.peer.queue, d)
	if inFlight := s.process.network.options.InFlight; inFlight != nil {
		return func() { inFlight(d) }
	}
	return d.Deliver
}

func (s *socket) ReadPacket(packet []byte, passed []int) (length, descriptors int, err error) {
	d, err := s.nextDelivery()
	if err != nil {
		return 0, 0, err
	}
	length, descriptors = copy(packet, d.packet), copy(passed, d.descriptors)
	closeAll(d.descriptors[descriptors:])
	if length < len(d.packet) || descriptors < len(d.descriptors) {
		err = emulated.ErrTruncated
	}
	return length, descriptors, err
}

func (s *socket) nextDelivery() (*Delivery, error) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	for {
		switch {
		case s.closed:
			return nil, net.ErrClosed
		case isOver(s.readDeadline):
			return nil, os.ErrDeadlineExceeded
		case s.reset:
			s.reset = false
			return nil, unix.ECONNRESET
		case s.ready > 0:
			next := s.queue[0]
			s.queue = slices.Delete(s.queue, 0, 1)
			s.ready--
			s.link.signalLocked()
			return next, nil
		case s.ended:
			return nil, io.EOF
		}
		s.link.waitLocked(s.readDeadline)
	}
}

func isOver(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

func (s *socket) WritePacket(packet []byte, passed []int) error {
	descriptors, err := s.pass(passed)
	if err != nil {
		return err
	}
	d := &Delivery{packet: slices.Clone(packet), descriptors: descriptors}
	deliver, err := s.send(d)
	if deliver == nil {
		closeAll(descriptors)
		return err
	}
	deliver()
	return nil
}

// send waits for room. It returns nil if nobody will receive d.
func (s *socket) send(d *Delivery) (deliver func(), err error) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	for {
		switch {
		case s.killed:
			return nil, nil
		case s.closed:
			return nil, net.ErrClosed
		case isOver(s.writeDeadline):
			return nil, os.ErrDeadlineExceeded
		case s.reset:
			s.reset = false
			return nil, unix.ECONNRESET
		case s.ended:
			return nil, unix.EPIPE
		case s.peer.closed, s.peer.end != nil:
			return nil, nil // the end of the connection is in flight
		case len(s.peer.queue) < s.process.network.options.QueueLength:
			return s.sendLocked(d), nil
		}
		s.link.waitLocked(s.writeDeadline)
	}
}

func (s *socket) SetReadDeadline(deadline time.Time) error {
	return s.setDeadline(&s.readDeadline, deadline)
}

func (s *socket) SetWriteDeadline(deadline time.Time) error {
	return s.setDeadline(&s.writeDeadline, deadline)
}

func (s *socket) setDeadline(which *time.Time, deadline time.Time) error {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	*which = deadline
	s.link.signalLocked()
	return nil
}

func (s *socket) Peer() (comch.Peer, error) { return s.peer.process.identity, nil }

// Close does not block.
func (s *socket) Close() error {
	if !s.close(false) {
		return net.ErrClosed
	}
	s.process.removeSocket(s)
	return nil
}

func (s *socket) Disconnect() {
	s.link.mu.Lock()
	if s.closed || s.end != nil {
		s.link.mu.Unlock()
		return
	}
	s.ended = true
	deliver := s.sendEndLocked(false)
	s.link.signalLocked()
	s.link.mu.Unlock()
	deliver()
}

// sendEndLocked is sendLocked for the end. If this end has been sent before, it only notes whether
// everything had been read, as the kernel does.
func (s *socket) sendEndLocked(reset bool) (deliver func()) {
	switch {
	case s.peer.closed:
	case s.end == nil:
		s.end = &Delivery{End: true, reset: reset}
		return s.sendLocked(s.end)
	case !reset:
	case s.peer.ended:
		s.peer.reset = true
	default:
		s.end.reset = true
	}
	return func() {}
}

// HasPeerLeft does not wait for the delivery of the end: on one machine, the kernel knows at once.
func (s *socket) HasPeerLeft() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.closed || s.ended || s.peer.closed || s.peer.end != nil
}

// close closes this end unless it is closed already.
func (s *socket) close(killed bool) bool {
	s.link.mu.Lock()
	if s.closed {
		s.link.mu.Unlock()
		return false
	}
	s.closed, s.killed = true, killed
	var unread []int
	hasUnread := false
	for _, d := range s.queue {
		unread = append(unread, d.descriptors...)
		hasUnread = hasUnread || !d.End
	}
	s.queue, s.ready = nil, 0
	deliver := s.sendEndLocked(hasUnread)
	s.link.signalLocked()
	s.link.mu.Unlock()
	closeAll(unread)
	deliver()
	return true
}

// reject closes a socket that nobody has accepted. The peer sees a reset, whether or not it has
// sent something.
func (s *socket) reject() {
	s.link.mu.Lock()
	if len(s.queue) == 0 {
		s.queue = append(s.queue, &Delivery{to: s})
	}
	s.link.mu.Unlock()
	_ = s.Close() // fails only if its process has been killed
}

// pass returns the descriptors that the peer gets.
func (s *socket) pass(descriptors []int) ([]int, error) {
	var passed []int
	for _, descriptor := range descriptors {
		received, err := s.process.network.options.Pass(descriptor, s.process.identity,
			s.peer.process.identity)
		if err != nil {
			closeAll(passed)
			return nil, fmt.Errorf("pass descriptor %d: %w", descriptor, err)
		}
		passed = append(passed, received)
	}
	return passed, nil
}

// Duplicate returns another descriptor of the same open file, as the kernel passes it.
func Duplicate(descriptor int) (int, error) {
	return unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
}

func closeAll(descriptors []int) {
	for _, descriptor := range descriptors {
		_ = unix.Close(descriptor)
	}
}
