// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// endpoint is a connection manager identifier and the state that its events need.
type endpoint struct {
	device *device
	id     *ibv.ID
	handle uint64 // key in device.endpoints
	// events holds the events of the handshake. It has room for all events of one identifier that a
	// handshake waits for; the monitor drops the rest.
	events chan ibv.CMEvent
	// listener receives connection requests, if the endpoint listens.
	listener *listener
	// connection is interrupted when the endpoint's connection ends.
	connection atomic.Pointer[connection]
	// disconnected is set once the peer has disconnected, or has confirmed that this side did.
	disconnected atomic.Bool
	// lingerDeadline is the latest time at which the monitor destroys the identifier, once this
	// side has disconnected.
	lingerDeadline time.Time
}

// maxHandshakeEvents is more than any handshake has.
const maxHandshakeEvents = 8

// newEndpoint creates an endpoint with a new identifier. l is nil unless the endpoint is to listen.
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

// addEndpoint creates an endpoint for an identifier and registers it, so that it receives the
// identifier's events.
func (d *device) addEndpoint(id *ibv.ID, handle uint64) *endpoint {
	e := &endpoint{
		device: d, id: id, handle: handle, events: make(chan ibv.CMEvent, maxHandshakeEvents),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[handle] = e
	return e
}

// setTypeOfService applies Options.TypeOfService.
func (e *endpoint) setTypeOfService() error {
	if tos := e.device.options.TypeOfService; tos != 0 {
		return e.id.SetTypeOfService(tos)
	}
	return nil
}

// await waits for one of the wanted events of the handshake. Events that report a failure become
// errors; await ignores all others.
func (e *endpoint) await(
	ctx context.Context, wanted ...ibv.CMEventType,
) (ibv.CMEvent, error) {
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
			return ibv.CMEvent{}, fmt.Errorf("no reply from the peer: %w", context.Cause(ctx))
		}
	}
}

// handshakeError returns the error that an event reports, or nil if it reports none.
func (e *endpoint) handshakeError(event *ibv.CMEvent) error {
	switch event.Type {
	case ibv.EventAddressError, ibv.EventRouteError:
		return status.Errorf(status.NotFound,
			"%s: the network may be down, or the route may not use an RDMA device: "+
				"check `ip route get` and `rdma link`", event.Reason())
	case ibv.EventUnreachable:
		return status.Errorf(status.TimeOut,
			"%s: check that the peer has an RDMA device at that address", event.Reason())
	case ibv.EventConnectError:
		return status.Errorf(status.ConnectionAborted, "%s", event.Reason())
	case ibv.EventRejected:
		// iWARP has no status for a rejection by the application, but only the application sends
		// private data with it.
		byApplication := event.Status == ibv.RejectedByApplication
		if e.device.limits.Transport == ibv.IWARP {
			byApplication = len(event.PrivateData) > 0
		}
		if byApplication {
			return &rdma.RejectedError{Reason: trimPrivateData(event.PrivateData)}
		}
		return status.Errorf(status.ConnectionAborted,
			"connection request was rejected: %s", event.Reason())
	case ibv.EventDisconnected, ibv.EventDeviceRemoval, ibv.EventAddressChange:
		return status.Errorf(status.ConnectionReset, "%s", event.Reason())
	}
	return nil
}

// trimPrivateData removes padding beyond the longest private data that a peer can send.
func trimPrivateData(b []byte) []byte { return b[:min(len(b), rdma.MaxPrivateData)] }

// destroy destroys an endpoint without a connection. If a handshake is unfinished, the connection
// manager notifies the peer.
func (e *endpoint) destroy() {
	e.device.mu.Lock()
	delete(e.device.endpoints, e.handle)
	e.device.mu.Unlock()
	if err := e.id.Destroy(); err != nil {
		e.device.log.Warn("cannot destroy connection identifier", zap.Error(err))
	}
}

// newParameters returns the parameters of a connection. It limits the read depths to what the
// caller offered, because offeredReadDepths may have offered more.
func newParameters(
	e *endpoint, privateData []byte, depths readDepths, config *rdma.ConnectionConfig,
) rdma.Parameters {
	return rdma.Parameters{
		Transport:     string(e.device.limits.Transport),
		Local:         e.id.Local(),
		Remote:        e.id.Remote(),
		PrivateData:   privateData,
		InboundReads:  min(depths.inbound, config.InboundReads),
		OutboundReads: min(depths.outbound, config.OutboundReads),
	}
}

// readDepths holds how many outstanding Reads one side serves and issues.
type readDepths struct{ inbound, outbound int }

// offeredReadDepths returns the depths to give the connection manager: at least one each, because
// siw breaks on zero.
func offeredReadDepths(config *rdma.ConnectionConfig) readDepths {
	return readDepths{max(config.InboundReads, 1), max(config.OutboundReads, 1)}
}

// readDepthsOf returns the depths that the peer offers this side.
func readDepthsOf(event *ibv.CMEvent) readDepths {
	return readDepths{event.InboundReads, event.OutboundReads}
}

// limitedTo returns the smaller of both depths, but at least one.
func (r readDepths) limitedTo(other readDepths) readDepths {
	return readDepths{
		inbound:  max(1, min(r.inbound, other.inbound)),
		outbound: max(1, min(r.outbound, other.outbound)),
	}
}
