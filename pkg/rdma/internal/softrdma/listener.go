// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Listener implements rdma.Listener for clients that send their request on a stream.
type Listener struct {
	*Backlog
	device  *Device
	address netip.AddrPort
	stop    func() error
}

// Listen makes a listener of d, for the clients that open returns. size bounds the clients that
// have not sent their request, and, separately, the requests that wait to be accepted.
func Listen[S Stream](
	d *Device, address netip.AddrPort, size int, open func() (*Clients[S], error),
) (rdma.Listener, error) {
	if err := d.Acquire("listen"); err != nil {
		return nil, err
	}
	clients, err := open()
	if err != nil {
		d.Uses.Release()
		return nil, status.Errorf(ListenCode(err), "listen for %s on %v: %w", d.provider, address,
			err)
	}
	l := &Listener{NewBacklog(d.provider, size), d, clients.Address, clients.Stop}
	l.Go(func() { serve(l.Backlog, clients) })
	return l, nil
}

// Address returns the address that the listener is bound to, with the actual port.
func (l *Listener) Address() netip.AddrPort { return l.address }

// Close stops listening and rejects the requests that have not been accepted.
func (l *Listener) Close() error {
	first, err := l.End(l.stop)
	if first {
		l.device.Uses.Release()
	}
	return err
}

// Backlog holds the connection requests that a listener has received, until they are accepted. Any
// goroutine may call its methods.
type Backlog struct {
	name     string // of the provider
	requests chan rdma.Request
	ctx      context.Context
	stop     context.CancelFunc
	closed   atomic.Bool
	tasks    sync.WaitGroup
}

// NewBacklog returns a backlog for size requests. name is the provider's, for errors.
func NewBacklog(name string, size int) *Backlog {
	b := &Backlog{name: name, requests: make(chan rdma.Request, size)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// Go runs a task of the listener in a goroutine. The task returns when Context ends.
func (b *Backlog) Go(task func()) { b.tasks.Go(task) }

// Context ends when the listener is closed.
func (b *Backlog) Context() context.Context { return b.ctx }

// Offer adds a request. It fails with status.Full if there is no room.
func (b *Backlog) Offer(r rdma.Request) error {
	select {
	case b.requests <- r:
		return nil
	default:
		return status.Errorf(status.Full,
			"%d requests are already waiting to be accepted", cap(b.requests))
	}
}

// Add adds a request when there is room, or rejects it when the listener is closed.
func (b *Backlog) Add(r rdma.Request) {
	select {
	case b.requests <- r:
	case <-b.ctx.Done():
		_ = r.Reject(nil)
	}
}

// Accept waits for the next request.
func (b *Backlog) Accept(ctx context.Context) (rdma.Request, error) {
	if b.ctx.Err() != nil {
		return nil, b.errClosed()
	}
	select {
	case r := <-b.requests:
		return r, nil
	case <-b.ctx.Done():
		return nil, b.errClosed()
	case <-ctx.Done():
		return nil, status.Errorf(status.CodeOf(ctx.Err()), "accept %s connection: %w", b.name,
			ctx.Err())
	}
}

func (b *Backlog) errClosed() error {
	return status.Errorf(status.Shutdown, "%s listener is closed", b.name)
}

// End ends Context, calls stop, waits for the listener's tasks, which stop must end, and rejects
// the requests that have not been accepted. It returns the error of stop. Only the first call does
// anything.
func (b *Backlog) End(stop func() error) (first bool, err error) {
	if b.closed.Swap(true) {
		return false, nil
	}
	b.stop()
	err = stop()
	b.tasks.Wait()
	for {
		select {
		case r := <-b.requests:
			_ = r.Reject(nil)
		default:
			return true, err
		}
	}
}

// ErrDecided rejects the second decision on a request.
var ErrDecided = status.Errorf(status.BadState,
	"connection request has already been accepted or rejected")
