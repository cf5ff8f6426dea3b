//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
	// parted: the peer has taken leave or answered ours.
	parted atomic.Bool
	// expires is when the identifier is destroyed at the latest, once retired.
	expires time.Time
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
	e := d.adoptID(id, handle)
	e.listener = l
	return e, nil
}

// adoptID makes an endpoint of an identifier.
func (d *device) adoptID(id *ibv.ID, handle uint64) *endpoint {
	e := &endpoint{device: d, id: id, handle: handle, events: make(chan ibv.CMEvent, maxHandshakeEvents)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[handle] = e
	return e
}

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

// hear gives an event to the endpoint that it is about. Only the monitor
// calls it, so a new identifier has its handle before its next event.
func (d *device) hear(event *ibv.CMEvent) {
	d.mu.Lock()
	e := d.endpoints[event.Handle]
	d.mu.Unlock()
	if event.Type == ibv.EventConnectRequest {
		handle := d.nextHandle.Add(1)
		event.Request.SetHandle(handle)
		requester := d.adoptID(event.Request, handle)
		if e == nil || e.listener == nil || !e.listener.offer(requester, event) {
			requester.destroy()
		}
		return
	}
	if e != nil {
		e.hear(event)
	}
}

func (e *endpoint) hear(event *ibv.CMEvent) {
	switch event.Type {
	case ibv.EventDisconnected, ibv.EventTimeWaitExit:
		e.parted.Store(true)
		if c := e.connection.Load(); c != nil {
			c.interrupt(errPeerLeft)
		}
	case ibv.EventDeviceRemoval, ibv.EventAddressChange:
		e.lose(status.Errorf(status.ConnectionReset, "RDMA device %s: %v", e.device.location.device, event.Type))
	}
	select {
	case e.events <- *event:
	default: // nobody is in a handshake
	}
}

// lose ends what depends on the endpoint's device or address.
func (e *endpoint) lose(cause error) {
	if c := e.connection.Load(); c != nil {
		c.interrupt(cause)
	}
	if e.listener != nil {
		e.listener.fail(cause)
	}
}

// await waits for an event of the handshake that is one of the wanted. The
// failures of a handshake become errors.
func (e *endpoint) await(ctx context.Context, wanted ...ibv.CMEventType) (ibv.CMEvent, error) {
	for {
		select {
		case event := <-e.events:
			for _, w := range wanted {
				if event.Type == w {
					return event, nil
				}
			}
			if err := e.handshakeFailure(&event); err != nil {
				return event, err
			}
		case <-ctx.Done():
			return ibv.CMEvent{}, fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
	}
}

// handshakeFailure is nil for an event that is none.
func (e *endpoint) handshakeFailure(event *ibv.CMEvent) error {
	switch event.Type {
	case ibv.EventAddressError, ibv.EventRouteError:
		return status.Errorf(status.NotFound, "%s: is the network up, and is there an RDMA device on the way? see `ip route get` and `rdma link`", event.Reason())
	case ibv.EventUnreachable:
		return status.Errorf(status.TimeOut, "%s: does the peer have RDMA at that address?", event.Reason())
	case ibv.EventConnectError:
		return status.Errorf(status.ConnectionAborted, "%s", event.Reason())
	case ibv.EventRejected:
		return e.rejection(event)
	case ibv.EventDisconnected, ibv.EventDeviceRemoval, ibv.EventAddressChange:
		return status.Errorf(status.ConnectionReset, "%s", event.Reason())
	}
	return nil
}

// rejection tells the peer's application from its connection manager. iWARP
// does not: there only the application gives reasons.
func (e *endpoint) rejection(event *ibv.CMEvent) error {
	byApplication := event.Status == ibv.RejectedByApplication
	if e.device.limits.Transport == ibv.IWARP {
		byApplication = len(event.PrivateData) > 0
	}
	if byApplication {
		return &rdma.RejectedError{Reason: limitPrivateData(event.PrivateData)}
	}
	return status.Errorf(status.ConnectionAborted, "refused: %s", event.Reason())
}

// limitPrivateData cuts off the padding beyond what a peer can have set.
func limitPrivateData(b []byte) []byte { return b[:min(len(b), rdma.MaxPrivateData)] }

// lingerTimeout bounds the wait for a peer's answer to the farewell. The
// connection manager repeats a lost farewell only as long as its identifier
// exists.
const lingerTimeout = time.Second

// retire takes leave of the peer, unless it has left already, and leaves the
// identifier to the monitor.
func (e *endpoint) retire() {
	if !e.parted.Load() {
		if err := e.id.Disconnect(); err != nil {
			e.parted.Store(true) // there is no connection to be ended any more
		}
	}
	d := e.device
	d.mu.Lock()
	e.expires = time.Now().Add(lingerTimeout)
	d.retired = append(d.retired, e)
	d.mu.Unlock()
	d.monitor.ring()
}

// destroyRetired destroys the identifiers whose peers have parted or whose
// time is over. It returns how many are left, and in what time to look again,
// negative if there is none.
func (d *device) destroyRetired(now time.Time) (left int, next time.Duration) {
	d.mu.Lock()
	var over []*endpoint
	next = -1
	kept := d.retired[:0]
	for _, e := range d.retired {
		remaining := e.expires.Sub(now)
		if e.parted.Load() || remaining <= 0 {
			over = append(over, e)
			continue
		}
		kept = append(kept, e)
		if next < 0 || remaining < next {
			next = remaining
		}
	}
	clear(d.retired[len(kept):])
	d.retired = kept
	left = len(kept)
	d.mu.Unlock()
	for _, e := range over {
		e.destroy()
	}
	return left, next
}
