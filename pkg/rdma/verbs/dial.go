// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connect implements rdma.Device. If the peer's application rejects the request, the error is an
// *rdma.RejectedError.
func (d *device) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdma.DefaultConnectTimeout)
		defer cancel()
	}
	if err := d.acquire("connect"); err != nil {
		return nil, err
	}
	defer d.release()
	var c *connection
	err := d.withFreePort(func() (err error) {
		c, err = d.connect(ctx, remote, &config)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %v over %s: %w", remote, d.location.device, err)
	}
	return c, nil
}

// maxPortAttempts bounds the search for a free port.
const maxPortAttempts = 16

// withFreePort repeats attempt while the local port that the connection manager picks turns out to
// be in use. On iWARP it picks TCP ports without asking TCP.
func (d *device) withFreePort(attempt func() error) error {
	var err error
	for range maxPortAttempts {
		if err = attempt(); !errors.Is(err, syscall.EADDRINUSE) || d.limits.Transport != ibv.IWARP {
			break
		}
	}
	return err
}

func (d *device) connect(
	ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig,
) (*connection, error) {
	e, err := d.newEndpoint(nil)
	if err != nil {
		return nil, err
	}
	c, err := newConnection(d, config)
	if err != nil {
		e.destroy()
		return nil, err
	}
	if err = e.resolve(ctx, remote, config.Source); err == nil {
		err = e.initiate(ctx, config, c)
	}
	if err != nil {
		c.discard(ctx, e)
		return nil, err
	}
	c.markEstablished()
	return c, nil
}

// resolve finds the route to the peer, which must lead through the device.
func (e *endpoint) resolve(
	ctx context.Context, remote netip.AddrPort, source netip.Addr,
) error {
	if !source.IsValid() {
		source = e.device.address
	}
	if err := e.id.ResolveAddress(source, remote, remaining(ctx)); err != nil {
		return err
	}
	if _, err := e.await(ctx, ibv.EventAddressResolved); err != nil {
		return err
	}
	if name := e.id.DeviceName(); name != e.device.location.device {
		return status.Errorf(status.NotFound,
			"the route to %v leads through RDMA device %q, not %s",
			remote.Addr(), name, e.device.location.device)
	}
	if err := e.setTypeOfService(); err != nil {
		return err
	}
	if err := e.id.ResolveRoute(remaining(ctx)); err != nil {
		return err
	}
	_, err := e.await(ctx, ibv.EventRouteResolved)
	return err
}

// remaining returns the time until the deadline of ctx.
func remaining(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return rdma.DefaultConnectTimeout
}

// initiate performs the connecting side of the handshake.
func (e *endpoint) initiate(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	if err := c.createQueuePair(e, config.Receives); err != nil {
		return err
	}
	depths := offeredReadDepths(config)
	parameters := c.connectionParameters(depths, config.PrivateData)
	if err := e.id.Connect(&parameters); err != nil {
		return err
	}
	// On iWARP the kernel makes the queue pair ready, and reports the connection as established.
	// The other transports report the peer's reply, and leave the rest to this side.
	reply, err := e.await(ctx, ibv.EventConnectResponse, ibv.EventConnected)
	if err != nil {
		return err
	}
	depths = depths.limitedTo(readDepthsOf(&reply))
	c.parameters = newParameters(e, trimPrivateData(reply.PrivateData), depths, config)
	if reply.Type == ibv.EventConnected {
		return nil
	}
	if err := c.makeReady(depths); err != nil {
		return err
	}
	return e.id.Establish()
}
