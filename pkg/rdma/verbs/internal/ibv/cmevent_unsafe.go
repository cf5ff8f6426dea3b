//go:build verbs

package ibv

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// Next takes one event without blocking; false if there is none.
func (c *Channel) Next() (CMEvent, bool, error) {
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
