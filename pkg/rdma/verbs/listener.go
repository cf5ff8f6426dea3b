//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxPendingRequests bounds the requests of one listener that are not
// accepted yet. The connection manager refuses more.
const maxPendingRequests = 128

// listener implements rdma.Listener.
type listener struct {
	endpoint *endpoint
	requests chan *request
	done     chan struct{} // closed when it accepts no more

	mu     sync.Mutex
	closed bool
	cause  error // why it accepts no more
}

// Listen implements rdma.Device. An unspecified address stands for the
// device's own.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("listen for RDMA connections: %w", err)
	}
	if address.Addr().IsUnspecified() {
		address = netip.AddrPortFrom(d.address, address.Port())
	}
	if err := d.use("listen"); err != nil {
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

func (l *listener) listen(d *device, address netip.AddrPort) error {
	var err error
	if l.endpoint, err = d.newEndpoint(l); err != nil {
		return err
	}
	err = l.endpoint.id.Bind(address)
	if err == nil {
		if name := l.endpoint.id.DeviceName(); name != d.location.device {
			err = status.Errorf(status.NotFound, "the address belongs to RDMA device %q, not to %s", name, d.location.device)
		}
	}
	if err == nil {
		err = l.endpoint.setTypeOfService()
	}
	if err == nil {
		err = l.endpoint.id.Listen(maxPendingRequests)
	}
	if err != nil {
		l.endpoint.destroy()
	}
	return err
}

func (e *endpoint) setTypeOfService() error {
	if tos := e.device.options.TypeOfService; tos != 0 {
		return e.id.SetTypeOfService(tos)
	}
	return nil
}

// Address implements rdma.Listener.
func (l *listener) Address() netip.AddrPort { return l.endpoint.id.Local() }

// offer takes a connection request. False means that it cannot.
func (l *listener) offer(requester *endpoint, event *ibv.CMEvent) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	select {
	case l.requests <- newRequest(requester, event):
		return true
	default:
		l.endpoint.device.log.Warn("connection request refused: too many wait to be accepted",
			zap.Int("waiting", cap(l.requests)))
		return false
	}
}

var errListenerClosed = status.Errorf(status.Shutdown, "RDMA listener is closed")

// Accept implements rdma.Listener.
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

func (l *listener) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// fail ends accepting because the device is lost.
func (l *listener) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(status.Errorf(status.Shutdown, "RDMA listener has lost its device: %w", cause))
}

func (l *listener) finish(cause error) {
	if l.cause == nil {
		l.cause = cause
		close(l.done)
	}
}

// Close implements rdma.Listener.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.finish(errListenerClosed)
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
