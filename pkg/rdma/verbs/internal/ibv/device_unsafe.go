// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package ibv binds libibverbs and librdmacm, which Load loads at run time. It wraps their objects
// in thin types, adds symbolic names to errors, and makes one call into C per batch on the data
// path. It contains no policy.
//
// Objects are not reference-counted: before destroying one, the caller must make sure that nothing
// else uses it.
package ibv

// #include "shim.h"
import "C"

import (
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Transport is the transport of a device's connections.
type Transport string

// The transports, named as in rdma.Capabilities.
const (
	IWARP      Transport = "iwarp"
	InfiniBand Transport = "infiniband"
	RoCE       Transport = "roce"
)

// Context is an open device (ibv_context).
type Context struct {
	context *C.struct_ibv_context
}

// Open opens the device with the given name.
func Open(name string) (*Context, error) {
	var count C.int
	list, err := C.ibv_get_device_list(&count)
	if list == nil {
		return nil, wrap("list RDMA devices", errnoOf(err))
	}
	defer C.ibv_free_device_list(list)
	for _, device := range unsafe.Slice(list, int(count)) {
		if C.GoString(C.ibv_get_device_name(device)) != name {
			continue
		}
		context, err := C.ibv_open_device(device)
		if context == nil {
			return nil, wrap("open RDMA device "+name, errnoOf(err))
		}
		if errno := C.zc_set_nonblocking(context.async_fd); errno != 0 {
			C.ibv_close_device(context)
			return nil, wrap("open RDMA device "+name, unix.Errno(errno))
		}
		return &Context{context: context}, nil
	}
	return nil, status.Errorf(status.NotFound,
		"RDMA device %s has no user-space driver: "+
			"install ibverbs-providers, then check `ibv_devices`", name)
}

// Is reports whether both are the same open device. A device that has been opened twice has two
// contexts, whose objects cannot be combined.
func (c *Context) Is(other *Context) bool { return c.context == other.context }

// DeviceName returns the name of the device.
func (c *Context) DeviceName() string {
	return C.GoString(C.ibv_get_device_name(c.context.device))
}

// Close closes the device. Everything created on it must have been destroyed.
func (c *Context) Close() error {
	if result, err := C.ibv_close_device(c.context); result != 0 {
		return wrap("close RDMA device", errnoOf(err))
	}
	return nil
}

// Limits holds the limits of a device and one of its ports.
type Limits struct {
	Transport     Transport
	QueuePairs    int
	WorkRequests  int // of one queue of a queue pair
	Segments      int // of one work request
	Completions   int // of one completion queue
	MemoryRegions int
	RegionBytes   uint64
	InboundReads  int // per queue pair, as responder
	OutboundReads int // per queue pair, as initiator
	MessageBytes  uint64
	PathMTU       int // of the port, in bytes
	PortActive    bool
	SoftIWARP     bool // the device is the kernel's siw
}

// siwVendor is the vendor ID of siw (SIW_VENDOR_ID in its source).
const siwVendor = 0x626d74

// Limits queries the device and its port.
func (c *Context) Limits(port uint8) (Limits, error) {
	var device C.struct_ibv_device_attr
	if errno := C.ibv_query_device(c.context, &device); errno != 0 {
		return Limits{}, wrap("query RDMA device", unix.Errno(errno))
	}
	var attributes C.struct_ibv_port_attr
	if errno := C.ibv_query_port(c.context, C.uint8_t(port), &attributes); errno != 0 {
		return Limits{}, wrap("query RDMA port", unix.Errno(errno))
	}
	transport := InfiniBand
	switch {
	case c.context.device.transport_type == C.IBV_TRANSPORT_IWARP:
		transport = IWARP
	case attributes.link_layer == C.IBV_LINK_LAYER_ETHERNET:
		transport = RoCE
	}
	return Limits{
		Transport:     transport,
		QueuePairs:    int(device.max_qp),
		WorkRequests:  int(device.max_qp_wr),
		Segments:      int(device.max_sge),
		Completions:   int(device.max_cqe),
		MemoryRegions: int(device.max_mr),
		RegionBytes:   uint64(device.max_mr_size),
		InboundReads:  int(device.max_qp_rd_atom),
		OutboundReads: int(device.max_qp_init_rd_atom),
		MessageBytes:  uint64(attributes.max_msg_sz),
		PathMTU:       mtuBytes(uint32(attributes.active_mtu)),
		PortActive:    attributes.state == C.IBV_PORT_ACTIVE,
		SoftIWARP:     device.vendor_id == siwVendor,
	}, nil
}

// Path MTUs are encoded from 1 (256 bytes) to 5 (4096 bytes), IBTA volume 1, 9.4.
func mtuBytes(mtu uint32) int          { return 128 << mtu }
func mtuOf(bytes int) (mtu C.uint32_t) { return C.uint32_t(bits.Len(uint(bytes)) - 8) }

// GID returns an entry of the port's GID table. For RoCE, it is an IPv6 or an IPv4-mapped address.
func (c *Context) GID(port uint8, index int) ([16]byte, error) {
	var gid C.union_ibv_gid
	if result, err := C.ibv_query_gid(c.context, C.uint8_t(port), C.int(index), &gid); result != 0 {
		return [16]byte{}, wrap("query GID table", errnoOf(err))
	}
	return *(*[16]byte)(unsafe.Pointer(&gid)), nil
}

// AsyncEvent is an event of a device, a port, or a queue pair (ibv_async_event).
type AsyncEvent struct {
	Type      AsyncEventType
	QueuePair uint32 // number, for events of a queue pair
	Port      uint32 // number, for events of a port
}

// AsyncEventType is an ibv_event_type.
type AsyncEventType uint32

// The asynchronous events that the provider acts on.
const (
	EventCQError        AsyncEventType = C.IBV_EVENT_CQ_ERR
	EventQPFatal        AsyncEventType = C.IBV_EVENT_QP_FATAL
	EventQPRequestError AsyncEventType = C.IBV_EVENT_QP_REQ_ERR
	EventQPAccessError  AsyncEventType = C.IBV_EVENT_QP_ACCESS_ERR
	EventEstablished    AsyncEventType = C.IBV_EVENT_COMM_EST
	EventDeviceFatal    AsyncEventType = C.IBV_EVENT_DEVICE_FATAL
	EventPortError      AsyncEventType = C.IBV_EVENT_PORT_ERR
)

// String returns the symbolic name, or libibverbs's description of an event that is not listed
// above.
func (t AsyncEventType) String() string {
	switch t {
	case EventCQError:
		return "IBV_EVENT_CQ_ERR"
	case EventQPFatal:
		return "IBV_EVENT_QP_FATAL"
	case EventQPRequestError:
		return "IBV_EVENT_QP_REQ_ERR"
	case EventQPAccessError:
		return "IBV_EVENT_QP_ACCESS_ERR"
	case EventEstablished:
		return "IBV_EVENT_COMM_EST"
	case EventDeviceFatal:
		return "IBV_EVENT_DEVICE_FATAL"
	case EventPortError:
		return "IBV_EVENT_PORT_ERR"
	}
	return C.GoString(C.ibv_event_type_str(C.uint32_t(t)))
}

// AsyncDescriptor returns a descriptor that is readable while NextAsyncEvent has an event.
func (c *Context) AsyncDescriptor() int { return int(c.context.async_fd) }

// NextAsyncEvent returns the next event without blocking, and whether there was one.
func (c *Context) NextAsyncEvent() (AsyncEvent, bool, error) {
	var event C.struct_zc_async_event
	errno := unix.Errno(C.zc_next_async_event(c.context, &event))
	switch errno {
	case 0:
		return AsyncEvent{
			Type:      AsyncEventType(event._type),
			QueuePair: uint32(event.queue_pair),
			Port:      uint32(event.port),
		}, true, nil
	case unix.EAGAIN, unix.EINTR:
		return AsyncEvent{}, false, nil
	}
	return AsyncEvent{}, false, wrap("get asynchronous event", errno)
}
