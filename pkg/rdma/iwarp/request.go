package iwarp

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// request implements rdma.Request.
type request struct {
	device   *device
	conn     *net.TCPConn
	frame    mpaFrame
	answered atomic.Bool
}

// PrivateData implements rdma.Request.
func (r *request) PrivateData() []byte { return r.frame.privateData }

// Remote implements rdma.Request.
func (r *request) Remote() netip.AddrPort { return addressOf(r.conn.RemoteAddr()) }

var errAnswered = status.Errorf(status.BadState, "connection request has been answered already")

// Accept implements rdma.Request. If the peer announced a ready-to-receive
// frame, Accept waits for it, for no longer than the handshake timeout. If it
// fails, the peer finds the connection closed.
func (r *request) Accept(ctx context.Context, config rdma.ConnectionConfig) (rdma.Connection, error) {
	if r.answered.Swap(true) {
		return nil, errAnswered
	}
	ctx, cancel := context.WithTimeout(ctx, r.device.options.HandshakeTimeout)
	defer cancel()
	c, err := newConnection(r.device, &config)
	if err == nil {
		if err = r.accept(ctx, &config, c); err == nil {
			return c, nil
		}
		c.abandon()
	}
	_ = r.conn.Close()
	return nil, status.Errorf(status.CodeOf(err), "accept iwarp connection from %v: %w", r.Remote(), err)
}

func (r *request) accept(ctx context.Context, config *rdma.ConnectionConfig, c *connection) error {
	if err := r.device.options.apply(r.conn); err != nil {
		return err
	}
	e, err := r.respond(ctx, config)
	if err != nil {
		return err
	}
	if e.socket, err = takeSocket(r.conn); err != nil {
		return err
	}
	return c.establish(e)
}

// respond performs the accepting side of the handshake.
func (r *request) respond(ctx context.Context, config *rdma.ConnectionConfig) (established, error) {
	h := newHandshake(ctx, r.conn)
	defer h.release()
	reply, a := newReply(&r.frame, r.device.options.CRC,
		wireDepth(config.InboundReads), wireDepth(config.OutboundReads), config.PrivateData)
	if err := h.write(reply.append(nil, mpaReplyKey)); err != nil {
		return established{}, err
	}
	if a.rtr != rtrNone {
		if err := h.awaitOpening(a); err != nil {
			return established{}, err
		}
	}
	return established{
		useCRC: a.useCRC, rtr: a.rtr, parameters: newParameters(r.conn, r.frame.privateData, a, config),
	}, nil
}

// rejectTimeout bounds the writing of a refusal, which fits any socket buffer.
const rejectTimeout = time.Second

// Reject implements rdma.Request.
func (r *request) Reject(reason []byte) error {
	if err := checkPrivateData(len(reason), rdma.MaxPrivateData); err != nil {
		return err
	}
	if r.answered.Swap(true) {
		return errAnswered
	}
	defer r.conn.Close()
	reject := newReject(&r.frame, reason)
	_ = r.conn.SetWriteDeadline(time.Now().Add(rejectTimeout))
	if _, err := r.conn.Write(reject.append(nil, mpaReplyKey)); err != nil {
		return status.Errorf(status.CodeOf(err), "reject iwarp connection from %v: %w", r.Remote(), err)
	}
	return nil
}
