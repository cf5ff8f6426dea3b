// SPDX-License-Identifier: Apache-2.0

// Package softrdma is the part of the RDMA providers in software that does not depend on how they
// move data: Device and Listener, Queue (of completions) and Endpoint (of a connection). Each is
// embedded in the provider's own type.
package softrdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The limits of a connection. They bound its memory; the protocols would allow more.
const (
	MaxRequests = 1 << 15
	// MaxMessageSize keeps lengths positive for peers that store them in signed integers (siw).
	MaxMessageSize = math.MaxInt32
)

// Device is one local address and everything that is open on it. Any goroutine may call its
// methods.
type Device struct {
	Address netip.Addr
	Table   *registration.Table
	Uses    registration.UseCount // protection domains, completion queues, listeners

	provider     string
	maxReadDepth int
}

// Open makes d a device of the named provider for a local address. An unspecified address (0.0.0.0
// or ::) means all addresses of the machine.
func (d *Device) Open(
	provider string, maxReadDepth int, on network.Network, address netip.Addr,
	table *registration.Table,
) error {
	if !address.IsValid() {
		return status.Errorf(status.InvalidValue, "open %s device: the address is missing", provider)
	}
	// Ask the network whether the address is local. No other test is right for every address of a
	// kernel, because of 127.0.0.0/8, anycast, and non-local binding.
	probe, err := on.Listen(context.Background(), netip.AddrPortFrom(address, 0))
	if code := ListenCode(err); code == status.NotFound {
		return status.Errorf(code, "open %s device: %v is not an address of this machine: %w",
			provider, address, err)
	}
	if err != nil {
		return status.Errorf(ListenCode(err), "open %s device %v: %w", provider, address, err)
	}
	if err := probe.Close(); err != nil {
		return fmt.Errorf("open %s device %v: %w", provider, address, err)
	}
	d.Address, d.Table, d.Uses = address, table, registration.NewUseCount()
	d.provider, d.maxReadDepth = provider, maxReadDepth
	return nil
}

// ListenCode returns the status code for a failed listen.
func ListenCode(err error) status.Code {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return status.AlreadyExist
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return status.NotFound
	}
	return status.CodeOf(err)
}

// Capabilities returns the device's limits.
func (d *Device) Capabilities() rdma.Capabilities {
	return rdma.Capabilities{
		Transport:          d.provider,
		MaxInboundReads:    d.maxReadDepth,
		MaxOutboundReads:   d.maxReadDepth,
		MaxSendRequests:    MaxRequests,
		MaxReceiveRequests: MaxRequests,
		MaxSegments:        1,
		MaxMessageSize:     MaxMessageSize,
	}
}

// NewProtectionDomain makes a protection domain.
func (d *Device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.Acquire("make protection domain"); err != nil {
		return nil, err
	}
	return registration.NewDomain(d.provider, d.Table, d.Uses.Release), nil
}

// OpenQueue opens a completion queue of d, which releases its reference to d when it is closed.
func OpenQueue[Q rdma.CompletionQueue](
	d *Device, capacity int, open func() (Q, error),
) (rdma.CompletionQueue, error) {
	if capacity < 0 {
		return nil, status.Errorf(status.InvalidValue,
			"make completion queue: capacity %d is negative", capacity)
	}
	if err := d.Acquire("make completion queue"); err != nil {
		return nil, err
	}
	q, err := open()
	if err != nil {
		d.Uses.Release()
		return nil, err
	}
	return q, nil
}

// Close fails with status.InUse while anything made on the device is open.
func (d *Device) Close() error {
	if !d.Uses.RevokeUnused() {
		return status.Errorf(status.InUse,
			"close %s device %v: protection domains, completion queues, or listeners are open",
			d.provider, d.Address)
	}
	return nil
}

// Dial has connect make a connection from d, by the deadline of ctx or else the default one.
func Dial[C rdma.Connection](
	ctx context.Context, d *Device, remote netip.AddrPort, connect func(context.Context) (C, error),
) (rdma.Connection, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdma.DefaultConnectTimeout)
		defer cancel()
	}
	if err := d.Acquire("connect"); err != nil {
		return nil, err
	}
	defer d.Uses.Release()
	c, err := connect(ctx)
	if err != nil {
		return nil, status.Errorf(status.CodeOf(err), "connect to %v over %s: %w", remote,
			d.provider, err)
	}
	return c, nil
}

// Acquire adds a reference to the device unless it is closed.
func (d *Device) Acquire(operation string) error {
	if !d.Uses.Acquire() {
		return status.Errorf(status.BadState, "%s: %s device %v is closed", operation, d.provider,
			d.Address)
	}
	return nil
}

// ErrForeignQueue rejects a configuration whose completion queue is not one of the device.
var ErrForeignQueue = status.Errorf(status.InvalidValue,
	"completion queue is missing or belongs to another device")

// CheckCounts checks the numbers in a configuration.
func (d *Device) CheckCounts(config *rdma.ConnectionConfig) error {
	for _, c := range []struct {
		name            string
		value, min, max int
	}{
		{"SendRequests", config.SendRequests, 1, MaxRequests},
		{"ReceiveRequests", config.ReceiveRequests, 1, MaxRequests},
		{"InboundReads", config.InboundReads, 0, d.maxReadDepth},
		{"OutboundReads", config.OutboundReads, 0, d.maxReadDepth},
		{"length of PrivateData", len(config.PrivateData), 0, rdma.MaxPrivateData},
		{"number of Lent regions", len(config.Lent), 0, rdma.MaxLent},
	} {
		if c.value < c.min || c.value > c.max {
			return status.Errorf(status.InvalidValue,
				"%s %d is not between %d and %d", c.name, c.value, c.min, c.max)
		}
	}
	return nil
}
