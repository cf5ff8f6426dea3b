package iwarp

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "iwarp"

type provider struct{ options Options }

// New makes the provider. It is always available: it needs nothing but TCP.
func New(options Options) rdma.Provider {
	return &provider{options: options.withDefaults()}
}

// Name implements rdma.Provider.
func (p *provider) Name() string { return ProviderName }

// Open implements rdma.Provider. An unspecified address (0.0.0.0 or ::) stands
// for all of the machine's addresses.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	if !address.IsValid() {
		return nil, status.Errorf(status.InvalidValue, "open iwarp device: no address given")
	}
	// Whether an address is local is best told by the kernel: 127.0.0.0/8,
	// anycast and non-local binding make every own test wrong somewhere.
	probe, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
	if code := listenCode(err); code == status.NotFound {
		return nil, status.Errorf(code, "open iwarp device: %v is not an address of this machine: %w", address, err)
	}
	if err != nil {
		return nil, status.Errorf(listenCode(err), "open iwarp device %v: %w", address, err)
	}
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("open iwarp device %v: %w", address, err)
	}
	return &device{address: address, options: p.options, table: newMemoryTable(), uses: newUseCount()}, nil
}

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

// The limits of a connection. They bound its memory, not the protocol.
const (
	maxRequests = 1 << 15
	// maxMessageSize keeps lengths positive for peers with signed ones (siw).
	maxMessageSize = math.MaxInt32
)

// device implements rdma.Device: one local address.
type device struct {
	address netip.Addr
	options Options
	table   *memoryTable
	uses    useCount // protection domains, completion queues, listeners
	// lastActive is the domain, which is to say the session, that has moved bytes
	// last.
	lastActive atomic.Pointer[protectionDomain]
}

// Capabilities implements rdma.Device.
func (d *device) Capabilities() rdma.Capabilities {
	return rdma.Capabilities{
		Transport:          ProviderName,
		MaxInboundReads:    maxReadDepth,
		MaxOutboundReads:   maxReadDepth,
		MaxSendRequests:    maxRequests,
		MaxReceiveRequests: maxRequests,
		MaxSegments:        1,
		MaxMessageSize:     maxMessageSize,
		// With CRCs only the peer's wish, payloads are copied before they are
		// summed: a caller that was told nothing has to do nothing.
		StableSource: d.options.CRC,
	}
}

// NewProtectionDomain implements rdma.Device.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.acquire("make protection domain"); err != nil {
		return nil, err
	}
	return &protectionDomain{device: d, uses: newUseCount()}, nil
}

// NewCompletionQueue implements rdma.Device. The queue grows beyond capacity
// if its connections can have more requests outstanding.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue, "make completion queue: capacity %d is negative", capacity)
	}
	if err := d.acquire("make completion queue"); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, capacity)
	if err != nil {
		d.uses.release()
		return nil, err
	}
	return q, nil
}

// Close implements rdma.Device: status.InUse while anything made on it is
// open.
func (d *device) Close() error {
	if !d.uses.revokeUnused() {
		return status.Errorf(status.InUse, "close iwarp device %v: not everything made on it is closed", d.address)
	}
	return nil
}

func (d *device) acquire(operation string) error {
	if !d.uses.acquire() {
		return status.Errorf(status.BadState, "%s: iwarp device %v is closed", operation, d.address)
	}
	return nil
}
