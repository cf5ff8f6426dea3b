//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

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
	if err := d.acquire("connect"); err != nil {
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
		c.discard(ctx, e)
		return nil, err
	}
	c.markEstablished()
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
	c.parameters = newParameters(e, trimPrivateData(answer.PrivateData), depths, config)
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

// readDepths are how many Reads one side serves and issues at a time.
type readDepths struct{ inbound, outbound int }

// offeredReadDepths are what the connection manager is told: at least one
// each, because siw does not survive zero.
func offeredReadDepths(config *rdma.ConnectionConfig) readDepths {
	return readDepths{max(config.InboundReads, 1), max(config.OutboundReads, 1)}
}

// readDepthsOf is what the peer allows this side.
func readDepthsOf(event *ibv.CMEvent) readDepths {
	return readDepths{event.InboundReads, event.OutboundReads}
}

func (r readDepths) limitedTo(other readDepths) readDepths {
	return readDepths{max(1, min(r.inbound, other.inbound)), max(1, min(r.outbound, other.outbound))}
}

// endpoint is a connection manager identifier with what is heard of it.
type endpoint struct {
	device *device
	id     *ibv.ID
	handle uint64
	// events are those of the handshake. The channel has room for all that
	// one identifier gets; what is more is not waited for.
	events chan ibv.CMEvent
	// listener takes the requests, if the endpoint listens.
	listener *listener
	// connection is told of the end.
	connection atomic.Pointer[connection]
	// disconnected: the peer has taken leave or answered ours.
	disconnected atomic.Bool
	// lingerDeadline is when the identifier is destroyed at the latest, once retired.
	lingerDeadline time.Time
}

// maxHandshakeEvents is more than any handshake has.
const maxHandshakeEvents = 8

// newEndpoint makes an identifier.
func (d *device) newEndpoint(l *listener) (*endpoint, error) {
	handle := d.nextHandle.Add(1)
	id, err := d.channel.NewID(handle)
	if err != nil {
		return nil, err
	}
	e := d.addEndpoint(id, handle)
	e.listener = l
	return e, nil
}

// addEndpoint makes an endpoint of an identifier.
func (d *device) addEndpoint(id *ibv.ID, handle uint64) *endpoint {
	e := &endpoint{device: d, id: id, handle: handle, events: make(chan ibv.CMEvent, maxHandshakeEvents)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[handle] = e
	return e
}

func (e *endpoint) setTypeOfService() error {
	if tos := e.device.options.TypeOfService; tos != 0 {
		return e.id.SetTypeOfService(tos)
	}
	return nil
}

// await waits for an event of the handshake that is one of the wanted. The
// failures of a handshake become errors.
func (e *endpoint) await(ctx context.Context, wanted ...ibv.CMEventType) (ibv.CMEvent, error) {
	for {
		select {
		case event := <-e.events:
			if slices.Contains(wanted, event.Type) {
				return event, nil
			}
			if err := e.handshakeError(&event); err != nil {
				return event, err
			}
		case <-ctx.Done():
			return ibv.CMEvent{}, fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
	}
}

// handshakeError is nil for an event that is none.
func (e *endpoint) handshakeError(event *ibv.CMEvent) error {
	switch event.Type {
	case ibv.EventAddressError, ibv.EventRouteError:
		return status.Errorf(status.NotFound, "%s: is the network up, and is there an RDMA device on the way? see `ip route get` and `rdma link`", event.Reason())
	case ibv.EventUnreachable:
		return status.Errorf(status.TimeOut, "%s: does the peer have RDMA at that address?", event.Reason())
	case ibv.EventConnectError:
		return status.Errorf(status.ConnectionAborted, "%s", event.Reason())
	case ibv.EventRejected:
		// iWARP does not tell the peer's application from its connection
		// manager: there only the application gives reasons.
		byApplication := event.Status == ibv.RejectedByApplication
		if e.device.limits.Transport == ibv.IWARP {
			byApplication = len(event.PrivateData) > 0
		}
		if byApplication {
			return &rdma.RejectedError{Reason: trimPrivateData(event.PrivateData)}
		}
		return status.Errorf(status.ConnectionAborted, "refused: %s", event.Reason())
	case ibv.EventDisconnected, ibv.EventDeviceRemoval, ibv.EventAddressChange:
		return status.Errorf(status.ConnectionReset, "%s", event.Reason())
	}
	return nil
}

// trimPrivateData cuts off the padding beyond what a peer can have set.
func trimPrivateData(b []byte) []byte { return b[:min(len(b), rdma.MaxPrivateData)] }

// destroy releases an endpoint that has no connection any more. The peer of
// an unfinished handshake is told.
func (e *endpoint) destroy() {
	e.device.mu.Lock()
	delete(e.device.endpoints, e.handle)
	e.device.mu.Unlock()
	if err := e.id.Destroy(); err != nil {
		e.device.log.Warn("destroy connection identifier", zap.Error(err))
	}
}
