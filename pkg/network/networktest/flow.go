// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"net/netip"
	"slices"
	"syscall"
)

// Flow is one direction of a connection. What its writer sends is in flight until it is delivered.
type Flow struct {
	network        *Network
	writer, reader *stream

	data    []byte // in flight or unread
	arrived int    // bytes of data that have been delivered
	// The end of the stream and a reset travel behind all data.
	end, reset mark
}

// mark is something without bytes that travels in a flow.
type mark uint8

const (
	unsent mark = iota
	inFlight
	delivered
)

// connect makes a connection. The caller holds the lock.
func (n *Network) connect(from, to *Host, local, remote netip.AddrPort) (near, far *stream) {
	near = &stream{network: n, host: from, local: local, remote: remote}
	far = &stream{network: n, host: to, local: remote, remote: local}
	near.out = &Flow{network: n, writer: near, reader: far}
	far.out = &Flow{network: n, writer: far, reader: near}
	near.in, far.in = far.out, near.out
	n.flows = append(n.flows, near.out, far.out)
	return near, far
}

// disconnect forgets a connection that both ends have closed. The caller holds the lock.
func (n *Network) disconnect(s *stream) {
	n.flows = slices.DeleteFunc(n.flows, func(f *Flow) bool { return f == s.in || f == s.out })
}

// transmit delivers what was put in flight, or leaves that to the test. The caller does not hold
// the lock.
func (n *Network) transmit(f *Flow) {
	if n.config.Transmit != nil {
		n.config.Transmit(f)
		return
	}
	f.Deliver(f.InFlight())
}

// From returns the address of the end that writes.
func (f *Flow) From() netip.AddrPort { return f.writer.local }

// To returns the address of the end that reads.
func (f *Flow) To() netip.AddrPort { return f.reader.local }

// Writer returns the host of the end that writes.
func (f *Flow) Writer() *Host { return f.writer.host }

// Reader returns the host of the end that reads.
func (f *Flow) Reader() *Host { return f.reader.host }

// Buffered returns how many bytes are in flight or have not been read.
func (f *Flow) Buffered() int {
	f.network.mu.Lock()
	defer f.network.mu.Unlock()
	return len(f.data)
}

// InFlight returns how much is in flight: the number of bytes, plus one each for the end of the
// stream and for a reset.
func (f *Flow) InFlight() int {
	f.network.mu.Lock()
	defer f.network.mu.Unlock()
	n := len(f.data) - f.arrived
	for _, m := range []mark{f.end, f.reset} {
		if m == inFlight {
			n++
		}
	}
	return n
}

// Edit calls change with the bytes in flight, which it may inspect and change in place. change must
// not keep them, and must not call anything of this package.
func (f *Flow) Edit(change func(inFlight []byte)) {
	f.network.mu.Lock()
	defer f.network.mu.Unlock()
	change(f.data[f.arrived:])
}

// Deliver delivers the first count of what is in flight, in the units of InFlight. Bytes that
// arrive at an end that has been closed or has failed are dropped, and reset the connection.
func (f *Flow) Deliver(count int) {
	f.network.mu.Lock()
	refused := f.deliver(count)
	f.writer.changed.wake()
	f.reader.changed.wake()
	f.network.mu.Unlock()
	if refused {
		f.network.transmit(f.reader.out)
	}
}

// deliver reports whether the reader's end has put a reset in flight.
func (f *Flow) deliver(count int) (refused bool) {
	n := max(min(count, len(f.data)-f.arrived), 0)
	count -= n
	if f.reader.state() == nil {
		f.arrived += n
	} else if n > 0 {
		f.data = slices.Delete(f.data, f.arrived, f.arrived+n)
		if back := f.reader.out; back.reset == unsent {
			back.reset, refused = inFlight, true
		}
	}
	if f.arrived < len(f.data) || count <= 0 {
		return refused
	}
	if f.end == inFlight {
		f.end = delivered
		count--
	}
	if f.reset == inFlight && count > 0 {
		f.reset = delivered
		// Linux reports a reset that follows the end of the stream as EPIPE.
		errno := syscall.ECONNRESET
		if f.end == delivered {
			errno = syscall.EPIPE
		}
		f.reader.fail(errno)
	}
	return refused
}

// CloseWrite puts the end of the stream in flight, as the writing end's CloseWrite does. It does
// nothing if that end has closed the stream already.
func (f *Flow) CloseWrite() { _ = f.writer.CloseWrite() }

// Fail ends the connection for both ends, which read what has been delivered and then get errno:
// ECONNRESET, or ETIMEDOUT as after a network that was lost. What is in flight is dropped. Nothing
// passes a network that is cut, so the ends notice it only if the test fails their connection.
func (f *Flow) Fail(errno syscall.Errno) {
	f.network.mu.Lock()
	defer f.network.mu.Unlock()
	f.writer.fail(errno)
	f.reader.fail(errno)
}

// GiveUp ends the connection for the writing end alone, with ETIMEDOUT, as its kernel does when the
// peer acknowledges nothing. What is in flight stays in flight. A reset follows it: the answer to
// the acknowledgement that comes too late. GiveUp does nothing if that end has closed the
// connection, or it has failed already.
func (f *Flow) GiveUp() {
	n := f.network
	n.mu.Lock()
	s := f.writer
	over := s.state() != nil
	if !over {
		s.failure, f.reset = syscall.ETIMEDOUT, inFlight
		s.changed.wake()
	}
	n.mu.Unlock()
	if !over {
		n.transmit(f)
	}
}
