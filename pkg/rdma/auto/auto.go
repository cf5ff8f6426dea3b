// SPDX-License-Identifier: Apache-2.0

// Package auto is an RDMA provider that chooses for each connection: shared memory (package shm) if
// the peer is on this machine and offers it, and iWARP over TCP otherwise. On the network it is
// iwarp: peers that use that provider alone can connect, and can be connected to.
//
// A listener listens on its TCP port and, under the same number, on the Unix socket of package shm.
// Connect tries the socket if the remote address is this machine's, and falls back to TCP if nobody
// listens there, or if the process there belongs to another user. Both transports share one table
// of keys, so memory is registered once and can be reached over either.
package auto

import (
	"errors"
	"net"
	"net/netip"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "auto"

type provider struct{ options iwarp.Options }

// New returns the provider. It passes the options to iwarp, and their logger to shm, too.
func New(options iwarp.Options) rdma.Provider {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &provider{options: options}
}

// Name returns ProviderName.
func (p *provider) Name() string { return ProviderName }

// Open opens a device for a local address.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	table := registration.NewTable()
	tcp, err := iwarp.OpenWith(table, address, p.options)
	if err != nil {
		return nil, err
	}
	local, err := shm.OpenWith(table, address, shm.Options{Logger: p.options.Logger})
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	return &device{tcp: tcp, local: local, table: table, log: p.options.Logger,
		uses: registration.NewUseCount()}, nil
}

// device is a device of each transport.
type device struct {
	tcp   rdma.SecureDevice
	local rdma.Device
	table *registration.Table
	log   *zap.Logger
	uses  registration.UseCount // protection domains
}

// Capabilities returns the lower limits of both transports.
func (d *device) Capabilities() rdma.Capabilities {
	c, other := d.tcp.Capabilities(), d.local.Capabilities()
	c.MaxInboundReads = min(c.MaxInboundReads, other.MaxInboundReads)
	c.MaxOutboundReads = min(c.MaxOutboundReads, other.MaxOutboundReads)
	c.MaxSendRequests = min(c.MaxSendRequests, other.MaxSendRequests)
	c.MaxReceiveRequests = min(c.MaxReceiveRequests, other.MaxReceiveRequests)
	c.MaxMessageSize = min(c.MaxMessageSize, other.MaxMessageSize)
	return c
}

// NewProtectionDomain makes a protection domain for connections of both transports.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if !d.uses.Acquire() {
		return nil, status.Errorf(status.BadState, "make protection domain: the device is closed")
	}
	return registration.NewDomain(ProviderName, d.table, d.uses.Release), nil
}

// Close fails with status.InUse while anything made on the device is open.
func (d *device) Close() error {
	if !d.uses.RevokeUnused() {
		return status.Errorf(status.InUse, "close RDMA device: protection domains are open")
	}
	return errors.Join(d.tcp.Close(), d.local.Close())
}

// isLocal reports whether an address belongs to this machine's network namespace.
func isLocal(address netip.Addr) bool {
	if address.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil &&
			prefix.Addr().Unmap() == address.Unmap() {
			return true
		}
	}
	return false
}
