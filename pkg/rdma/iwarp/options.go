package iwarp

import (
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Options tune the provider. The zero value is ready for use.
type Options struct {
	// CRC asks peers to protect every FPDU by a CRC32C. It is used on a
	// connection if either side asks for it (RFC 5044 section 7.1).
	CRC bool
	// KeepAlive is the idle time before TCP probes the peer, and the time
	// between probes; rounded up to seconds. 0 means DefaultKeepAlive, less
	// than 0 turns probing off.
	KeepAlive time.Duration
	// UserTimeout is how long sent data may stay unacknowledged, or the
	// peer's window closed, before the connection counts as lost
	// (TCP_USER_TIMEOUT). 0 means DefaultUserTimeout, less than 0 leaves it to
	// the kernel.
	UserTimeout time.Duration
	// HandshakeTimeout bounds the wait for the MPA request of an accepted TCP
	// connection, and for the peer's first frame after the reply. 0 means
	// rdma.DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// SendBufferBytes and ReceiveBufferBytes fix the socket buffers; 0 lets
	// the kernel tune them.
	SendBufferBytes    int
	ReceiveBufferBytes int
	// MaxPendingHandshakes bounds the TCP connections of one listener that
	// are not accepted yet. The one that has been silent the longest gives
	// way to a new one. 0 means DefaultMaxPendingHandshakes.
	MaxPendingHandshakes int
	// Logger gets one line for each stray client and lost connection; nil
	// means silence. Nothing is logged per message.
	Logger *zap.Logger
}

// The defaults of Options.
const (
	DefaultKeepAlive            = time.Second
	DefaultUserTimeout          = 5 * time.Second
	DefaultMaxPendingHandshakes = 128
)

func (o Options) withDefaults() Options {
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	if o.UserTimeout == 0 {
		o.UserTimeout = DefaultUserTimeout
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = rdma.DefaultHandshakeTimeout
	}
	if o.MaxPendingHandshakes <= 0 {
		o.MaxPendingHandshakes = DefaultMaxPendingHandshakes
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}
