// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxPending bounds the connections of one listener that have not sent their request, and,
// separately, the requests that wait to be accepted.
const maxPending = 128

// portAttempts bounds the search for a free port.
const portAttempts = 1000

// Listen accepts connection requests on the port of address. Port 0 picks a free one. All addresses
// of a network namespace share the ports. Accept returns only complete requests.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	open := func() (*softrdma.Clients[*net.UnixConn], error) {
		sockets, address, err := listenOn(ctx, address)
		if err != nil {
			return nil, err
		}
		return d.clients(sockets, address), nil
	}
	return softrdma.Listen(&d.Device, address, maxPending, open)
}

// Protects reports that connections can be protected.
func (d *device) Protects() bool { return true }

// ListenTLS is Listen: the kernel vouches for peers.
func (d *device) ListenTLS(
	ctx context.Context, address netip.AddrPort, _ rdma.ServerTLS,
) (rdma.Listener, error) {
	return d.Listen(ctx, address)
}

// clients returns how to serve the clients of a socket.
func (d *device) clients(
	sockets *net.UnixListener, address netip.AddrPort,
) *softrdma.Clients[*net.UnixConn] {
	ctx, stop := context.WithCancel(context.Background())
	strangers := newStrangers()
	return &softrdma.Clients[*net.UnixConn]{
		Address: address, Timeout: rdma.DefaultHandshakeTimeout, Log: d.options.Logger,
		Accept: func() (*net.UnixConn, error) { return d.acceptOwn(ctx, sockets, strangers) },
		Stop: func() error {
			stop()
			return sockets.Close()
		},
		Read: func(ctx context.Context, conn *net.UnixConn) (rdma.Request, error) {
			return d.readRequest(ctx, conn, address)
		},
	}
}

func listenOn(ctx context.Context, address netip.AddrPort) (*net.UnixListener, netip.AddrPort,
	error) {
	if address.Port() != 0 {
		l, err := listenUnix(address.Port())
		return l, address, err
	}
	var err error
	for range portAttempts {
		picked := netip.AddrPortFrom(address.Addr(), anyPort())
		var l *net.UnixListener
		if l, err = listenUnix(picked.Port()); err == nil {
			return l, picked, nil
		}
		if !errors.Is(err, status.AlreadyExist) || ctx.Err() != nil {
			break
		}
	}
	return nil, address, err
}

// acceptOwn waits for the next connection. Users of other programs are turned away before they can
// take a place among the silent ones.
func (d *device) acceptOwn(
	ctx context.Context, sockets *net.UnixListener, strangers strangers,
) (*net.UnixConn, error) {
	for {
		conn, err := sockets.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err = checkPeer(conn); err == nil {
			return conn, nil
		}
		// A relay of another user with provider auto tries this before each connection over TCP.
		d.options.Logger.Debug("shm client dropped", zap.Error(err))
		if strangers.isFull() {
			d.options.Logger.Warn("shm accepts nobody until sockets of other users' "+
				"processes can be closed: end these processes", zap.Int("sockets", maxStrangers),
				zap.NamedError("latest", err))
		}
		strangers.turnAway(ctx, conn)
	}
}

// readRequest reads a request. A peer that leaves without one only asks whether somebody listens:
// see Probe.
func (d *device) readRequest(
	ctx context.Context, conn *net.UnixConn, address netip.AddrPort,
) (rdma.Request, error) {
	done := exchangeDeadline(ctx, conn)
	p, passed, err := receivePacket(ctx, conn)
	done()
	if err == nil && p.kind != packetRequest {
		err = badPacket("its kind is %d, not a request", p.kind)
	}
	if err == nil {
		return &request{device: d, listener: address, conn: conn, packet: p, passed: passed}, nil
	}
	closeAll(passed)
	if errors.Is(err, status.ConnectionReset) {
		return nil, nil
	}
	return nil, err
}

// request is a connection request. It is accepted or rejected exactly once.
type request struct {
	device   *device
	listener netip.AddrPort
	conn     *net.UnixConn
	packet   packet
	passed   []int // descriptors
	decided  atomic.Bool
}

// Protection returns rdma.ProtectedByMachine.
func (r *request) Protection() rdma.Protection { return rdma.ProtectedByMachine }

// Binding returns nil: there is no TLS.
func (r *request) Binding() []byte { return nil }

// PrivateData returns what the peer sent with its request.
func (r *request) PrivateData() []byte { return r.packet.privateData }

// Remote returns the address that the peer says it connects from.
func (r *request) Remote() netip.AddrPort { return r.packet.address }

// Accept establishes the connection. If it fails, it closes the socket.
func (r *request) Accept(
	ctx context.Context, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	if r.decided.Swap(true) {
		return nil, softrdma.ErrDecided
	}
	c, err := newConnection(r.device, &config)
	if err == nil {
		if err = r.accept(ctx, &config, c); err == nil {
			return c, nil
		}
		c.discard()
	} else {
		closeAll(r.passed)
	}
	_ = r.conn.Close()
	return nil, status.Errorf(status.CodeOf(err),
		"accept shm connection from %v: %w", r.Remote(), err)
}

// accept establishes c.
func (r *request) accept(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	if err := c.adopt(&r.packet, r.passed); err != nil {
		return err
	}
	offers, descriptors, err := c.lend(config.Lent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rdma.DefaultHandshakeTimeout)
	defer cancel()
	done := exchangeDeadline(ctx, r.conn)
	err = sendPacket(ctx, r.conn, &packet{
		kind: packetAccept, inboundReads: config.InboundReads,
		outboundReads: config.OutboundReads, address: r.listener,
		privateData: config.PrivateData, lent: offers,
	}, descriptors)
	done()
	if err != nil {
		return err
	}
	socket, err := detach(r.conn)
	if err != nil {
		return err
	}
	return c.establish(socket, rdma.Parameters{
		Transport: ProviderName, Local: r.listener, Remote: r.Remote(),
		PrivateData:   r.packet.privateData,
		InboundReads:  min(config.InboundReads, r.packet.outboundReads),
		OutboundReads: min(config.OutboundReads, r.packet.inboundReads),
		Protection:    rdma.ProtectedByMachine,
	})
}

// rejectTimeout bounds the sending of a reject.
const rejectTimeout = time.Second

// Reject sends the peer a reason, of at most rdma.MaxPrivateData bytes, and closes the connection.
func (r *request) Reject(reason []byte) error {
	if len(reason) > rdma.MaxPrivateData {
		return status.Errorf(status.InvalidValue, "a reason of %d bytes exceeds %d", len(reason),
			rdma.MaxPrivateData)
	}
	if r.decided.Swap(true) {
		return softrdma.ErrDecided
	}
	defer r.conn.Close()
	closeAll(r.passed)
	ctx, cancel := context.WithTimeout(context.Background(), rejectTimeout)
	defer cancel()
	done := exchangeDeadline(ctx, r.conn)
	defer done()
	if err := sendPacket(ctx, r.conn, &packet{kind: packetReject, privateData: reason},
		nil); err != nil {
		return status.Errorf(status.CodeOf(err), "reject shm connection from %v: %w", r.Remote(),
			err)
	}
	return nil
}
