// SPDX-License-Identifier: Apache-2.0

//go:build cgo

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

// SendWork is a work request for the send queue. It holds no pointers, so that Go memory can cross
// into C.
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

// ReceiveWork is a work request for the receive queue, pointer-free like SendWork.
type ReceiveWork struct {
	WorkID   uint64
	Address  uint64
	Length   uint32
	LocalKey uint32
}

// The types have the layouts of struct zc_send and struct zc_receive.
var (
	_ [unsafe.Sizeof(SendWork{})]byte    = [C.sizeof_struct_zc_send]byte{}
	_ [unsafe.Sizeof(ReceiveWork{})]byte = [C.sizeof_struct_zc_receive]byte{}
)

// WorkOpcode is the operation of a send work request (ibv_wr_opcode).
type WorkOpcode uint16

// The operations that the provider posts.
const (
	WorkSend  WorkOpcode = C.IBV_WR_SEND
	WorkWrite WorkOpcode = C.IBV_WR_RDMA_WRITE
	WorkRead  WorkOpcode = C.IBV_WR_RDMA_READ
)

// SendFlags is a set of ibv_send_flags.
type SendFlags uint16

// The flags that the provider sets.
const (
	// Signaled requests a completion even on success.
	Signaled SendFlags = C.IBV_SEND_SIGNALED
	// Inline copies the bytes into the request, so that the device need not fetch them.
	Inline SendFlags = C.IBV_SEND_INLINE
)

// QueuePairConfig gives a queue pair its completion queue and sizes.
type QueuePairConfig struct {
	Queue           *CompletionQueue
	SendRequests    int
	ReceiveRequests int
	InlineBytes     int // requested; QueuePair.InlineBytes holds the actual limit
}

// QueuePair is a reliably connected ibv_qp. Only one thread may call its post methods at a time.
type QueuePair struct {
	qp *C.struct_ibv_qp
	// InlineBytes is the most bytes that a work request with the flag Inline may have.
	InlineBytes int
}

// NewQueuePair creates a queue pair. If the device cannot inline as much as requested, the queue
// pair inlines nothing.
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
	inline := min(config.InlineBytes, int(attributes.cap.max_inline_data))
	return &QueuePair{qp: qp, InlineBytes: inline}, nil
}

// Number returns the number that identifies the queue pair on its device.
func (q *QueuePair) Number() uint32 { return uint32(q.qp.qp_num) }

// PostSend posts requests in order, as one chain. It does not allocate. If it fails, the requests
// before the offending one have been posted.
func (q *QueuePair) PostSend(work []SendWork) error {
	first := (*C.struct_zc_send)(unsafe.Pointer(unsafe.SliceData(work)))
	if errno := C.zc_post_send(q.qp, first, C.int(len(work))); errno != 0 {
		return wrap("post to send queue", unix.Errno(errno))
	}
	return nil
}

// PostReceive posts receives in order. It does not allocate. If it fails, the receives before the
// offending one have been posted.
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

// Destroy destroys the queue pair. When it returns, the device no longer touches memory on its
// behalf, and requests that have not completed never will.
func (q *QueuePair) Destroy() error {
	if errno := C.ibv_destroy_qp(q.qp); errno != 0 {
		return wrap("destroy queue pair", unix.Errno(errno))
	}
	return nil
}

// QueuePairSettings holds the attributes of a queue pair that the connection manager does not
// negotiate.
type QueuePairSettings struct {
	InboundReads  int // outstanding RDMA Reads to serve
	OutboundReads int // outstanding RDMA Reads to issue
	PathMTU       int // bytes; 0 keeps the route's
	// AckTimeout is the exponent of the acknowledgement timeout: 4.096 µs × 2^AckTimeout (IBTA
	// volume 1, 9.7.6.1.3).
	AckTimeout    uint8
	RetryCount    uint8
	RNRRetryCount uint8
	// MinRNRTimer encodes how long a peer pauses when its message finds no receive (IBTA volume 1,
	// table 45).
	MinRNRTimer uint8
}

// peerAccess holds the kinds of access that the queue pair allows to peers; each memory region
// restricts them further.
const peerAccess = C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_REMOTE_READ

// Initialize moves a new queue pair to INIT, where receives can be posted.
func (q *QueuePair) Initialize(id *ID) error {
	attributes, mask, err := id.queuePairAttributes(C.IBV_QPS_INIT)
	if err != nil {
		return err
	}
	attributes.qp_access_flags = peerAccess
	return q.modify("INIT", &attributes, mask)
}

// MakeReady moves a queue pair to RTS, with the attributes that the connection manager has for the
// peer. It passes through INIT, which sets the access rights, and RTR. MakeReady returns the index
// of the local GID, or -1 if the transport has none.
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
		return wrap("move queue pair to "+state, unix.Errno(errno))
	}
	return nil
}

// queuePairAttributes returns the connection manager's attributes for the transition to state, and
// which of them to set.
func (i *ID) queuePairAttributes(state uint32) (C.struct_ibv_qp_attr, C.int, error) {
	var attributes C.struct_ibv_qp_attr
	var mask C.int
	attributes.qp_state = C.uint32_t(state)
	if result, err := C.rdma_init_qp_attr(i.id, &attributes, &mask); result != 0 {
		return attributes, 0, wrap("get queue pair attributes", errnoOf(err))
	}
	return attributes, mask, nil
}
