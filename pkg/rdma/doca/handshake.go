// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"encoding/binary"
	"net"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// introduction is what a request and an accept hold.
type introduction struct {
	inboundReads  int
	outboundReads int
	privateData   []byte
	details       []byte
}

func (i *introduction) encode() []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(i.inboundReads))
	b = binary.LittleEndian.AppendUint16(b, uint16(i.outboundReads))
	b = append(append(b, byte(len(i.privateData))), i.privateData...)
	return append(b, i.details...)
}

func parseIntroduction(b []byte) (introduction, error) {
	const fixed = 5
	if len(b) < fixed || len(b) < fixed+int(b[4]) || int(b[4]) > rdma.MaxPrivateData {
		return introduction{}, badFrame("an introduction of %d bytes", len(b))
	}
	i := introduction{inboundReads: int(binary.LittleEndian.Uint16(b)),
		outboundReads: int(binary.LittleEndian.Uint16(b[2:]))}
	if i.inboundReads > maxReadDepth || i.outboundReads > maxReadDepth {
		return introduction{}, badFrame("read depths %d and %d exceed %d", i.inboundReads,
			i.outboundReads, maxReadDepth)
	}
	data := int(b[4])
	i.privateData, i.details = b[fixed:fixed+data:fixed+data], b[fixed+data:]
	return i, nil
}

// watch ends the use of a socket with ctx. stop ends that, and returns the reason in place of the
// socket's error.
func watch(ctx context.Context, socket net.Conn) (stop func(error) error) {
	if deadline, limited := ctx.Deadline(); limited {
		_ = socket.SetDeadline(deadline)
	}
	unwatch := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	return func(err error) error {
		unwatch()
		if cause := ctx.Err(); cause != nil {
			return cause
		}
		_ = socket.SetDeadline(time.Time{})
		return err
	}
}

// establish puts a connection, both sides of which know each other's details, into its queue.
func (c *connection) establish(
	socket net.Conn, config *rdma.ConnectionConfig, peer *introduction,
) error {
	c.Agreed = rdma.Parameters{
		Transport: ProviderName, Local: network.AddressOf(socket.LocalAddr()),
		Remote: network.AddressOf(socket.RemoteAddr()), PrivateData: peer.privateData,
		InboundReads:  min(config.InboundReads, peer.outboundReads),
		OutboundReads: min(config.OutboundReads, peer.inboundReads),
	}
	c.stream = newStream(socket)
	if err := c.Attach(); err != nil {
		return err
	}
	go c.stream.read(c)
	go c.stream.write()
	return nil
}
