// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

// #include "shim.h"
// #cgo noescape zc_poll
// #cgo nocallback zc_poll
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Completion is the outcome of a work request. It holds no pointers, so that Go memory can cross
// into C.
type Completion struct {
	WorkID      uint64
	Status      WorkStatus
	VendorError uint32
	Length      uint32 // bytes received
	_           uint32
}

// Completion has the layout of struct zc_completion.
var _ [unsafe.Sizeof(Completion{})]byte = [C.sizeof_struct_zc_completion]byte{}

// MaxPoll is the most completions that one Poll returns.
const MaxPoll = C.ZC_BATCH

// ackBatch is how many notifications are acknowledged at once, because ibv_ack_cq_events locks a
// mutex.
const ackBatch = 64

// CompletionQueue is an ibv_cq with its own completion channel. Only one thread may use it at a
// time.
type CompletionQueue struct {
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	unacked uint32 // notifications consumed but not acknowledged
}

// NewCompletionQueue creates a completion queue that holds at least capacity completions.
func (c *Context) NewCompletionQueue(capacity int) (*CompletionQueue, error) {
	channel, err := C.ibv_create_comp_channel(c.context)
	if channel == nil {
		return nil, wrap("create completion channel", errnoOf(err))
	}
	if errno := C.zc_set_nonblocking(channel.fd); errno != 0 {
		C.ibv_destroy_comp_channel(channel)
		return nil, wrap("create completion channel", unix.Errno(errno))
	}
	cq, err := C.ibv_create_cq(c.context, C.int(capacity), nil, channel, 0)
	if cq == nil {
		C.ibv_destroy_comp_channel(channel)
		return nil, wrap("create completion queue", errnoOf(err))
	}
	return &CompletionQueue{cq: cq, channel: channel}, nil
}

// Capacity returns how many completions the queue can hold.
func (q *CompletionQueue) Capacity() int { return int(q.cq.cqe) }

// Descriptor returns a descriptor that is readable while a notification is pending.
func (q *CompletionQueue) Descriptor() int { return int(q.channel.fd) }

// Poll fills completions with up to MaxPoll entries and returns their number. It neither allocates
// nor blocks.
func (q *CompletionQueue) Poll(completions []Completion) (int, error) {
	first := (*C.struct_zc_completion)(unsafe.Pointer(unsafe.SliceData(completions)))
	n := int(C.zc_poll(q.cq, first, C.int(len(completions))))
	if n < 0 {
		return 0, wrap("poll completion queue", unix.EIO)
	}
	return n, nil
}

// RequestNotification makes Descriptor readable, once, when the next completion is added to the
// queue.
func (q *CompletionQueue) RequestNotification() error {
	if errno := C.ibv_req_notify_cq(q.cq, 0); errno != 0 {
		return wrap("request completion notification", unix.Errno(errno))
	}
	return nil
}

// ConsumeNotifications consumes the pending notifications and reports whether there were any.
func (q *CompletionQueue) ConsumeNotifications() bool {
	n := uint32(C.zc_consume_cq_events(q.channel))
	q.unacked += n
	if q.unacked >= ackBatch {
		q.acknowledge()
	}
	return n > 0
}

func (q *CompletionQueue) acknowledge() {
	C.ibv_ack_cq_events(q.cq, C.uint(q.unacked))
	q.unacked = 0
}

// Close destroys the queue. libibverbs waits there for the acknowledgement of every consumed
// notification, so Close acknowledges the rest first.
func (q *CompletionQueue) Close() error {
	q.ConsumeNotifications()
	q.acknowledge()
	if errno := C.ibv_destroy_cq(q.cq); errno != 0 {
		return wrap("destroy completion queue", unix.Errno(errno))
	}
	if errno := C.ibv_destroy_comp_channel(q.channel); errno != 0 {
		return wrap("destroy completion channel", unix.Errno(errno))
	}
	return nil
}

// WorkStatus is the status of a completion (ibv_wc_status).
type WorkStatus uint32

// The statuses that the provider distinguishes.
const (
	WorkSuccess              WorkStatus = C.IBV_WC_SUCCESS
	WorkLocalLength          WorkStatus = C.IBV_WC_LOC_LEN_ERR
	WorkLocalQueuePair       WorkStatus = C.IBV_WC_LOC_QP_OP_ERR
	WorkLocalProtection      WorkStatus = C.IBV_WC_LOC_PROT_ERR
	WorkFlushed              WorkStatus = C.IBV_WC_WR_FLUSH_ERR
	WorkBadResponse          WorkStatus = C.IBV_WC_BAD_RESP_ERR
	WorkLocalAccess          WorkStatus = C.IBV_WC_LOC_ACCESS_ERR
	WorkRemoteInvalidRequest WorkStatus = C.IBV_WC_REM_INV_REQ_ERR
	WorkRemoteAccess         WorkStatus = C.IBV_WC_REM_ACCESS_ERR
	WorkRemoteOperation      WorkStatus = C.IBV_WC_REM_OP_ERR
	WorkRetryExceeded        WorkStatus = C.IBV_WC_RETRY_EXC_ERR
	WorkRNRRetryExceeded     WorkStatus = C.IBV_WC_RNR_RETRY_EXC_ERR
	WorkRemoteAborted        WorkStatus = C.IBV_WC_REM_ABORT_ERR
	WorkFatal                WorkStatus = C.IBV_WC_FATAL_ERR
	WorkResponseTimeout      WorkStatus = C.IBV_WC_RESP_TIMEOUT_ERR
	WorkGeneral              WorkStatus = C.IBV_WC_GENERAL_ERR
)

// workStatusNames follows the order of enum ibv_wc_status.
var workStatusNames = [...]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
	"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
	"REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR",
	"REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR",
	"GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
}

// String returns the symbolic name, for example "IBV_WC_SUCCESS".
func (s WorkStatus) String() string {
	if int(s) < len(workStatusNames) {
		return "IBV_WC_" + workStatusNames[s]
	}
	return fmt.Sprintf("IBV_WC_%d", uint32(s))
}
