//go:build verbs

package ibv

// #include "shim.h"
import "C"

import "golang.org/x/sys/unix"

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
