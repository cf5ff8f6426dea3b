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
