// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
)

// bell is the socket of a connection after the handshake: each packet wakes its receiver, and its
// end shows that the peer has ended or died. It belongs to the thread of the completion queue.
type bell struct {
	descriptor int
	listener   linux.WakeListener
}

// ring wakes the peer.
func (b *bell) ring() { linux.Wake(b.descriptor) }

// check receives what has arrived and reports whether the peer has closed its end, or sends what it
// must not: packets with descriptors.
func (b *bell) check() (ended bool) {
	for range linux.MaxWakeSignals {
		n, carriesDescriptors, err := b.listener.Peek(b.descriptor)
		switch {
		case err == unix.EAGAIN:
			return false
		case err != 0 || n == 0 || carriesDescriptors:
			return true
		}
		b.listener.Receive(b.descriptor)
	}
	return false
}

// close tells the peer that this side has ended. Packets that remain may hold descriptors of the
// peer, so a goroutine closes them.
func (b *bell) close() {
	_ = unix.Shutdown(b.descriptor, unix.SHUT_RDWR)
	n, _, err := b.listener.Peek(b.descriptor)
	if err == 0 && n > 0 {
		go unix.Close(b.descriptor)
	} else {
		_ = unix.Close(b.descriptor)
	}
	b.descriptor = -1
}
