package emulated

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// doorbell is what one side of a data path sleeps on. It is one end of a pair
// of datagram sockets; the other end, the bell push, goes to the peer and is
// kept nowhere else, so that the two sides share no file description. With
// datagram sockets, closing or shutting down the push does not make this end
// readable, as it would with stream sockets.
//
// descriptor, drain and close belong to the thread of the consumer or
// producer; hangUp may be called by any goroutine.
type doorbell struct {
	descriptor int

	mu      sync.Mutex // guards what the descriptor number stands for
	hungUp  bool
	muffled bool
	closed  bool
	buffer  [8]byte
}

// maxRings bounds how many datagrams one drain takes: a peer that rings
// without end keeps the descriptor readable, not this thread inside drain.
const maxRings = 16

// newDoorbell makes a doorbell and the push that rings it.
func newDoorbell() (bell *doorbell, push int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create doorbell: %w", err)
	}
	return &doorbell{descriptor: pair[0]}, pair[1], nil
}

// drain takes the rings. After hangUp it silences the descriptor for good,
// because nothing else is going to happen on it and it would stay readable.
func (d *doorbell) drain() {
	for range maxRings {
		if _, err := unix.Read(d.descriptor, d.buffer[:]); errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hungUp && !d.muffled {
		d.muffled = true
		muffle(d.descriptor)
	}
}

// muffle puts an eventfd that nobody rings in the place of descriptor. Closing
// the socket that was there takes it out of every epoll set. Without a free
// descriptor it stays readable until it is closed.
func muffle(descriptor int) {
	silent, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return
	}
	_ = unix.Dup3(silent, descriptor, unix.O_CLOEXEC)
	_ = unix.Close(silent)
}

// hangUp makes the descriptor readable whatever the peer does with the push.
func (d *doorbell) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.hungUp {
		return
	}
	d.hungUp = true
	_ = unix.Shutdown(d.descriptor, unix.SHUT_RD)
}

// close releases the descriptor.
func (d *doorbell) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return unix.Close(d.descriptor)
}

var ringSignal = []byte{1}

// ringPush wakes whoever sleeps on the other end of push. If the socket is
// full the bell has been rung already; if it is broken nobody is listening.
func ringPush(push int) {
	_ = unix.Send(push, ringSignal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// checkPush refuses a descriptor that is not a datagram Unix socket, the only
// kind on which ringPush cannot block and closing has no side effects.
func checkPush(descriptor int) error {
	domain, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return status.Errorf(status.InvalidValue, "doorbell is not a Unix socket (domain %d): %w", domain, err)
	}
	kind, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_DGRAM {
		return status.Errorf(status.InvalidValue, "doorbell is not a datagram socket (type %d): %w", kind, err)
	}
	return nil
}
