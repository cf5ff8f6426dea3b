//go:build verbs

package ibv

// #include "shim.h"
import "C"

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Channel brings the events of connection manager identifiers.
type Channel struct {
	channel *C.struct_rdma_event_channel
}

// NewChannel makes an event channel.
func NewChannel() (*Channel, error) {
	channel, err := C.rdma_create_event_channel()
	if channel == nil {
		return nil, wrap("open the connection manager (/dev/infiniband/rdma_cm)", errnoOf(err))
	}
	if errno := C.zc_do_not_block(channel.fd); errno != 0 {
		C.rdma_destroy_event_channel(channel)
		return nil, wrap("open the connection manager", unix.Errno(errno))
	}
	return &Channel{channel: channel}, nil
}

// Descriptor is readable when Next has something.
func (c *Channel) Descriptor() int { return int(c.channel.fd) }

// Close releases the channel. Its identifiers must have been destroyed.
func (c *Channel) Close() { C.rdma_destroy_event_channel(c.channel) }

// ID is an rdma_cm_id of the port space for reliable connections. It has a
// handle, a number by which events name it.
type ID struct {
	id *C.struct_rdma_cm_id
}

// NewID makes an identifier.
func (c *Channel) NewID(handle uint64) (*ID, error) {
	var id *C.struct_rdma_cm_id
	if errno := C.zc_create_id(c.channel, C.uint64_t(handle), &id); errno != 0 {
		return nil, wrap("create connection identifier", unix.Errno(errno))
	}
	return &ID{id: id}, nil
}

// SetHandle names an identifier that came with a connection request.
func (i *ID) SetHandle(handle uint64) { C.zc_set_handle(i.id, C.uint64_t(handle)) }

// Destroy ends whatever the identifier is used for. It waits for events that
// have been taken and are not acknowledged.
func (i *ID) Destroy() error {
	if result, err := C.rdma_destroy_id(i.id); result != 0 {
		return wrap("destroy connection identifier", errnoOf(err))
	}
	return nil
}

// Bind chooses the local address, and by it the device.
func (i *ID) Bind(address netip.AddrPort) error {
	storage := socketAddress(address)
	if result, err := C.rdma_bind_addr(i.id, asSocketAddress(&storage)); result != 0 {
		return wrap("bind to "+address.String(), errnoOf(err))
	}
	return nil
}

// Listen asks for connection requests.
func (i *ID) Listen(backlog int) error {
	if result, err := C.rdma_listen(i.id, C.int(backlog)); result != 0 {
		return wrap("listen", errnoOf(err))
	}
	return nil
}

// ResolveAddress looks for the way to remote; source may be invalid. The
// outcome comes as EventAddressResolved.
func (i *ID) ResolveAddress(source netip.Addr, remote netip.AddrPort, timeout time.Duration) error {
	from, to := C.struct_sockaddr_storage{}, socketAddress(remote)
	var fromAddress *C.struct_sockaddr
	if source.IsValid() && !source.IsUnspecified() {
		from = socketAddress(netip.AddrPortFrom(source, 0))
		fromAddress = asSocketAddress(&from)
	}
	if result, err := C.rdma_resolve_addr(i.id, fromAddress, asSocketAddress(&to), milliseconds(timeout)); result != 0 {
		return wrap("resolve address "+remote.Addr().String(), errnoOf(err))
	}
	return nil
}

// ResolveRoute follows ResolveAddress. The outcome comes as
// EventRouteResolved.
func (i *ID) ResolveRoute(timeout time.Duration) error {
	if result, err := C.rdma_resolve_route(i.id, milliseconds(timeout)); result != 0 {
		return wrap("resolve route", errnoOf(err))
	}
	return nil
}

func milliseconds(d time.Duration) C.int { return C.int(max(1, min(d.Milliseconds(), 1<<30))) }

// ConnectionParameters go to the peer with a request or its answer.
type ConnectionParameters struct {
	QueuePair     uint32
	InboundReads  int
	OutboundReads int
	RetryCount    uint8
	RNRRetryCount uint8
	PrivateData   []byte // at most MaxPrivateData bytes
}

// MaxPrivateData is the longest private data that an event can carry.
const MaxPrivateData = C.ZC_MAX_PRIVATE_DATA

func (p *ConnectionParameters) encode() (c C.struct_zc_connection_parameters) {
	c.queue_pair = C.uint32_t(p.QueuePair)
	c.responder_resources = C.uint8_t(p.InboundReads)
	c.initiator_depth = C.uint8_t(p.OutboundReads)
	c.retry_count = C.uint8_t(p.RetryCount)
	c.rnr_retry_count = C.uint8_t(p.RNRRetryCount)
	c.private_length = C.uint8_t(min(len(p.PrivateData), MaxPrivateData))
	for i, b := range p.PrivateData[:c.private_length] {
		c.private_data[i] = C.uint8_t(b)
	}
	return c
}

// Connect sends a connection request. Its queue pair must be in INIT.
func (i *ID) Connect(p *ConnectionParameters) error {
	parameters := p.encode()
	if errno := C.zc_connect(i.id, &parameters); errno != 0 {
		return wrap("send connection request", unix.Errno(errno))
	}
	return nil
}

// Establish tells the peer that its answer has come and the queue pair is
// ready. It follows EventConnectResponse.
func (i *ID) Establish() error {
	if result, err := C.rdma_establish(i.id); result != 0 {
		return wrap("establish connection", errnoOf(err))
	}
	return nil
}

// Accept answers a connection request. Its queue pair must be in RTS.
func (i *ID) Accept(p *ConnectionParameters) error {
	parameters := p.encode()
	if errno := C.zc_accept(i.id, &parameters); errno != 0 {
		return wrap("accept connection request", unix.Errno(errno))
	}
	return nil
}

// Reject refuses a connection request.
func (i *ID) Reject(reason []byte) error {
	data := unsafe.Pointer(unsafe.SliceData(reason))
	if result, err := C.rdma_reject(i.id, data, C.uint8_t(len(reason))); result != 0 {
		return wrap("reject connection request", errnoOf(err))
	}
	return nil
}

// Disconnect tells the peer that the connection ends.
func (i *ID) Disconnect() error {
	if result, err := C.rdma_disconnect(i.id); result != 0 {
		return wrap("disconnect", errnoOf(err))
	}
	return nil
}

// NotifyEstablished tells the connection manager that a message of the peer
// has come before the peer's last word of the handshake.
func (i *ID) NotifyEstablished() error {
	if result, err := C.rdma_notify(i.id, C.IBV_EVENT_COMM_EST); result != 0 {
		return wrap("notify the connection manager", errnoOf(err))
	}
	return nil
}

// SetTypeOfService sets the type of service (RoCE: the traffic class) of the
// connections that the identifier makes or accepts.
func (i *ID) SetTypeOfService(value uint8) error {
	c := C.uint8_t(value)
	if result, err := C.rdma_set_option(i.id, C.RDMA_OPTION_ID, C.RDMA_OPTION_ID_TOS, unsafe.Pointer(&c), 1); result != 0 {
		return wrap("set type of service", errnoOf(err))
	}
	return nil
}

// DeviceName is the device that the address has led to, "" before.
func (i *ID) DeviceName() string {
	name := C.zc_device_name(i.id)
	if name == nil {
		return ""
	}
	return C.GoString(name)
}

// Port is the port of the device that the address has led to.
func (i *ID) Port() uint8 { return uint8(i.id.port_num) }

// Local and Remote are the addresses of both ends.
func (i *ID) Local() netip.AddrPort  { return addressOf(C.zc_local_address(i.id)) }
func (i *ID) Remote() netip.AddrPort { return addressOf(C.zc_peer_address(i.id)) }
