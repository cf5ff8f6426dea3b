package iwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// listener implements rdma.Listener.
type listener struct {
	device   *device
	listener *net.TCPListener
	requests chan *request
	ctx      context.Context
	stop     context.CancelFunc
	closed   atomic.Bool
	tasks    sync.WaitGroup
	pending  pendingClients
}

// Listen implements rdma.Device.
func (d *device) Listen(ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
	if err := d.use("listen"); err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAlive: -1, Control: d.options.control}
	config.SetMultipathTCP(false) // its sockets lack options that are needed here
	tcp, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		d.uses.release()
		return nil, status.Errorf(listenCode(err), "listen for iwarp on %v: %w", address, err)
	}
	l := &listener{device: d, listener: tcp.(*net.TCPListener)}
	l.pending.limit = d.options.MaxPendingHandshakes
	l.requests = make(chan *request, l.pending.limit)
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.tasks.Add(1)
	go l.acceptClients()
	return l, nil
}

// Address implements rdma.Listener.
func (l *listener) Address() netip.AddrPort { return addressOf(l.listener.Addr()) }

// Accept implements rdma.Listener.
func (l *listener) Accept(ctx context.Context) (rdma.Request, error) {
	if l.ctx.Err() != nil {
		return nil, errListenerClosed
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.ctx.Done():
		return nil, errListenerClosed
	case <-ctx.Done():
		return nil, status.Errorf(status.CodeOf(ctx.Err()), "accept iwarp connection: %w", ctx.Err())
	}
}

var errListenerClosed = status.Errorf(status.Shutdown, "iwarp listener is closed")

// Close implements rdma.Listener.
func (l *listener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.stop()
	err := l.listener.Close()
	l.tasks.Wait()
	for {
		select {
		case r := <-l.requests:
			_ = r.Reject(nil)
		default:
			l.device.uses.release()
			return err
		}
	}
}

// acceptPause is how long accepting rests when the process or the machine is
// out of something.
const acceptPause = 10 * time.Millisecond

func (l *listener) acceptClients() {
	defer l.tasks.Done()
	for {
		conn, err := l.listener.AcceptTCP()
		if err == nil {
			l.pending.add(conn)
			l.tasks.Add(1)
			go l.serve(conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		l.device.options.Logger.Warn("cannot accept iwarp clients", zap.Error(err))
		select {
		case <-time.After(acceptPause):
		case <-l.ctx.Done():
		}
	}
}

// serve reads a client's request and hands it to Accept.
func (l *listener) serve(conn *net.TCPConn) {
	defer l.tasks.Done()
	frame, err := l.readRequest(conn)
	if l.pending.remove(conn) && err == nil {
		select {
		case l.requests <- &request{device: l.device, conn: conn, frame: frame}:
			return
		default:
			err = status.Errorf(status.Full, "%d requests wait to be accepted", cap(l.requests))
		}
	}
	_ = conn.Close()
	l.device.options.Logger.Info("iwarp client dropped", zap.Stringer("remote", conn.RemoteAddr()), zap.Error(err))
}

func (l *listener) readRequest(conn *net.TCPConn) (mpaFrame, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.device.options.HandshakeTimeout)
	defer cancel()
	h := newHandshake(ctx, conn)
	defer h.release()
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
