// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Listen implements rdma.Device. An unspecified address means the device's own address.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listen for RDMA connections: %w", err)
	}
	if address.Addr().IsUnspecified() {
		address = netip.AddrPortFrom(d.address, address.Port())
	}
	if err := d.acquire("listen"); err != nil {
		return nil, err
	}
	l := &listener{requests: make(chan *request, maxPendingRequests), done: make(chan struct{})}
	listen := func() error { return l.listen(d, address) }
	var err error
	if address.Port() == 0 {
		err = d.withFreePort(listen)
	} else {
		err = listen()
	}
	if err != nil {
		d.release()
		return nil, fmt.Errorf("listen for RDMA connections on %v: %w", address, err)
	}
	return l, nil
}

// maxPendingRequests bounds the requests of a listener that wait for Accept. Further requests are
// rejected.
const maxPendingRequests = 128

// listener implements rdma.Listener. Any goroutine may use it.
type listener struct {
	endpoint *endpoint
	requests chan *request
	done     chan struct{} // closed when the listener stops accepting

	mu     sync.Mutex
	closed bool
	cause  error // why the listener stopped accepting
}

// listen opens the endpoint and starts listening.
func (l *listener) listen(d *device, address netip.AddrPort) error {
	var err error
	if l.endpoint, err = d.newEndpoint(l); err != nil {
		return err
	}
	id := l.endpoint.id
	err = id.Bind(address)
	if name := id.DeviceName(); err == nil && name != d.location.device {
		err = status.Errorf(status.NotFound,
			"the address belongs to RDMA device %q, not to %s", name, d.location.device)
	}
	if err == nil {
		err = l.endpoint.setTypeOfService()
	}
	if err == nil {
		err = id.Listen(maxPendingRequests)
	}
	if err != nil {
		l.endpoint.destroy()
	}
	return err
}

// Address returns the address with the actual port.
func (l *listener) Address() netip.AddrPort { return l.endpoint.id.Local() }

// enqueue queues a connection request for Accept. It returns false if the listener is closed or the
// queue is full; the caller then keeps requester.
func (l *listener) enqueue(requester *endpoint, event *ibv.CMEvent) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	select {
	case l.requests <- &request{
		endpoint: requester, remote: requester.id.Remote(), peerDepths: readDepthsOf(event),
		privateData: trimPrivateData(event.PrivateData),
	}:
		return true
	default:
		l.endpoint.device.log.Warn("rejecting a connection request: too many wait for Accept",
			zap.Int("waiting", cap(l.requests)))
		return false
	}
}

var errListenerClosed = status.Errorf(status.Shutdown, "RDMA listener is closed")

// Accept waits for the next connection request.
func (l *listener) Accept(ctx context.Context) (rdma.Request, error) {
	select {
	case <-l.done:
		return nil, l.reason()
	default:
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.done:
		return nil, l.reason()
	case <-ctx.Done():
		return nil, fmt.Errorf("accept RDMA connection: %w", ctx.Err())
	}
}

// reason returns why the listener stopped accepting.
func (l *listener) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// fail stops accepting because the device or the address is gone. Any goroutine may call it.
func (l *listener) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopAccepting(status.Errorf(status.Shutdown, "RDMA listener lost its device: %w", cause))
}

// stopAccepting makes Accept return cause, unless an earlier cause is set. The caller holds mu.
func (l *listener) stopAccepting(cause error) {
	if l.cause == nil {
		l.cause = cause
		close(l.done)
	}
}

// Close stops listening and rejects all requests that wait for Accept.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.stopAccepting(errListenerClosed)
	l.mu.Unlock()
	l.endpoint.destroy()
	for {
		select {
		case r := <-l.requests:
			_ = r.Reject(nil)
		default:
			l.endpoint.device.release()
			return nil
		}
	}
}

// request implements rdma.Request. Any goroutine may use it.
type request struct {
	endpoint    *endpoint
	remote      netip.AddrPort
	peerDepths  readDepths // offered by the peer
	privateData []byte
	decided     atomic.Bool // Accept or Reject was called
}

// PrivateData returns the private data of the request. On InfiniBand and RoCE it is padded with
// zeros.
func (r *request) PrivateData() []byte { return r.privateData }

// Remote returns the address of the peer.
func (r *request) Remote() netip.AddrPort { return r.remote }

// Accept implements rdma.Request. If it fails, the peer's request is rejected.
func (r *request) Accept(
	ctx context.Context, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	if r.decided.Swap(true) {
		return nil, errDecided
	}
	ctx, cancel := context.WithTimeout(ctx, rdma.DefaultHandshakeTimeout)
	defer cancel()
	c, err := newConnection(r.endpoint.device, &config)
	if err != nil {
		r.endpoint.destroy()
		return nil, fmt.Errorf("accept RDMA connection from %v: %w", r.remote, err)
	}
	if err := r.accept(ctx, &config, c); err != nil {
		c.discard(ctx, r.endpoint)
		return nil, fmt.Errorf("accept RDMA connection from %v: %w", r.remote, err)
	}
	return c, nil
}

// accept performs the accepting side of the handshake.
func (r *request) accept(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	e := r.endpoint
	if name := e.id.DeviceName(); name != e.device.location.device {
		return status.Errorf(status.NotFound,
			"the request arrived on RDMA device %q, not on %s", name, e.device.location.device)
	}
	if err := c.createQueuePair(e, config.Receives); err != nil {
		return err
	}
	depths := offeredReadDepths(config).limitedTo(r.peerDepths)
	if err := c.makeReady(depths); err != nil {
		return err
	}
	c.parameters = newParameters(e, r.privateData, depths, config)
	parameters := c.connectionParameters(depths, config.PrivateData)
	if err := e.id.Accept(&parameters); err != nil {
		return err
	}
	if _, err := e.await(ctx, ibv.EventConnected); err != nil {
		return err
	}
	c.markEstablished()
	return nil
}

// Reject rejects the request and sends the peer a reason of at most rdma.MaxPrivateData bytes.
func (r *request) Reject(reason []byte) error {
	if len(reason) > rdma.MaxPrivateData {
		return status.Errorf(status.TooBig, "reject RDMA connection: reason of %d bytes exceeds %d",
			len(reason), rdma.MaxPrivateData)
	}
	if r.decided.Swap(true) {
		return errDecided
	}
	defer r.endpoint.destroy()
	if err := r.endpoint.id.Reject(reason); err != nil {
		return fmt.Errorf("reject RDMA connection from %v: %w", r.remote, err)
	}
	return nil
}

var errDecided = status.Errorf(status.BadState,
	"connection request was already accepted or rejected")
