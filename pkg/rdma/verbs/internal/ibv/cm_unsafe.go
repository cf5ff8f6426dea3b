//go:build verbs

package ibv

// #include "shim.h"
import "C"

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
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
	if errno := C.zc_set_nonblocking(channel.fd); errno != 0 {
		C.rdma_destroy_event_channel(channel)
		return nil, wrap("open the connection manager", unix.Errno(errno))
	}
	return &Channel{channel: channel}, nil
}

// Descriptor is readable when NextEvent has something.
func (c *Channel) Descriptor() int { return int(c.channel.fd) }

// Close releases the channel. Its identifiers must have been destroyed.
func (c *Channel) Close() { C.rdma_destroy_event_channel(c.channel) }

// NextEvent takes one event without blocking; false if there is none.
func (c *Channel) NextEvent() (CMEvent, bool, error) {
	var event C.struct_zc_cm_event
	switch errno := unix.Errno(C.zc_next_cm_event(c.channel, &event)); errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return CMEvent{}, false, nil
	default:
		return CMEvent{}, false, wrap("get connection event", errno)
	}
	e := CMEvent{
		Handle: uint64(event.handle), Type: CMEventType(event._type), Status: int(event.status),
		// The peer's view of the roles is the reverse of ours; librdmacm has
		// turned it already.
		InboundReads: int(event.responder_resources), OutboundReads: int(event.initiator_depth),
	}
	if event.request != nil {
		e.Request = &ID{id: event.request}
	}
	if event.private_length > 0 {
		e.PrivateData = C.GoBytes(unsafe.Pointer(&event.private_data[0]), C.int(event.private_length))
	}
	return e, true, nil
}

// CMEvent is an event of the connection manager.
type CMEvent struct {
	// Handle names the identifier, for EventConnectRequest the listening one.
	Handle uint64
	Type   CMEventType
	// Status is 0, a negative errno, or for EventRejected on InfiniBand and
	// RoCE the reason (IBTA volume 1, 12.6.7.2).
	Status int
	// Request is the identifier of a connection request.
	Request *ID
	// InboundReads and OutboundReads are what the peer asks of this side and
	// offers it, for EventConnectRequest and the peer's answer.
	InboundReads  int
	OutboundReads int
	// PrivateData is what the peer sent. InfiniBand and RoCE pad it with
	// zeros.
	PrivateData []byte
}

// CMEventType is an rdma_cm_event_type.
type CMEventType uint32

// The events.
const (
	EventAddressResolved CMEventType = C.RDMA_CM_EVENT_ADDR_RESOLVED
	EventAddressError    CMEventType = C.RDMA_CM_EVENT_ADDR_ERROR
	EventRouteResolved   CMEventType = C.RDMA_CM_EVENT_ROUTE_RESOLVED
	EventRouteError      CMEventType = C.RDMA_CM_EVENT_ROUTE_ERROR
	EventConnectRequest  CMEventType = C.RDMA_CM_EVENT_CONNECT_REQUEST
	EventConnectResponse CMEventType = C.RDMA_CM_EVENT_CONNECT_RESPONSE
	EventConnectError    CMEventType = C.RDMA_CM_EVENT_CONNECT_ERROR
	EventUnreachable     CMEventType = C.RDMA_CM_EVENT_UNREACHABLE
	EventRejected        CMEventType = C.RDMA_CM_EVENT_REJECTED
	EventConnected       CMEventType = C.RDMA_CM_EVENT_ESTABLISHED
	EventDisconnected    CMEventType = C.RDMA_CM_EVENT_DISCONNECTED
	EventDeviceRemoval   CMEventType = C.RDMA_CM_EVENT_DEVICE_REMOVAL
	EventAddressChange   CMEventType = C.RDMA_CM_EVENT_ADDR_CHANGE
	EventTimeWaitExit    CMEventType = C.RDMA_CM_EVENT_TIMEWAIT_EXIT
)

// String returns the symbolic name.
func (t CMEventType) String() string { return C.GoString(C.rdma_event_str(uint32(t))) }

// RejectedByApplication is the Status of EventRejected, on InfiniBand and
// RoCE, when the peer's application refused (IB_CM_REJ_CONSUMER_DEFINED).
const RejectedByApplication = 28

// Reason describes the status of an event that reports a failure.
func (e *CMEvent) Reason() string {
	switch {
	case e.Status < 0:
		errno := unix.Errno(-e.Status)
		return fmt.Sprintf("%v: %s: %v", e.Type, unix.ErrnoName(errno), errno)
	case e.Status > 0:
		return fmt.Sprintf("%v: reason %d%s", e.Type, e.Status, rejectReasons[e.Status])
	}
	return e.Type.String()
}

// rejectReasons are the frequent ones of IBTA volume 1, table 107.
var rejectReasons = map[int]string{
	1: " (no queue pair available)", 3: " (no resources)", 4: " (time-out)", 8: " (nobody listens there)",
	10: " (stale connection)", 26: " (invalid path MTU)", 27: " (insufficient responder resources)",
	RejectedByApplication: " (refused by the application)",
}

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
func (i *ID) Local() netip.AddrPort { return addressOf(C.zc_local_address(i.id)) }

func (i *ID) Remote() netip.AddrPort { return addressOf(C.zc_peer_address(i.id)) }

// socketAddress encodes an address. The zone of a link-local one is the name or
// the number of its interface.
func socketAddress(a netip.AddrPort) C.struct_sockaddr_storage {
	var scope uint64
	if zone := a.Addr().Zone(); zone != "" {
		if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
			scope = index
		} else if i, err := net.InterfaceByName(zone); err == nil {
			scope = uint64(i.Index)
		}
	}
	var storage C.struct_sockaddr_storage
	ip := a.Addr().Unmap().AsSlice()
	C.zc_address(&storage, (*C.uint8_t)(unsafe.SliceData(ip)), C.int(len(ip)), C.uint16_t(a.Port()), C.uint32_t(scope))
	return storage
}

func asSocketAddress(s *C.struct_sockaddr_storage) *C.struct_sockaddr {
	return (*C.struct_sockaddr)(unsafe.Pointer(s))
}

// addressOf decodes an address; one of another family is invalid.
func addressOf(s *C.struct_sockaddr) netip.AddrPort {
	var b [16]byte
	var port C.uint16_t
	n := int(C.zc_read_address(s, (*C.uint8_t)(&b[0]), &port))
	address, ok := netip.AddrFromSlice(b[:n])
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(port))
}
