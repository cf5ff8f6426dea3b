// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "iwarp"

type provider struct{ options Options }

// New returns the provider. It works on any machine, because it needs only TCP.
func New(options Options) rdma.Provider {
	return &provider{options: options.withDefaults()}
}

// Name returns ProviderName.
func (p *provider) Name() string { return ProviderName }

// Open opens a device for a local address. An unspecified address (0.0.0.0 or ::) means all
// addresses of the machine.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	return OpenWith(registration.NewTable(), address, p.options)
}

// OpenWith is Provider.Open with a table of keys that another provider of package rdma shares: the
// domains of either can be used with both.
func OpenWith(
	table *registration.Table, address netip.Addr, options Options,
) (rdma.SecureDevice, error) {
	options = options.withDefaults()
	_, kernel := options.Network.(network.Kernel)
	d := &device{options: options, kernel: kernel}
	if err := d.Open(ProviderName, maxReadDepth, options.Network, address, table); err != nil {
		return nil, err
	}
	return d, nil
}

// Options configures the provider. The zero value is ready for use.
type Options struct {
	// CRC asks peers to protect every FPDU with a CRC32C. A connection uses CRCs if either side
	// asks for them (RFC 5044 section 7.1).
	CRC bool
	// KeepAlive is the idle time before TCP probes the peer, and the time between probes. It is
	// rounded up to seconds. 0 means DefaultKeepAlive; a negative value disables probing.
	KeepAlive time.Duration
	// UserTimeout is how long sent data may remain unacknowledged, or the peer's window closed,
	// before the kernel gives the connection up as lost (TCP_USER_TIMEOUT). 0 means
	// DefaultUserTimeout; a negative value leaves the decision to the kernel.
	UserTimeout time.Duration
	// HandshakeTimeout bounds the wait for the MPA request of an accepted TCP connection, and for
	// the peer's first frame after the reply. 0 means rdma.DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// SendBufferBytes and ReceiveBufferBytes are the fixed sizes of the socket buffers. 0 lets the
	// kernel tune them.
	SendBufferBytes    int
	ReceiveBufferBytes int
	// MaxPendingHandshakes bounds the TCP connections of one listener that have not sent a complete
	// request, and, separately, the requests that wait to be accepted. At the limit, a new
	// connection replaces the oldest one that has sent no request, and a new request is dropped. 0
	// means DefaultMaxPendingHandshakes, or an eighth of the descriptors that the process may have
	// (RLIMIT_NOFILE) if that is less.
	MaxPendingHandshakes int
	// Network makes the connections; nil means the kernel's TCP. Each Stream must be a *net.TCPConn
	// or a network.Pollable. KeepAlive and UserTimeout apply only to the former, and the sizes of
	// the socket buffers only if Network is nil. Unless Network is a network.Kernel, completion
	// queues have no descriptor, and threads have to poll them.
	Network network.Network
	// Logger receives one line for each dropped client, each lost connection, and each failure to
	// accept clients. Nothing is logged per message. nil disables logging.
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
		o.MaxPendingHandshakes = min(DefaultMaxPendingHandshakes, max(linux.OpenFileLimit()/8, 1))
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Network == nil {
		o.Network = network.Kernel{Control: o.control}
	}
	return o
}

// device is one local address and everything that is open on it.
type device struct {
	softrdma.Device
	options Options
	kernel  bool // all streams are sockets of the kernel
}

// Capabilities returns the device's limits.
func (d *device) Capabilities() rdma.Capabilities {
	c := d.Device.Capabilities()
	// If only the peer asks for CRCs, payloads are copied before their CRC is computed, so callers
	// need not keep them stable.
	c.StableSource = d.options.CRC
	return c
}
