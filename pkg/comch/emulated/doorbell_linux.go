// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// doorbell wakes the thread of a consumer or producer. It is one end of a pair of datagram sockets;
// the other end is the button, which the peer uses to ring it. Each end belongs to one side alone,
// so that the two sides share no file description. With datagram sockets, closing or shutting down
// the button does not make this end readable, as it would with stream sockets.
//
// A pipe would not do. A process can write to it from memory whose page faults it serves itself,
// and thus hold the pipe's lock for as long as it likes. Even a read with O_NONBLOCK waits for that
// lock. A socket copies a message before it takes any lock. But messages can carry descriptors.
// Receiving such a message, or closing the socket that holds it, closes them, which may block as
// long as the peer likes. So clear peeks at each message before it receives it, and the cleanup
// queue closes a socket that may hold descriptors.
//
// descriptor, clear and close belong to the thread of the consumer or producer. Any goroutine may
// call shutDown.
type doorbell struct {
	descriptor int
	cleanup    *cleanupQueue

	mu       sync.Mutex // guards which file the descriptor number refers to
	down     bool
	silenced bool // written only by the thread
	closed   bool
	listener linux.WakeListener
}

// maxLastSignals is the bound after shutDown, when no more messages can arrive. It exceeds what the
// kernel queues with default settings (net.unix.max_dgram_qlen).
const maxLastSignals = 4096

// newDoorbell returns a doorbell and the button that rings it. The doorbell's descriptor is charged
// to the account of cleanup.
func newDoorbell(cleanup *cleanupQueue) (bell *doorbell, button int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create doorbell: %w", err)
	}
	if err := cleanup.account.charge(holdings{descriptors: 1}); err != nil {
		cleanup.account.release(holdings{descriptors: 1})
		closeDescriptor(pair[0])
		closeDescriptor(pair[1])
		return nil, -1, err
	}
	return &doorbell{descriptor: pair[0], cleanup: cleanup}, pair[1], nil
}

// clear receives pending signals. After shutDown it silences the descriptor for good: nothing else
// will happen on it, and it would stay readable. On a violation by the peer, clear also silences
// the descriptor, and returns the violation.
func (d *doorbell) clear() error {
	if d.silenced {
		return nil
	}
	d.mu.Lock()
	down := d.down
	d.mu.Unlock()
	limit := linux.MaxWakeSignals
	if down {
		limit = maxLastSignals
	}
	empty, err := d.discard(limit)
	if err != nil || (down && empty) {
		d.silence(empty)
	}
	return err
}

// discard receives up to limit signals and reports whether there are no more. It does not receive a
// signal that carries descriptors.
func (d *doorbell) discard(limit int) (empty bool, err error) {
	for range limit {
		_, carriesDescriptors, err := d.listener.Peek(d.descriptor)
		switch {
		case err == unix.EAGAIN:
			return true, nil
		case err != 0:
			continue // the socket reports an error once
		case carriesDescriptors:
			return false, violation("doorbell signal carries descriptors")
		}
		d.listener.Receive(d.descriptor)
	}
	return false, nil
}

// silence replaces the descriptor's file with an eventfd that nobody signals. Closing the socket
// removes it from every epoll set. If the process has no descriptors left, the descriptor stays
// readable until it is closed.
func (d *doorbell) silence(empty bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	silent, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return
	}
	defer closeDescriptor(silent)
	if !empty {
		dup, err := duplicate(d.descriptor) // keeps Dup3 from closing the socket
		if err != nil {
			return
		}
		_ = d.cleanup.account.charge(holdings{descriptors: 1})
		defer d.cleanup.close(dup)
	}
	d.silenced = unix.Dup3(silent, d.descriptor, unix.O_CLOEXEC) == nil
}

// shutDown makes the descriptor readable, whatever the peer does with the button. No more messages
// can be queued.
func (d *doorbell) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.down {
		return
	}
	d.down = true
	_ = unix.Shutdown(d.descriptor, unix.SHUT_RD)
}

// close closes the descriptor. A second close does nothing.
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
	d.cleanup.account.release(holdings{descriptors: 1})
	return unix.Close(d.descriptor)
}

// checkButton rejects a descriptor that is not a Unix datagram socket, the only kind on which
// linux.Wake cannot block. Closing it can: see cleanupQueue.
func checkButton(descriptor int) error {
	domain, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return status.Errorf(status.InvalidValue, "doorbell is not a socket: %w", err)
	}
	kind, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return status.Errorf(status.InvalidValue, "doorbell is not a socket: %w", err)
	}
	if domain != unix.AF_UNIX || kind != unix.SOCK_DGRAM {
		return status.Errorf(status.InvalidValue,
			"doorbell is not a Unix datagram socket: domain %d, type %d", domain, kind)
	}
	return nil
}
