// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
)

// Channel delivers the events of connection manager identifiers (rdma_event_channel).
type Channel struct {
	channel *C.struct_rdma_event_channel
}

// NewChannel opens an event channel.
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

// Descriptor returns a descriptor that is readable while NextEvent has an event.
func (c *Channel) Descriptor() int { return int(c.channel.fd) }

// Close closes the channel. Its identifiers must have been destroyed.
func (c *Channel) Close() { C.rdma_destroy_event_channel(c.channel) }

// NextEvent returns the next event without blocking, and whether there was one.
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
		Handle: uint64(event.handle),
		Type:   CMEventType(event._type),
		Status: int(event.status),
		// librdmacm has already translated the peer's point of view into this side's.
		InboundReads:  int(event.responder_resources),
		OutboundReads: int(event.initiator_depth),
	}
	if event.request != nil {
		e.Request = &ID{id: event.request}
	}
	if event.private_length > 0 {
		data := unsafe.Pointer(&event.private_data[0])
		e.PrivateData = C.GoBytes(data, C.int(event.private_length))
	}
	return e, true, nil
}

// CMEvent is an event of the connection manager (rdma_cm_event).
type CMEvent struct {
	// Handle is the handle of the event's identifier; for EventConnectRequest, of the listening
	// one.
	Handle uint64
	Type   CMEventType
	// Status is 0, a negative errno, or, for EventRejected on InfiniBand and RoCE, the reject
	// reason (IBTA volume 1, 12.6.7.2).
	Status int
	// Request is the new identifier that comes with EventConnectRequest.
	Request *ID
	// InboundReads is how many outstanding Reads the peer wants this side to serve, and
	// OutboundReads how many it serves for this side. EventConnectRequest and the peer's reply
	// carry them.
	InboundReads  int
	OutboundReads int
	// PrivateData is the peer's private data. InfiniBand and RoCE pad it with zeros.
	PrivateData []byte
}

// CMEventType is the type of a CMEvent (rdma_cm_event_type).
type CMEventType uint32

// The connection manager events that the provider handles.
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

// String returns the symbolic name, for example "RDMA_CM_EVENT_REJECTED".
func (t CMEventType) String() string { return C.GoString(C.rdma_event_str(C.uint32_t(t))) }

// RejectedByApplication is the Status of EventRejected on InfiniBand and RoCE if the peer's
// application rejected the request (IB_CM_REJ_CONSUMER_DEFINED).
const RejectedByApplication = 28

// Reason describes an event that reports a failure, including its status.
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

// rejectReasons holds the most frequent reasons of IBTA volume 1, table 107.
var rejectReasons = map[int]string{
	1:  " (no queue pair available)",
	3:  " (no resources)",
	4:  " (timeout)",
	8:  " (no listener)",
	10: " (stale connection)",
	26: " (invalid path MTU)",
	27: " (insufficient responder resources)",

	RejectedByApplication: " (rejected by the application)",
}

// ID is a connection manager identifier for reliable connections (an rdma_cm_id in RDMA_PS_TCP).
// Its handle is the number by which events refer to it.
type ID struct {
	id *C.struct_rdma_cm_id
}

// NewID creates an identifier.
func (c *Channel) NewID(handle uint64) (*ID, error) {
	var id *C.struct_rdma_cm_id
	if errno := C.zc_create_id(c.channel, C.uint64_t(handle), &id); errno != 0 {
		return nil, wrap("create connection identifier", unix.Errno(errno))
	}
	return &ID{id: id}, nil
}

// SetHandle sets the handle of an identifier that came with a connection request.
func (i *ID) SetHandle(handle uint64) { C.zc_set_handle(i.id, C.uint64_t(handle)) }

// Destroy destroys the identifier, and with it a listener, handshake, or connection that uses it.
// It blocks while an event of the identifier is unacknowledged.
func (i *ID) Destroy() error {
	if result, err := C.rdma_destroy_id(i.id); result != 0 {
		return wrap("destroy connection identifier", errnoOf(err))
	}
	return nil
}

// Bind sets the local address, which selects the device.
func (i *ID) Bind(address netip.AddrPort) error {
	storage := socketAddress(address)
	if result, err := C.rdma_bind_addr(i.id, asSocketAddress(&storage)); result != 0 {
		return wrap("bind to "+address.String(), errnoOf(err))
	}
	return nil
}

// Listen starts listening for connection requests, which arrive as EventConnectRequest.
func (i *ID) Listen(backlog int) error {
	if result, err := C.rdma_listen(i.id, C.int(backlog)); result != 0 {
		return wrap("listen", errnoOf(err))
	}
	return nil
}

// ResolveAddress finds the device that leads to remote; source may be invalid. EventAddressResolved
// or EventAddressError reports the outcome.
func (i *ID) ResolveAddress(source netip.Addr, remote netip.AddrPort, timeout time.Duration) error {
	from, to := C.struct_sockaddr_storage{}, socketAddress(remote)
	var fromAddress *C.struct_sockaddr
	if source.IsValid() && !source.IsUnspecified() {
		from = socketAddress(netip.AddrPortFrom(source, 0))
		fromAddress = asSocketAddress(&from)
	}
	result, err := C.rdma_resolve_addr(i.id, fromAddress, asSocketAddress(&to),
		milliseconds(timeout))
	if result != 0 {
		return wrap("resolve address "+remote.Addr().String(), errnoOf(err))
	}
	return nil
}

// ResolveRoute finds the route to the address that ResolveAddress resolved. EventRouteResolved or
// EventRouteError reports the outcome.
func (i *ID) ResolveRoute(timeout time.Duration) error {
	if result, err := C.rdma_resolve_route(i.id, milliseconds(timeout)); result != 0 {
		return wrap("resolve route", errnoOf(err))
	}
	return nil
}

func milliseconds(d time.Duration) C.int { return C.int(max(1, min(d.Milliseconds(), 1<<30))) }

// ConnectionParameters is sent to the peer with a connection request or the reply to one.
type ConnectionParameters struct {
	QueuePair     uint32 // QueuePair.Number
	InboundReads  int    // outstanding RDMA Reads to serve
	OutboundReads int    // outstanding RDMA Reads to issue
	RetryCount    uint8
	RNRRetryCount uint8
	PrivateData   []byte // at most MaxPrivateData bytes
}

// MaxPrivateData is the most bytes of private data that an event can carry.
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

// Connect sends a connection request. The queue pair must be in INIT.
func (i *ID) Connect(p *ConnectionParameters) error {
	parameters := p.encode()
	if errno := C.zc_connect(i.id, &parameters); errno != 0 {
		return wrap("send connection request", unix.Errno(errno))
	}
	return nil
}

// Establish acknowledges EventConnectResponse to the peer. The queue pair must be in RTS.
func (i *ID) Establish() error {
	if result, err := C.rdma_establish(i.id); result != 0 {
		return wrap("establish connection", errnoOf(err))
	}
	return nil
}

// Accept accepts a connection request. The queue pair must be in RTS.
func (i *ID) Accept(p *ConnectionParameters) error {
	parameters := p.encode()
	if errno := C.zc_accept(i.id, &parameters); errno != 0 {
		return wrap("accept connection request", unix.Errno(errno))
	}
	return nil
}

// Reject rejects a connection request and sends reason as private data.
func (i *ID) Reject(reason []byte) error {
	data := unsafe.Pointer(unsafe.SliceData(reason))
	if result, err := C.rdma_reject(i.id, data, C.uint8_t(len(reason))); result != 0 {
		return wrap("reject connection request", errnoOf(err))
	}
	return nil
}

// Disconnect notifies the peer that the connection ends.
func (i *ID) Disconnect() error {
	if result, err := C.rdma_disconnect(i.id); result != 0 {
		return wrap("disconnect", errnoOf(err))
	}
	return nil
}

// NotifyEstablished reports to the connection manager that a message from the peer has arrived
// before the last packet of the handshake.
func (i *ID) NotifyEstablished() error {
	if result, err := C.rdma_notify(i.id, C.IBV_EVENT_COMM_EST); result != 0 {
		return wrap("notify the connection manager", errnoOf(err))
	}
	return nil
}

// SetTypeOfService sets the type of service (on RoCE, the traffic class) of connections that are
// made or accepted with the identifier.
func (i *ID) SetTypeOfService(value uint8) error {
	c := C.uint8_t(value)
	result, err := C.rdma_set_option(i.id, C.RDMA_OPTION_ID, C.RDMA_OPTION_ID_TOS,
		unsafe.Pointer(&c), 1)
	if result != 0 {
		return wrap("set type of service", errnoOf(err))
	}
	return nil
}

// DeviceName returns the device that the address selected, or "" if none is selected yet.
func (i *ID) DeviceName() string {
	name := C.zc_device_name(i.id)
	if name == nil {
		return ""
	}
	return C.GoString(name)
}

// Port returns the device port that the address selected.
func (i *ID) Port() uint8 { return uint8(i.id.port_num) }

// Local returns this end's address.
func (i *ID) Local() netip.AddrPort { return addressOf(C.zc_local_address(i.id)) }

// Remote returns the peer's address.
func (i *ID) Remote() netip.AddrPort { return addressOf(C.zc_peer_address(i.id)) }

// socketAddress encodes an address. The zone of a link-local address is the name or the number of
// an interface.
func socketAddress(a netip.AddrPort) C.struct_sockaddr_storage {
	var storage C.struct_sockaddr_storage
	ip := a.Addr().Unmap().AsSlice()
	C.zc_address(&storage, (*C.uint8_t)(unsafe.SliceData(ip)), C.int(len(ip)),
		C.uint16_t(a.Port()), C.uint32_t(network.ZoneIndex(a.Addr())))
	return storage
}

func asSocketAddress(s *C.struct_sockaddr_storage) *C.struct_sockaddr {
	return (*C.struct_sockaddr)(unsafe.Pointer(s))
}

// addressOf decodes an address. It returns an invalid address for a family other than IP.
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
