// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
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
	d := &device{options: options}
	if err := d.Open(ProviderName, maxReadDepth, network.Kernel{}, address, table); err != nil {
		return nil, err
	}
	return d, nil
}

// device is one local address and everything that is open on it.
type device struct {
	softrdma.Device
	options Options
}
