// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// Connect connects to a listener on this machine. If the peer's application rejects the request,
// the error is an *rdma.RejectedError.
func (d *device) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	return softrdma.Dial(ctx, &d.Device, remote, func(ctx context.Context) (*connection, error) {
		c, err := newConnection(d, &config)
		if err != nil {
			return nil, err
		}
		if err := d.connect(ctx, remote, &config, c); err != nil {
			c.discard()
			return nil, err
		}
		return c, nil
	})
}

// connect establishes c.
func (d *device) connect(
	ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig, c *connection,
) error {
	offers, descriptors, err := c.lend(config.Lent)
	if err != nil {
		return err
	}
	conn, err := dialOwn(ctx, remote.Port())
	if err != nil {
		return err
	}
	request := packet{
		kind: packetRequest, inboundReads: config.InboundReads,
		outboundReads: config.OutboundReads, address: d.localAddress(config.Source, remote.Addr()),
		privateData: config.PrivateData, lent: offers,
	}
	reply, err := exchange(ctx, conn, &request, descriptors, c)
	if err != nil {
		_ = conn.Close()
		return err
	}
	socket, err := detach(conn)
	if err != nil {
		_ = conn.Close()
		return err
	}
	return c.establish(socket, rdma.Parameters{
		Transport: ProviderName, Local: request.address, Remote: remote,
		PrivateData:   reply.privateData,
		InboundReads:  min(config.InboundReads, reply.outboundReads),
		OutboundReads: min(config.OutboundReads, reply.inboundReads),
		Protection:    rdma.ProtectedByMachine,
	})
}

// localAddress returns the address that a connection comes from: source, or the device's, or, if
// that means all, the remote one, which is this machine's, too. The port only tells connections
// apart.
func (d *device) localAddress(source, remote netip.Addr) netip.AddrPort {
	if !source.IsValid() {
		source = d.Address
	}
	if source.IsUnspecified() {
		source = remote
	}
	return netip.AddrPortFrom(source.Unmap(), anyPort())
}

// anyPort returns a port of the kernel's default range for unbound sockets.
func anyPort() uint16 { return uint16(32768 + rand.IntN(28232)) }

// exchange sends the request and maps what the peer has sent with its reply.
func exchange(
	ctx context.Context, conn *net.UnixConn, request *packet, descriptors []int, c *connection,
) (packet, error) {
	done := exchangeDeadline(ctx, conn)
	defer done()
	if err := sendPacket(ctx, conn, request, descriptors); err != nil {
		return packet{}, err
	}
	reply, passed, err := receivePacket(ctx, conn)
	if err != nil {
		return packet{}, err
	}
	switch reply.kind {
	case packetReject:
		return packet{}, &rdma.RejectedError{Reason: reply.privateData}
	case packetAccept:
		return reply, c.adopt(&reply, passed)
	}
	closeAll(passed)
	return packet{}, badPacket("a request is answered with kind %d", reply.kind)
}

// Probe reports why no connection to the port of a listener on this machine is possible, or nil:
// the socket must be reachable, and its process belong to root or to this process's user.
func Probe(ctx context.Context, port uint16) error {
	conn, err := dialOwn(ctx, port)
	if err != nil {
		return err
	}
	return conn.Close()
}
