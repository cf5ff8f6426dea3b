//go:build verbs

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

// Connect implements rdma.Device. A refusal by the peer's application is an
// *rdma.RejectedError.
func (d *device) Connect(ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig) (rdma.Connection, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdma.DefaultConnectTimeout)
		defer cancel()
	}
	if err := d.use("connect"); err != nil {
		return nil, err
	}
	defer d.release()
	var c *connection
	err := d.withFreePort(func() (err error) {
		c, err = d.connect(ctx, remote, &config)
		return err
	})
	if err == nil {
		return c, nil
	}
	return nil, fmt.Errorf("connect to %v by %s: %w", remote, d.location.device, err)
}

// maxPortAttempts bounds the search for a port.
const maxPortAttempts = 16

// withFreePort repeats what chooses a port as long as that turns out to be
// taken: iWARP uses the ports of TCP, which the connection manager hands out
// without asking TCP.
func (d *device) withFreePort(attempt func() error) error {
	var err error
	for range maxPortAttempts {
		if err = attempt(); !errors.Is(err, syscall.EADDRINUSE) || d.limits.Transport != ibv.IWARP {
			break
		}
	}
	return err
}

func (d *device) connect(ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig) (*connection, error) {
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
		c.abandon(ctx, e)
		return nil, err
	}
	c.open()
	return c, nil
}

// resolve finds the way to the peer, which must lead through the device.
func (e *endpoint) resolve(ctx context.Context, remote netip.AddrPort, source netip.Addr) error {
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
		return status.Errorf(status.NotFound, "the way to %v leads through RDMA device %q, not %s", remote.Addr(), name, e.device.location.device)
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

// remaining is the time until ctx ends.
func remaining(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return rdma.DefaultConnectTimeout
}

// initiate performs the connecting side of the handshake.
func (e *endpoint) initiate(ctx context.Context, config *rdma.ConnectionConfig, c *connection) error {
	if err := c.createQueuePair(e, config.Receives); err != nil {
		return err
	}
	depths := offeredReadDepths(config)
	parameters := c.connectionParameters(depths, config.PrivateData)
	if err := e.id.Connect(&parameters); err != nil {
		return err
	}
	// iWARP makes the queue pair ready in the kernel and reports that the
	// connection is established; the others report an answer to be acted on.
	answer, err := e.await(ctx, ibv.EventConnectResponse, ibv.EventConnected)
	if err != nil {
		return err
	}
	depths = depths.limitedTo(readDepthsOf(&answer))
	c.parameters = newParameters(e, limitPrivateData(answer.PrivateData), depths, config)
	if answer.Type == ibv.EventConnected {
		return nil
	}
	if err := c.makeReady(depths); err != nil {
		return err
	}
	return e.id.Establish()
}

// newParameters limits what was agreed on the wire to what the caller offered.
func newParameters(e *endpoint, privateData []byte, depths readDepths, config *rdma.ConnectionConfig) rdma.Parameters {
	return rdma.Parameters{
		Local: e.id.Local(), Remote: e.id.Remote(), PrivateData: privateData,
		InboundReads:  min(depths.inbound, config.InboundReads),
		OutboundReads: min(depths.outbound, config.OutboundReads),
	}
}
