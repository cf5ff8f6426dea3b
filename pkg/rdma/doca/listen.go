// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxPending bounds the connections of one listener that have not sent their request, and,
// separately, the requests that wait to be accepted.
const maxPending = 128

// Listen accepts connection requests on a TCP port.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	open := func() (*softrdma.Clients[network.Stream], error) {
		sockets, err := (network.Kernel{}).Listen(ctx, address)
		if err != nil {
			return nil, err
		}
		return &softrdma.Clients[network.Stream]{Address: sockets.Address(),
			Accept: sockets.Accept, Stop: sockets.Close, Read: d.readRequest,
			Timeout: rdma.DefaultHandshakeTimeout, Log: d.log}, nil
	}
	return softrdma.Listen(&d.Device, address, maxPending, open)
}

// readRequest reads and checks a request.
func (d *device) readRequest(ctx context.Context, from network.Stream) (rdma.Request, error) {
	socket := from.(net.Conn)
	stop := watch(ctx, socket)
	f, err := readFrame(socket)
	if err = stop(err); err != nil {
		return nil, err
	}
	if f.kind != frameRequest {
		return nil, badFrame("kind %d, not a request", f.kind)
	}
	r := &request{device: d, socket: socket}
	if r.introduction, err = parseIntroduction(f.payload); err != nil {
		return nil, err
	}
	return r, nil
}

// request is a connection request. It is accepted or rejected exactly once.
type request struct {
	introduction
	device  *device
	socket  net.Conn
	decided atomic.Bool
}

func (r *request) PrivateData() []byte { return r.privateData }

func (r *request) Remote() netip.AddrPort { return network.AddressOf(r.socket.RemoteAddr()) }

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
		err = errors.Join(err, c.discard())
	}
	_ = r.socket.Close()
	return nil, status.Errorf(status.CodeOf(err),
		"accept doca connection from %v: %w", r.Remote(), err)
}

func (r *request) accept(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	details, err := c.rdma.Export()
	if err == nil {
		err = r.device.withGID(c.rdma.Connect(r.details))
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rdma.DefaultHandshakeTimeout)
	defer cancel()
	stop := watch(ctx, r.socket)
	reply := introduction{config.InboundReads, config.OutboundReads, config.PrivateData, details}
	f := frame{frameAccept, reply.encode()}
	_, err = r.socket.Write(f.encode())
	if err = stop(err); err != nil {
		return err
	}
	return c.establish(r.socket, config, &r.introduction)
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
	defer r.socket.Close()
	_ = r.socket.SetDeadline(time.Now().Add(rejectTimeout))
	f := frame{frameReject, reason}
	if _, err := r.socket.Write(f.encode()); err != nil {
		return status.Errorf(status.CodeOf(err), "reject doca connection from %v: %w", r.Remote(),
			err)
	}
	return nil
}
