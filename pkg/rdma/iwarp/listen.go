package iwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Listen accepts connection requests on address. Port 0 picks a free port.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	if err := d.Acquire("listen"); err != nil {
		return nil, err
	}
	streams, err := d.options.Network.Listen(ctx, address)
	if err != nil {
		d.Uses.Release()
		return nil, status.Errorf(softrdma.ListenCode(err), "listen for iwarp on %v: %w", address, err)
	}
	l := &listener{device: d, listener: streams,
		Backlog: softrdma.NewBacklog(ProviderName, d.options.MaxPendingHandshakes)}
	l.pending.limit = d.options.MaxPendingHandshakes
	l.Go(l.acceptConnections)
	return l, nil
}

// listener accepts TCP connections and reads a connection request from each, in a goroutine per
// connection. Accept returns only complete requests.
type listener struct {
	*softrdma.Backlog
	device   *device
	listener network.Listener
	pending  pendingHandshakes
}

// Address returns the address that the listener is bound to, with the actual port.
func (l *listener) Address() netip.AddrPort { return l.listener.Address() }

// acceptConnections runs until the listener is closed.
func (l *listener) acceptConnections() {
	for {
		conn, err := l.listener.Accept()
		if err == nil {
			l.pending.add(conn)
			l.Go(func() { l.serve(conn) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		l.device.options.Logger.Warn("cannot accept iwarp connections", zap.Error(err),
			zap.Int("closed_pending_handshakes", l.pending.shed()))
		select {
		case <-time.After(acceptRetryDelay):
		case <-l.Context().Done():
		}
	}
}

// acceptRetryDelay is the pause after a failed accept: the process or the machine has run out of
// some resource, most likely of descriptors.
const acceptRetryDelay = 10 * time.Millisecond

// serve reads a client's request and hands it to Accept.
func (l *listener) serve(conn network.Stream) {
	frame, err := l.readRequest(conn)
	if l.pending.remove(conn) && err == nil {
		if err = l.Offer(&request{device: l.device, conn: conn, frame: frame}); err == nil {
			return
		}
	}
	_ = conn.Close()
	l.device.options.Logger.Info("iwarp client dropped",
		zap.Stringer("remote", conn.RemoteAddr()), zap.Error(err))
}

// readRequest reads and checks a request, and replies with a reject if it cannot be accepted.
func (l *listener) readRequest(conn network.Stream) (mpaFrame, error) {
	ctx, cancel := context.WithTimeout(l.Context(), l.device.options.HandshakeTimeout)
	defer cancel()
	h := newHandshake(ctx, conn)
	defer h.stop()
	frame, err := h.readMPA(mpaRequestKey)
	if err != nil {
		return frame, err
	}
	if err := checkRequest(&frame); err != nil {
		reject := newReject(&frame, nil)
		_ = h.write(reject.append(nil, mpaReplyKey))
		return frame, err
	}
	return frame, nil
}

// pendingHandshakes holds the TCP connections that have not sent a complete request. Beyond the
// limit the oldest is closed, and if there are no descriptors left, half of them are. Valid clients
// send their request at once, so the oldest is the one most likely to be invalid, and invalid
// clients cannot lock out others.
type pendingHandshakes struct {
	limit int

	mu    sync.Mutex
	conns []network.Stream
}

// add adds conn and, at the limit, closes the oldest connection.
func (p *pendingHandshakes) add(conn network.Stream) {
	p.mu.Lock()
	var oldest network.Stream
	if len(p.conns) == p.limit {
		oldest = p.conns[0]
		p.conns = slices.Delete(p.conns, 0, 1)
	}
	p.conns = append(p.conns, conn)
	p.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // makes its goroutine return
	}
}

// shed closes the older half of the connections and returns their number.
func (p *pendingHandshakes) shed() int {
	p.mu.Lock()
	oldest := slices.Clone(p.conns[:(len(p.conns)+1)/2])
	p.conns = slices.Delete(p.conns, 0, len(oldest))
	p.mu.Unlock()
	for _, conn := range oldest {
		_ = conn.Close()
	}
	return len(oldest)
}

// remove removes conn. It returns false if conn was closed to make room.
func (p *pendingHandshakes) remove(conn network.Stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.conns, conn)
	if i < 0 {
		return false
	}
	p.conns = slices.Delete(p.conns, i, i+1)
	return true
}

// Close stops listening and rejects the requests that have not been accepted.
func (l *listener) Close() error {
	first, err := l.End(l.listener.Close)
	if first {
		l.device.Uses.Release()
	}
	return err
}

// request is a connection request. It is accepted or rejected exactly once.
type request struct {
	device  *device
	conn    network.Stream
	frame   mpaFrame
	decided atomic.Bool
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
		c.domain.Release()
	}
	_ = r.conn.Close()
	return nil, status.Errorf(status.CodeOf(err),
		"accept iwarp connection from %v: %w", r.Remote(), err)
}

// accept establishes c.
func (r *request) accept(
	ctx context.Context, config *rdma.ConnectionConfig, c *connection,
) error {
	if err := r.device.options.apply(r.conn); err != nil {
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
		useCRC: a.useCRC, rtr: a.rtr,
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
