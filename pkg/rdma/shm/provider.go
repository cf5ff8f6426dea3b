package shm

import (
	"context"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration, and the name of its transport.
const ProviderName = "shm"

// Options configures the provider. The zero value is ready for use.
type Options struct {
	// Logger receives one line for each dropped client and each lost connection. Nothing is logged
	// per message. nil disables logging.
	Logger *zap.Logger
}

type provider struct{ options Options }

// New returns the provider. It connects processes in one network namespace of one machine, which
// belong to the same user or to root.
func New(options Options) rdma.Provider {
	return &provider{options: options}
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
) (rdma.Device, error) {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	if !address.IsValid() {
		return nil, status.Errorf(status.InvalidValue, "open shm device: the address is missing")
	}
	// Whether the kernel lets a socket listen there is the only test that is right for every local
	// address.
	probe, err := network.Kernel{}.Listen(context.Background(), netip.AddrPortFrom(address, 0))
	if err != nil {
		return nil, status.Errorf(status.NotFound,
			"open shm device: %v is not an address of this machine: %w", address, err)
	}
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("open shm device %v: %w", address, err)
	}
	return &device{address: address, options: options, table: table,
		uses: registration.NewUseCount()}, nil
}

// device is one local address and everything that is open on it.
type device struct {
	address netip.Addr
	options Options
	table   *registration.Table
	uses    registration.UseCount // protection domains, completion queues, listeners
}

// Capabilities returns the device's limits.
func (d *device) Capabilities() rdma.Capabilities {
	return rdma.Capabilities{
		Transport:          ProviderName,
		MaxInboundReads:    maxReadDepth,
		MaxOutboundReads:   maxReadDepth,
		MaxSendRequests:    maxRequests,
		MaxReceiveRequests: maxRequests,
		MaxSegments:        1,
		MaxMessageSize:     maxMessageSize,
	}
}

// NewProtectionDomain makes a protection domain.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.acquire("make protection domain"); err != nil {
		return nil, err
	}
	return registration.NewDomain(ProviderName, d.table, d.uses.Release), nil
}

// NewCompletionQueue makes a completion queue. It grows beyond capacity if its connections have
// more requests outstanding.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue,
			"make completion queue: capacity %d is negative", capacity)
	}
	if err := d.acquire("make completion queue"); err != nil {
		return nil, err
	}
	q, err := newCompletionQueue(d, capacity)
	if err != nil {
		d.uses.Release()
		return nil, err
	}
	return q, nil
}

// Close fails with status.InUse while anything made on the device is open.
func (d *device) Close() error {
	if !d.uses.RevokeUnused() {
		return status.Errorf(status.InUse,
			"close shm device %v: protection domains, completion queues, or listeners are open",
			d.address)
	}
	return nil
}

// acquire adds a reference to the device unless it is closed.
func (d *device) acquire(operation string) error {
	if !d.uses.Acquire() {
		return status.Errorf(status.BadState, "%s: shm device %v is closed", operation, d.address)
	}
	return nil
}
