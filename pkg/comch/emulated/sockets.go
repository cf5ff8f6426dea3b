// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// Sockets is the seam to the sockets over which servers and clients exchange control messages and
// descriptors, and to the names by which they find each other. UnixSockets implements it with the
// kernel's sockets; a simulation, with package socketstest. Any goroutine may call its methods.
type Sockets interface {
	// Listen opens a listening socket for a service. If public, every user can connect; otherwise
	// only root and the user of this process. It fails with status.AlreadyExist if the service
	// has a listener.
	Listen(ctx context.Context, service comch.Service, public bool) (SocketListener, error)
	// Connect connects to the only service of this name that represents hostDevice, on any DPU
	// device. It fails with status.NotFound if there is none, with status.InvalidValue if there
	// are several, and with status.Full if too many clients wait to be accepted.
	Connect(ctx context.Context, hostDevice, name string) (Socket, error)
	// Pair returns two connected sockets of this process.
	Pair() (first, second Socket, err error)
	// Services lists the services. If it fails, it still returns those that it could read.
	Services() ([]comch.Service, error)
}

// SocketListener accepts the clients of a service. Any goroutine may call its methods.
type SocketListener interface {
	// Accept waits for the next client. After Close it fails with net.ErrClosed.
	Accept() (Socket, error)
	// OpenToEveryUser lets every user connect from now on.
	OpenToEveryUser() error
	// Address returns where the listener listens, for logs.
	Address() string
	// Close releases the name, stops listening, and disconnects the clients that nobody has
	// accepted.
	Close() error
}

// Socket is one end of a connection that carries packets, whole and in order, as SOCK_SEQPACKET
// sockets do. One goroutine may read while another writes; any goroutine may call the other
// methods. Reads and writes fail with os.ErrDeadlineExceeded after their deadline, with
// net.ErrClosed after Close, and once with ECONNRESET if the peer closed its end before it had read
// everything.
type Socket interface {
	// ReadPacket waits for the next packet and copies it to packet, and its descriptors to passed.
	// The caller owns the descriptors, even if there is an error. If either part exceeds its
	// buffer, ReadPacket drops the rest and fails with ErrTruncated. It returns io.EOF when the
	// peer has closed its end and its packets have been read.
	ReadPacket(packet []byte, passed []int) (length, descriptors int, err error)
	// WritePacket sends a packet, which must not be empty, with duplicates of the descriptors. It
	// waits while the peer's queue is full, and fails with EPIPE if the peer has closed its end.
	WritePacket(packet []byte, passed []int) error
	// SetReadDeadline sets the deadline of pending and future reads, and SetWriteDeadline that of
	// writes; the zero time means none. They fail only on a closed socket.
	SetReadDeadline(deadline time.Time) error
	SetWriteDeadline(deadline time.Time) error
	// Disconnect makes the peer find the end of the connection, as if this end had been closed. It
	// does not block, which Close may do.
	Disconnect()
	// HasPeerLeft reports whether the peer has disconnected, has closed its end, or has died, even
	// if packets that it sent before have yet to be read. It does not block.
	HasPeerLeft() bool
	// Peer returns the process at the other end.
	Peer() (comch.Peer, error)
	// Close closes the socket and the descriptors in packets that nobody has read. Closing
	// descriptors that the peer chose can block for as long as the peer likes.
	Close() error
}

// ErrTruncated is what Socket.ReadPacket returns for a packet that exceeds the caller's buffers.
var ErrTruncated = errors.New("packet or its descriptors exceed the buffer")
