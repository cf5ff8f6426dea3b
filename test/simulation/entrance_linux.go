// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// entrance is where NBD clients connect to a gateway. The connections are pairs of real sockets,
// because the gateway's workers use descriptors. They never block: what waits, waits for a channel,
// so that virtual time can pass.
type entrance struct {
	arrivals chan *visitor
	closed   chan struct{}
	once     sync.Once
}

func newEntrance() *entrance {
	return &entrance{arrivals: make(chan *visitor, 64), closed: make(chan struct{})}
}

// connect returns the client's end of a new connection, and the server's.
func (e *entrance) connect(name string) (int, *visitor) {
	pair, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		panic("simulation: create socket pair: " + err.Error())
	}
	v := &visitor{name: name, descriptor: pair[1], arrived: make(chan struct{}, 1),
		closed: make(chan struct{})}
	e.arrivals <- v
	return pair[0], v
}

// Accept waits for a client (net.Listener).
func (e *entrance) Accept() (net.Conn, error) {
	select {
	case v := <-e.arrivals:
		return v, nil
	case <-e.closed:
		return nil, net.ErrClosed
	}
}

// Close rejects the clients that nobody has accepted (net.Listener).
func (e *entrance) Close() error {
	e.once.Do(func() { close(e.closed) })
	for {
		select {
		case v := <-e.arrivals:
			_ = v.Close()
		default:
			return nil
		}
	}
}

// Addr returns an address without meaning (net.Listener).
func (e *entrance) Addr() net.Addr { return visitorAddress("entrance") }

type visitorAddress string

func (visitorAddress) Network() string  { return "simulation" }
func (a visitorAddress) String() string { return string(a) }

// visitor is a gateway's end of a connection while it negotiates. It implements net.Conn and
// syscall.Conn.
type visitor struct {
	name    string
	arrived chan struct{} // gets a value when the client has sent something, or has gone
	closed  chan struct{}

	mu         sync.Mutex // guards the fields below
	descriptor int        // -1 once closed
	deadline   time.Time
}

// wake lets the visitor look at its socket.
func (v *visitor) wake() {
	select {
	case v.arrived <- struct{}{}:
	default:
	}
}

func (v *visitor) Read(b []byte) (int, error) {
	for {
		n, deadline, err := v.tryRead(b)
		switch {
		case err == unix.EAGAIN:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
		var expired <-chan time.Time
		if !deadline.IsZero() {
			expired = time.After(time.Until(deadline))
		}
		select {
		case <-v.arrived:
		case <-v.closed:
			return 0, net.ErrClosed
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (v *visitor) tryRead(b []byte) (int, time.Time, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.descriptor < 0 {
		return 0, v.deadline, net.ErrClosed
	}
	n, err := unix.Read(v.descriptor, b)
	return n, v.deadline, err
}

func (v *visitor) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.descriptor < 0 {
		return 0, net.ErrClosed
	}
	return unix.SendmsgN(v.descriptor, b, nil, nil, unix.MSG_NOSIGNAL)
}

func (v *visitor) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.descriptor < 0 {
		return net.ErrClosed
	}
	close(v.closed)
	err := unix.Close(v.descriptor)
	v.descriptor = -1
	return err
}

func (v *visitor) LocalAddr() net.Addr  { return visitorAddress("gateway") }
func (v *visitor) RemoteAddr() net.Addr { return visitorAddress(v.name) }

func (v *visitor) SetDeadline(at time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deadline = at
	return nil
}

func (v *visitor) SetReadDeadline(at time.Time) error  { return v.SetDeadline(at) }
func (v *visitor) SetWriteDeadline(at time.Time) error { return nil }

// SyscallConn gives the server the descriptor (syscall.Conn).
func (v *visitor) SyscallConn() (syscall.RawConn, error) { return rawVisitor{v}, nil }

type rawVisitor struct{ *visitor }

func (r rawVisitor) Control(f func(descriptor uintptr)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.descriptor < 0 {
		return net.ErrClosed
	}
	f(uintptr(r.descriptor))
	return nil
}

func (rawVisitor) Read(func(uintptr) bool) error  { return syscall.ENOTSUP }
func (rawVisitor) Write(func(uintptr) bool) error { return syscall.ENOTSUP }

// trySend sends what the socket accepts, and returns how much that is. gone reports that the other
// end has closed the connection.
func trySend(descriptor int, b []byte) (n int, gone bool) {
	if len(b) == 0 {
		return 0, false
	}
	n, err := unix.SendmsgN(descriptor, b, nil, nil, unix.MSG_NOSIGNAL)
	switch err {
	case nil:
		return n, false
	case unix.EAGAIN:
		return 0, false
	}
	return 0, true
}

// tryReceive receives what is there. over reports the end of the connection.
func tryReceive(descriptor int, b []byte) (n int, over bool) {
	n, err := unix.Read(descriptor, b)
	switch {
	case err == unix.EAGAIN:
		return 0, false
	case err != nil:
		return 0, true
	}
	return n, n == 0
}

// endWriting tells the other end that nothing more is coming.
func endWriting(descriptor int) { _ = unix.Shutdown(descriptor, unix.SHUT_WR) }

func closeDescriptor(descriptor int) { _ = unix.Close(descriptor) }
