//go:build verbs

package ibv

// #include "shim.h"
// #cgo noescape zc_post_send
// #cgo nocallback zc_post_send
// #cgo noescape zc_post_receive
// #cgo nocallback zc_post_receive
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendWork is a request for the send queue, as plain data.
type SendWork struct {
	WorkID        uint64
	Address       uint64
	RemoteAddress uint64
	Length        uint32
	LocalKey      uint32
	RemoteKey     uint32
	Opcode        WorkOpcode
	Flags         SendFlags
}

// ReceiveWork is a request for the receive queue, as plain data.
type ReceiveWork struct {
	WorkID   uint64
	Address  uint64
	Length   uint32
	LocalKey uint32
}

// The layouts are those of struct zc_send and struct zc_receive.
var (
	_ [unsafe.Sizeof(SendWork{})]byte    = [C.sizeof_struct_zc_send]byte{}
	_ [unsafe.Sizeof(ReceiveWork{})]byte = [C.sizeof_struct_zc_receive]byte{}
)

// WorkOpcode is an ibv_wr_opcode.
type WorkOpcode uint16

// The operations of the send queue.
const (
	WorkSend  WorkOpcode = C.IBV_WR_SEND
	WorkWrite WorkOpcode = C.IBV_WR_RDMA_WRITE
	WorkRead  WorkOpcode = C.IBV_WR_RDMA_READ
)

// SendFlags are ibv_send_flags.
type SendFlags uint16

// The flags of send work.
const (
	// Signaled asks for a completion also on success.
	Signaled SendFlags = C.IBV_SEND_SIGNALED
	// Inline takes the bytes while posting, so that the device need not fetch
	// them.
	Inline SendFlags = C.IBV_SEND_INLINE
)

// QueuePairConfig sizes a queue pair.
type QueuePairConfig struct {
	Queue           *CompletionQueue
	SendRequests    int
	ReceiveRequests int
	InlineBytes     int // a wish, see QueuePair.InlineBytes
}

// QueuePair is a reliable connected ibv_qp. Its post methods belong to one
// thread.
type QueuePair struct {
	qp *C.struct_ibv_qp
	// InlineBytes is how long a message with the flag Inline may be.
	InlineBytes int
}

// NewQueuePair makes a queue pair. If the device cannot inline as much as was
// wished, it inlines nothing.
func (d *ProtectionDomain) NewQueuePair(config QueuePairConfig) (*QueuePair, error) {
	attributes := C.struct_ibv_qp_init_attr{
		send_cq: config.Queue.cq,
		recv_cq: config.Queue.cq,
		qp_type: C.IBV_QPT_RC,
		cap: C.struct_ibv_qp_cap{
			max_send_wr:     C.uint32_t(config.SendRequests),
			max_recv_wr:     C.uint32_t(config.ReceiveRequests),
			max_send_sge:    1,
			max_recv_sge:    1,
			max_inline_data: C.uint32_t(config.InlineBytes),
		},
	}
	qp, err := C.ibv_create_qp(d.pd, &attributes)
	if qp == nil && config.InlineBytes > 0 {
		config.InlineBytes = 0
		return d.NewQueuePair(config)
	}
	if qp == nil {
		return nil, wrap("create queue pair", errnoOf(err))
	}
	return &QueuePair{qp: qp, InlineBytes: min(config.InlineBytes, int(attributes.cap.max_inline_data))}, nil
}

// Number names the queue pair on its device.
func (q *QueuePair) Number() uint32 { return uint32(q.qp.qp_num) }

// PostSend posts requests in order, as one chain. It does not allocate.
func (q *QueuePair) PostSend(work []SendWork) error {
	first := (*C.struct_zc_send)(unsafe.Pointer(unsafe.SliceData(work)))
	if errno := C.zc_post_send(q.qp, first, C.int(len(work))); errno != 0 {
		return wrap("post to send queue", unix.Errno(errno))
	}
	return nil
}

// PostReceive posts receives in order. It does not allocate.
func (q *QueuePair) PostReceive(work []ReceiveWork) error {
	first := (*C.struct_zc_receive)(unsafe.Pointer(unsafe.SliceData(work)))
	if errno := C.zc_post_receive(q.qp, first, C.int(len(work))); errno != 0 {
		return wrap("post to receive queue", unix.Errno(errno))
	}
	return nil
}

// Failed reports whether the queue pair is in the error state.
func (q *QueuePair) Failed() (bool, error) {
	var attributes C.struct_ibv_qp_attr
	var initial C.struct_ibv_qp_init_attr
	if errno := C.ibv_query_qp(q.qp, &attributes, C.IBV_QP_STATE, &initial); errno != 0 {
		return false, wrap("query queue pair", unix.Errno(errno))
	}
	return attributes.qp_state == C.IBV_QPS_ERR, nil
}

// Destroy destroys the queue pair. When it returns, the device touches no
// memory on its behalf any more. Requests that have not completed never will.
func (q *QueuePair) Destroy() error {
	if errno := C.ibv_destroy_qp(q.qp); errno != 0 {
		return wrap("destroy queue pair", unix.Errno(errno))
	}
	return nil
}

// QueuePairSettings are what a connection's queue pair is set to beyond what
// the connection manager has negotiated.
type QueuePairSettings struct {
	InboundReads  int
	OutboundReads int
	// PathMTU in bytes replaces that of the route, if it is not 0.
	PathMTU int
	// AckTimeout is the exponent of the time to wait for an acknowledgement:
	// 4.096 µs × 2^AckTimeout (IBTA volume 1, 9.7.6.1.3).
	AckTimeout    uint8
	RetryCount    uint8
	RNRRetryCount uint8
	// MinRNRTimer is the code of the pause that a peer is asked to make when
	// no receive is posted (IBTA volume 1, table 45).
	MinRNRTimer uint8
}

// connectionRights are what peers may do to memory that allows it.
const connectionRights = C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ

// Initialize takes a new queue pair to INIT, where receives can be posted.
func (q *QueuePair) Initialize(id *ID) error {
	attributes, mask, err := id.queuePairAttributes(C.IBV_QPS_INIT)
	if err != nil {
		return err
	}
	attributes.qp_access_flags = connectionRights
	return q.modify("INIT", &attributes, mask)
}

// MakeReady takes a queue pair to RTS with what the connection manager knows
// of the peer, by way of INIT, where its rights are set, and RTR. It returns
// the index of the local GID, or -1 if the transport has none.
func (q *QueuePair) MakeReady(id *ID, settings *QueuePairSettings) (gidIndex int, err error) {
	if err := q.Initialize(id); err != nil {
		return -1, err
	}
	attributes, mask, err := id.queuePairAttributes(C.IBV_QPS_RTR)
	if err != nil {
		return -1, err
	}
	gidIndex = -1
	if mask&C.IBV_QP_AV != 0 && attributes.ah_attr.is_global != 0 {
		gidIndex = int(attributes.ah_attr.grh.sgid_index)
	}
	if settings.PathMTU != 0 && mask&C.IBV_QP_PATH_MTU != 0 {
		attributes.path_mtu = mtuOf(settings.PathMTU)
	}
	attributes.max_dest_rd_atomic = C.uint8_t(settings.InboundReads)
	attributes.min_rnr_timer = C.uint8_t(settings.MinRNRTimer)
	if err := q.modify("RTR", &attributes, mask); err != nil {
		return -1, err
	}
	if attributes, mask, err = id.queuePairAttributes(C.IBV_QPS_RTS); err != nil {
		return -1, err
	}
	attributes.max_rd_atomic = C.uint8_t(settings.OutboundReads)
	attributes.timeout = C.uint8_t(settings.AckTimeout)
	attributes.retry_cnt = C.uint8_t(settings.RetryCount)
	attributes.rnr_retry = C.uint8_t(settings.RNRRetryCount)
	return gidIndex, q.modify("RTS", &attributes, mask)
}

func (q *QueuePair) modify(state string, attributes *C.struct_ibv_qp_attr, mask C.int) error {
	if errno := C.ibv_modify_qp(q.qp, attributes, mask); errno != 0 {
		return wrap("take queue pair to "+state, unix.Errno(errno))
	}
	return nil
}

// queuePairAttributes asks the connection manager how to get to a state.
func (i *ID) queuePairAttributes(state uint32) (C.struct_ibv_qp_attr, C.int, error) {
	var attributes C.struct_ibv_qp_attr
	var mask C.int
	attributes.qp_state = state
	if result, err := C.rdma_init_qp_attr(i.id, &attributes, &mask); result != 0 {
		return attributes, 0, wrap("get queue pair attributes", errnoOf(err))
	}
	return attributes, mask, nil
}
