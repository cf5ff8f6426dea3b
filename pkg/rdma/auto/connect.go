// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connect connects over shared memory if it can, otherwise over TCP.
func (d *device) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	q, err := queueOf(&config)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdma.DefaultConnectTimeout)
		defer cancel()
	}
	var unshared error
	if isLocal(remote.Addr()) {
		config.Queue = q.local
		connection, err := d.connectLocally(ctx, remote, config)
		if err == nil || isFinal(ctx, err) {
			return connection, err
		}
		level := zap.WarnLevel
		if isExpected(err) {
			level = zap.DebugLevel
		}
		d.log.Log(level, "connect over TCP instead of shared memory, which is for processes of one user",
			zap.Stringer("remote", remote), zap.Error(err))
		unshared = err
	}
	config.Queue = q.tcp
	connection, err := d.tcp.Connect(ctx, remote, config)
	if err != nil && unshared != nil {
		err = fmt.Errorf("%w; over shared memory: %s", err, unshared)
	}
	return connection, err
}

// connectLocally connects over shared memory. It takes at most half of the time, so that some is
// left for TCP if the socket belongs to a program that never answers.
func (d *device) connectLocally(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	return d.local.Connect(ctx, remote, config)
}

// TransportTo returns the transport of a connection to a listener: that of shared memory if its
// socket answers, otherwise that of TCP.
func (d *device) TransportTo(ctx context.Context, remote netip.AddrPort) string {
	if isLocal(remote.Addr()) && shm.Probe(ctx, remote.Port()) == nil {
		return d.local.Capabilities().Transport
	}
	return d.tcp.Capabilities().Transport
}

// isFinal reports whether TCP cannot help after an error of shared memory: the peer's application
// has given its reason for a rejection, or ctx has ended. Everything else, such as a socket whose
// queue strangers have filled, concerns shared memory alone. A rejection without a reason may come
// from a program that has the same port by accident.
func isFinal(ctx context.Context, err error) bool {
	var rejected *rdma.RejectedError
	return ctx.Err() != nil || errors.As(err, &rejected) && len(rejected.Reason) > 0
}

// isExpected reports whether an error of shared memory shows nothing wrong: nobody listens there,
// or a program of another user.
func isExpected(err error) bool {
	return errors.Is(err, status.ConnectionAborted) || errors.Is(err, status.NotPermitted)
}

// queueOf returns the completion queue of a configuration.
func queueOf(config *rdma.ConnectionConfig) (*queue, error) {
	q, ok := config.Queue.(*queue)
	if !ok {
		return nil, softrdma.ErrForeignQueue
	}
	return q, nil
}

// portAttempts bounds the search for a port that is free for both transports.
const portAttempts = 100

// Listen listens on the same port of both transports. If a given port is taken for shared memory,
// it listens for TCP alone.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	return d.listen(ctx, address, d.tcp.Listen)
}

// Protects reports that connections can be protected.
func (d *device) Protects() bool { return true }

// ListenTLS is Listen, with TLS on TCP.
func (d *device) ListenTLS(
	ctx context.Context, address netip.AddrPort, config rdma.ServerTLS,
) (rdma.Listener, error) {
	return d.listen(ctx, address,
		func(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
			return d.tcp.ListenTLS(ctx, address, config)
		})
}

// listen listens on the same port of both transports, on TCP by listenTCP.
func (d *device) listen(
	ctx context.Context, address netip.AddrPort,
	listenTCP func(context.Context, netip.AddrPort) (rdma.Listener, error),
) (rdma.Listener, error) {
	for attempt := 1; ; attempt++ {
		tcp, err := listenTCP(ctx, address)
		if err != nil {
			return nil, err
		}
		local, err := d.local.Listen(ctx, tcp.Address())
		if err == nil {
			return newListener(tcp, local), nil
		}
		if address.Port() == 0 && attempt < portAttempts && errors.Is(err, status.AlreadyExist) {
			if err := tcp.Close(); err != nil {
				return nil, err
			}
			continue
		}
		d.log.Warn("peers on this machine cannot connect over shared memory", zap.Error(err))
		return newListener(tcp), nil
	}
}

// listener accepts the requests of several listeners.
type listener struct {
	*softrdma.Backlog
	inner []rdma.Listener
}

func newListener(inner ...rdma.Listener) *listener {
	l := &listener{Backlog: softrdma.NewBacklog("RDMA", 0), inner: inner}
	for i := range inner {
		l.Go(func() { l.forward(inner[i], i > 0) })
	}
	return l
}

// forward hands the requests of one listener to Accept until the listener is closed.
func (l *listener) forward(inner rdma.Listener, local bool) {
	for {
		r, err := inner.Accept(l.Context())
		if err != nil {
			return
		}
		l.Add(&request{ProtectedRequest: rdma.Protected(r), local: local})
	}
}

// Address returns where the listener listens, with the actual port.
func (l *listener) Address() netip.AddrPort { return l.inner[0].Address() }

// Close stops listening and rejects requests that have not been accepted yet.
func (l *listener) Close() error {
	_, err := l.End(func() error {
		var errs []error
		for _, inner := range l.inner {
			errs = append(errs, inner.Close())
		}
		return errors.Join(errs...)
	})
	return err
}

// request is a request on one of the transports.
type request struct {
	rdma.ProtectedRequest
	local bool
}

// Accept accepts the request.
func (r *request) Accept(
	ctx context.Context, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	q, err := queueOf(&config)
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	if config.Queue = q.tcp; r.local {
		config.Queue = q.local
	}
	return r.ProtectedRequest.Accept(ctx, config)
}
