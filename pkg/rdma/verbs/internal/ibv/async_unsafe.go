//go:build verbs

package ibv

// #include "shim.h"
import "C"

import "golang.org/x/sys/unix"

// AsyncEvent is something that happened to a device, a port or a queue pair.
type AsyncEvent struct {
	Type      AsyncEventType
	QueuePair uint32 // its number, if the event is about one
	Port      uint32 // its number, if the event is about one
}

// AsyncEventType is an ibv_event_type.
type AsyncEventType uint32

// The asynchronous events that somebody acts on.
const (
	EventCQError        AsyncEventType = C.IBV_EVENT_CQ_ERR
	EventQPFatal        AsyncEventType = C.IBV_EVENT_QP_FATAL
	EventQPRequestError AsyncEventType = C.IBV_EVENT_QP_REQ_ERR
	EventQPAccessError  AsyncEventType = C.IBV_EVENT_QP_ACCESS_ERR
	EventEstablished    AsyncEventType = C.IBV_EVENT_COMM_EST
	EventDeviceFatal    AsyncEventType = C.IBV_EVENT_DEVICE_FATAL
	EventPortError      AsyncEventType = C.IBV_EVENT_PORT_ERR
)

// String returns the symbolic name.
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
	return C.GoString(C.ibv_event_type_str(uint32(t)))
}

// AsyncDescriptor is readable when NextAsyncEvent has something.
func (c *Context) AsyncDescriptor() int { return int(c.context.async_fd) }

// NextAsyncEvent takes one event without blocking; false if there is none.
func (c *Context) NextAsyncEvent() (AsyncEvent, bool, error) {
	var event C.struct_zc_async_event
	errno := unix.Errno(C.zc_next_async_event(c.context, &event))
	switch errno {
	case 0:
		return AsyncEvent{
			Type: AsyncEventType(event._type), QueuePair: uint32(event.queue_pair), Port: uint32(event.port),
		}, true, nil
	case unix.EAGAIN, unix.EINTR:
		return AsyncEvent{}, false, nil
	}
	return AsyncEvent{}, false, wrap("get asynchronous event", errno)
}
