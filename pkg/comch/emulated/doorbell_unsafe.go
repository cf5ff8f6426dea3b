package emulated

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// doorbell is what one side of a data path sleeps on. It is one end of a pair
// of datagram sockets; the other end, the bell push, goes to the peer and is
// kept nowhere else, so that the two sides share no file description. With
// datagram sockets, closing or shutting down the push does not make this end
// readable, as it would with stream sockets.
//
// A pipe would not do: whoever writes to it from memory whose page faults it
// serves itself holds the lock of the pipe for as long as it likes, and even
// a read with O_NONBLOCK waits for that lock. A socket's messages are copied
// before any lock is taken. But they can carry descriptors, and whoever takes
// such a message, or closes the socket that it is queued in, closes these,
// which may block as long as the peer likes. So each message is looked at
// before it is taken, and a socket that is not known to be free of
// descriptors is closed by the disposal.
//
// descriptor, drain and close belong to the thread of the consumer or
// producer; hangUp may be called by any goroutine.
type doorbell struct {
	descriptor int
	cleanup    *cleanupQueue

	mu       sync.Mutex // guards what the descriptor number stands for
	isDown   bool
	silenced bool // written by the thread only
	closed   bool
	buffer   [8]byte
	header   unix.Msghdr // for peek
}

// maxRings bounds how many datagrams one drain takes: a peer that rings
// without end keeps the descriptor readable, not this thread inside drain.
const maxSignals = 16

// maxLastRings is the bound after hangUp, when no more can come. It is more
// than the kernel queues with usual settings (net.unix.max_dgram_qlen).
const maxLastSignals = 4096

// newDoorbell makes a doorbell and the push that rings it.
func newDoorbell(cleanup *cleanupQueue) (bell *doorbell, button int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create doorbell: %w", err)
	}
	return &doorbell{descriptor: pair[0], cleanup: cleanup}, pair[1], nil
}

// drain takes the rings. After hangUp it silences the descriptor for good,
// because nothing else is going to happen on it and it would stay readable.
// A violation by the peer does the same and is returned.
func (d *doorbell) drain() error {
	if d.silenced {
		return nil
	}
	d.mu.Lock()
	isDown := d.isDown
	d.mu.Unlock()
	limit := maxSignals
	if isDown {
		limit = maxLastSignals
	}
	empty, err := d.discard(limit)
	if err != nil || (isDown && empty) {
		d.silence(empty)
	}
	return err
}

// take takes up to limit rings and reports whether there are no more. It
// leaves a ring that carries descriptors where it is.
func (d *doorbell) discard(limit int) (empty bool, err error) {
	for range limit {
		flags, err := d.peek()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return true, nil
		case err != nil:
			continue // an error of the socket is told once
		case flags&unix.MSG_CTRUNC != 0:
			return false, violation("a ring of the doorbell carries descriptors")
		}
		// Nobody else takes from this socket: this is what was looked at.
		_, _ = unix.Read(d.descriptor, d.buffer[:])
	}
	return false, nil
}

// muffle puts an eventfd that nobody rings in the place of the descriptor.
// Closing the socket that was there takes it out of every epoll set. Without
// free descriptors it stays readable until it is closed.
func (d *doorbell) silence(empty bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	silent, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return
	}
	defer closeDescriptor(silent)
	if !empty {
		dup, err := duplicate(d.descriptor) // not to let go of the socket here
		if err != nil {
			return
		}
		defer d.cleanup.close(dup)
	}
	d.silenced = unix.Dup3(silent, d.descriptor, unix.O_CLOEXEC) == nil
}

// hangUp makes the descriptor readable whatever the peer does with the push.
// Nothing is queued any more afterwards.
func (d *doorbell) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.isDown {
		return
	}
	d.isDown = true
	_ = unix.Shutdown(d.descriptor, unix.SHUT_RD)
}

// close releases the descriptor.
func (d *doorbell) close() error {
	d.shutDown()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if !d.silenced {
		if empty, err := d.discard(maxLastSignals); err != nil || !empty {
			d.cleanup.close(d.descriptor)
			return nil
		}
	}
	return unix.Close(d.descriptor)
}

var doorbellSignal = []byte{1}

// ringPush wakes whoever sleeps on the other end of push. If the socket is
// full the bell has been rung already; if it is broken nobody is listening.
func ringDoorbell(button int) {
	_ = unix.Send(button, doorbellSignal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// checkPush refuses a descriptor that is not a datagram Unix socket, the only
// kind on which ringPush cannot block. Closing it can: see disposal.
func checkButton(descriptor int) error {
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

// peek looks at the next ring and leaves it where it is. The flags include
// MSG_CTRUNC if it carries descriptors, for which there is no room here. The
// system call is made directly because unix.Recvmsg allocates.
func (d *doorbell) peek() (flags int32, err error) {
	d.header = unix.Msghdr{}
	_, _, code := unix.Syscall(unix.SYS_RECVMSG, uintptr(d.descriptor), uintptr(unsafe.Pointer(&d.header)),
		unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if code != 0 {
		return 0, code
	}
	return d.header.Flags, nil
}
