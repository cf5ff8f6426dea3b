package iwarp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connect implements rdma.Device. A refusal by the peer's application is an
// *rdma.RejectedError.
func (d *device) Connect(ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig) (rdma.Connection, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rdma.DefaultConnectTimeout)
		defer cancel()
	}
	if err := d.acquire("connect"); err != nil {
		return nil, err
	}
	defer d.uses.release()
	c, err := newConnection(d, &config)
	if err == nil {
		if err = d.connect(ctx, remote, &config, c); err == nil {
			return c, nil
		}
		c.domain.uses.release()
	}
	return nil, status.Errorf(status.CodeOf(err), "connect to %v by iwarp: %w", remote, err)
}

func (d *device) connect(ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig, c *connection) error {
	conn, err := d.dial(ctx, remote, config.Source)
	if err != nil {
		return err
	}
	e, err := d.initiate(ctx, conn, config)
	if err != nil {
		_ = conn.Close()
		return err
	}
	if e.socket, err = detachSocket(conn); err != nil {
		_ = conn.Close()
		return err
	}
	return c.establish(e)
}

func (d *device) dial(ctx context.Context, remote netip.AddrPort, source netip.Addr) (*net.TCPConn, error) {
	if !source.IsValid() {
		source = d.address
	}
	dialer := net.Dialer{KeepAlive: -1, Control: d.options.control}
	dialer.SetMultipathTCP(false)
	if !source.IsUnspecified() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", remote.String())
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, status.Errorf(status.CodeOf(cause), "no TCP connection: %w", cause)
		}
		return nil, status.Errorf(dialCode(err), "no TCP connection: %w", err)
	}
	tcp := conn.(*net.TCPConn)
	if err := d.options.apply(tcp); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return tcp, nil
}

// dialCode is the code under which a failed TCP connect is reported.
func dialCode(err error) status.Code {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return status.ConnectionAborted // nothing listens there
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return status.TimeOut
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return status.NotFound // the source address
	}
	return status.CodeOf(err)
}

// initiate performs the connecting side of the handshake.
func (d *device) initiate(ctx context.Context, conn *net.TCPConn, config *rdma.ConnectionConfig) (handshakeResult, error) {
	h := newHandshake(ctx, conn)
	defer h.stop()
	request := newRequest(d.options.CRC, wireDepth(config.InboundReads), wireDepth(config.OutboundReads), config.PrivateData)
	if err := h.write(request.append(nil, mpaRequestKey)); err != nil {
		return handshakeResult{}, err
	}
	reply, err := h.readMPA(mpaReplyKey)
	if err != nil {
		h.terminate(violationReply, false)
		return handshakeResult{}, err
	}
	if reply.reject {
		return handshakeResult{}, &rdma.RejectedError{Reason: reply.privateData}
	}
	a, v, err := acceptReply(&request, &reply)
	if err != nil {
		h.terminate(v, false)
		return handshakeResult{}, err
	}
	probed, err := h.startStream(a)
	if err != nil {
		return handshakeResult{}, err
	}
	return handshakeResult{
		useCRC: a.useCRC, initiator: true, rtr: a.rtr, probed: probed,
		parameters: newParameters(conn, reply.privateData, a, config),
	}, nil
}

// newParameters limits what was agreed on the wire to what the caller offered.
func newParameters(conn *net.TCPConn, privateData []byte, a agreement, config *rdma.ConnectionConfig) rdma.Parameters {
	return rdma.Parameters{
		Local: addressOf(conn.LocalAddr()), Remote: addressOf(conn.RemoteAddr()), PrivateData: privateData,
		InboundReads:  min(a.inboundReads, config.InboundReads),
		OutboundReads: min(a.outboundReads, config.OutboundReads),
	}
}

// wireDepth is the read depth offered to peers: at least one, because the
// stream opens with a Read and because siw does not survive zero.
func wireDepth(reads int) int { return max(reads, 1) }

func addressOf(a net.Addr) netip.AddrPort {
	address := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
}

// control applies what must be set before TCP's handshake.
func (o Options) control(_, _ string, raw syscall.RawConn) error {
	var setErr error
	if err := raw.Control(func(fd uintptr) { setErr = o.setBuffers(int(fd)) }); err != nil {
		return err
	}
	return setErr
}
