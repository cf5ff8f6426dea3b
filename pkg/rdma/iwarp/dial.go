// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/tlsrecord"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connect connects to a listener. If the peer's application rejects the request, the error is an
// *rdma.RejectedError.
func (d *device) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	return softrdma.Dial(ctx, &d.Device, remote, func(ctx context.Context) (*connection, error) {
		c, err := newConnection(d, &config)
		if err != nil {
			return nil, err
		}
		if err := d.connect(ctx, remote, &config, c); err != nil {
			c.Domain.Release()
			return nil, err
		}
		return c, nil
	})
}

// connect establishes c.
func (d *device) connect(
	ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig, c *connection,
) error {
	conn, err := d.dial(ctx, remote, config.Source)
	if err != nil {
		return err
	}
	privateData := config.PrivateData
	if config.TLS != nil {
		secured, err := tlsrecord.Client(ctx, conn, config.TLS.Config)
		if err != nil {
			_ = conn.Close()
			return err
		}
		conn, privateData = secured, config.TLS.PrivateData(secured.ChannelBinding())
	}
	e, err := d.initiate(ctx, conn, config, privateData)
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

// dial makes a TCP connection from source or, if that is not valid, from the device's address.
func (d *device) dial(
	ctx context.Context, remote netip.AddrPort, source netip.Addr,
) (network.Stream, error) {
	if !source.IsValid() {
		source = d.Address
	}
	conn, err := d.options.Network.Dial(ctx, source, remote)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, status.Errorf(status.CodeOf(cause), "dial TCP: %w", cause)
		}
		return nil, status.Errorf(dialCode(err), "dial TCP: %w", err)
	}
	if err := d.options.apply(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// dialCode returns the status code for a failed TCP connect.
func dialCode(err error) status.Code {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return status.ConnectionAborted // nothing listens there
	case errors.Is(err, syscall.ETIMEDOUT),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return status.TimeOut
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return status.NotFound // the source address
	}
	return status.CodeOf(err)
}

// initiate performs the initiator's side of the handshake.
func (d *device) initiate(
	ctx context.Context, conn network.Stream, config *rdma.ConnectionConfig, privateData []byte,
) (handshakeResult, error) {
	if err := checkPrivateData(len(privateData), rdma.MaxPrivateData); err != nil {
		return handshakeResult{}, err
	}
	h := newHandshake(ctx, conn)
	defer h.stop()
	request := newRequest(d.options.CRC,
		wireDepth(config.InboundReads), wireDepth(config.OutboundReads), privateData)
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
		useCRC: a.useCRC, sentRead: probed,
		parameters: newParameters(conn, reply.privateData, a, config),
	}, nil
}
