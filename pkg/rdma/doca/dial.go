// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// Connect connects to a listener.
func (d *device) Connect(
	ctx context.Context, remote netip.AddrPort, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
	return softrdma.Dial(ctx, &d.Device, remote, func(ctx context.Context) (*connection, error) {
		return d.connect(ctx, remote, &config)
	})
}

func (d *device) connect(
	ctx context.Context, remote netip.AddrPort, config *rdma.ConnectionConfig,
) (*connection, error) {
	c, err := newConnection(d, config)
	if err != nil {
		return nil, err
	}
	source := config.Source
	if !source.IsValid() {
		source = d.Address
	}
	socket, err := (network.Kernel{}).Dial(ctx, source, remote)
	if err == nil {
		if err = c.introduce(ctx, socket.(net.Conn), config); err != nil {
			_ = socket.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// introduce exchanges introductions with a listener, and establishes c.
func (c *connection) introduce(
	ctx context.Context, socket net.Conn, config *rdma.ConnectionConfig,
) error {
	details, err := c.rdma.Export()
	if err != nil {
		return err
	}
	stop := watch(ctx, socket)
	request := introduction{config.InboundReads, config.OutboundReads, config.PrivateData, details}
	f := frame{frameRequest, request.encode()}
	_, err = socket.Write(f.encode())
	if err == nil {
		f, err = readFrame(socket)
	}
	if err = stop(err); err != nil {
		return err
	}
	switch f.kind {
	case frameAccept:
	case frameReject:
		return &rdma.RejectedError{Reason: f.payload}
	default:
		return badFrame("a request is answered with kind %d", f.kind)
	}
	reply, err := parseIntroduction(f.payload)
	if err == nil {
		err = c.device.withGID(c.rdma.Connect(reply.details))
	}
	if err != nil {
		return err
	}
	return c.establish(socket, config, &reply)
}
