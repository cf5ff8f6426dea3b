// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/tlsrecord"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Listen accepts connection requests on address. Port 0 picks a free port. Accept returns only
// complete requests.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	return d.listen(ctx, address, nil)
}

// Protects reports that connections can be protected.
func (d *device) Protects() bool { return true }

// ListenTLS is Listen for peers that may, or must, use TLS.
func (d *device) ListenTLS(
	ctx context.Context, address netip.AddrPort, config rdma.ServerTLS,
) (rdma.Listener, error) {
	return d.listen(ctx, address, &config)
}

// listen listens for peers that do not use TLS or, unless secure is nil, for others, too.
func (d *device) listen(
	ctx context.Context, address netip.AddrPort, secure *rdma.ServerTLS,
) (rdma.Listener, error) {
	read := func(ctx context.Context, conn network.Stream) (rdma.Request, error) {
		secured, err := acceptTLS(ctx, conn, secure)
		if err != nil {
			return nil, err
		}
		return d.readRequest(ctx, conn, secured)
	}
	open := func() (*softrdma.Clients[network.Stream], error) {
		streams, err := d.options.Network.Listen(ctx, address)
		if err != nil {
			return nil, err
		}
		return &softrdma.Clients[network.Stream]{Address: streams.Address(),
			Accept: streams.Accept, Stop: streams.Close, Read: read,
			Timeout: d.options.HandshakeTimeout, Log: d.options.Logger}, nil
	}
	return softrdma.Listen(&d.Device, address, d.options.MaxPendingHandshakes, open)
}

// readRequest reads and checks a request, and replies with a reject if it cannot be accepted. tcp
// is conn, or what carries it.
func (d *device) readRequest(ctx context.Context, tcp, conn network.Stream) (rdma.Request, error) {
	h := newHandshake(ctx, conn)
	defer h.stop()
	frame, err := h.readMPA(mpaRequestKey)
	if err != nil {
		return nil, err
	}
	if err := checkRequest(&frame); err != nil {
		reject := newReject(&frame, nil)
		_ = h.write(reject.append(nil, mpaReplyKey))
		return nil, err
	}
	return &request{device: d, tcp: tcp, conn: conn, frame: frame}, nil
}

// request is a connection request. It is accepted or rejected exactly once.
type request struct {
	device  *device
	tcp     network.Stream // conn, or what carries it
	conn    network.Stream
	frame   mpaFrame
	decided atomic.Bool
}

// Protection returns how the connection is protected.
func (r *request) Protection() rdma.Protection { return protectionOf(r.conn) }

// Binding returns what identifies the TLS connection to both ends; nil without TLS.
func (r *request) Binding() []byte {
	if secured, is := r.conn.(*tlsrecord.Stream); is {
		return secured.ChannelBinding()
	}
	return nil
}

// PrivateData returns what the peer sent with its request.
func (r *request) PrivateData() []byte { return r.frame.privateData }

// Remote returns the peer's address.
func (r *request) Remote() netip.AddrPort { return network.AddressOf(r.conn.RemoteAddr()) }

// Accept establishes the connection. If the peer announced a ready-to-receive frame, Accept waits
// for it, for the handshake timeout at most. If Accept fails, it closes the TCP connection.
func (r *request) Accept(
	ctx context.Context, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	if r.decided.Swap(true) {
		return nil, softrdma.ErrDecided
	}
	ctx, cancel := context.WithTimeout(ctx, r.device.options.HandshakeTimeout)
	defer cancel()
	c, err := newConnection(r.device, &config)
	if err == nil {
		if err = r.accept(ctx, &config, c); err == nil {
			return c, nil
		}
		c.Domain.Release()
	}
	_ = r.conn.Close()
	return nil, status.Errorf(status.CodeOf(err),
		"accept iwarp connection from %v: %w", r.Remote(), err)
}

// accept establishes c.
func (r *request) accept(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	if err := r.device.options.apply(r.tcp); err != nil {
		return err
	}
	e, err := r.respond(ctx, config)
	if err != nil {
		return err
	}
	if e.socket, err = detachSocket(r.conn); err != nil {
		return err
	}
	return c.establish(e)
}

// respond performs the responder's side of the handshake, after the request.
func (r *request) respond(
	ctx context.Context, config *rdma.ConnectionConfig,
) (handshakeResult, error) {
	h := newHandshake(ctx, r.conn)
	defer h.stop()
	reply, a := newReply(&r.frame, r.device.options.CRC,
		wireDepth(config.InboundReads), wireDepth(config.OutboundReads), config.PrivateData)
	if err := h.write(reply.append(nil, mpaReplyKey)); err != nil {
		return handshakeResult{}, err
	}
	if a.rtr != rtrNone {
		if err := h.awaitFirstFrame(a); err != nil {
			return handshakeResult{}, err
		}
	}
	return handshakeResult{
		useCRC: a.useCRC, awaitsPeer: a.rtr == rtrNone, receivedRead: a.rtr == rtrRead,
		parameters: newParameters(r.conn, r.frame.privateData, a, config),
	}, nil
}

// rejectTimeout bounds the write of a reject, which is small enough for any send buffer.
const rejectTimeout = time.Second

// Reject sends the peer a reason, of at most rdma.MaxPrivateData bytes, and closes the connection.
func (r *request) Reject(reason []byte) error {
	if err := checkPrivateData(len(reason), rdma.MaxPrivateData); err != nil {
		return err
	}
	if r.decided.Swap(true) {
		return softrdma.ErrDecided
	}
	defer r.conn.Close()
	reject := newReject(&r.frame, reason)
	_ = r.conn.SetWriteDeadline(time.Now().Add(rejectTimeout))
	if _, err := r.conn.Write(reject.append(nil, mpaReplyKey)); err != nil {
		return status.Errorf(status.CodeOf(err),
			"reject iwarp connection from %v: %w", r.Remote(), err)
	}
	return nil
}
