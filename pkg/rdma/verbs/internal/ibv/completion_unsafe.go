//go:build verbs

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

// Completion is the outcome of a work request, as plain data.
type Completion struct {
	WorkID      uint64
	Status      WorkStatus
	VendorError uint32
	Length      uint32 // received bytes
	_           uint32
}

// The layout is that of struct zc_completion.
var _ [unsafe.Sizeof(Completion{})]byte = [C.sizeof_struct_zc_completion]byte{}

// MaxPoll is how many completions one Poll takes at most.
const MaxPoll = C.ZC_BATCH

// ackBatch is how many notifications are acknowledged at once: each
// acknowledgement takes a mutex (ibv_ack_cq_events).
const ackBatch = 64

// CompletionQueue is an ibv_cq with a completion channel of its own. It
// belongs to one thread.
type CompletionQueue struct {
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	unacked uint32
}

// NewCompletionQueue makes a completion queue for at least that many
// completions.
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

// Capacity is how many completions the queue holds.
func (q *CompletionQueue) Capacity() int { return int(q.cq.cqe) }

// Descriptor is readable when a notification that was requested has come.
func (q *CompletionQueue) Descriptor() int { return int(q.channel.fd) }

// Poll takes completions, at most MaxPoll. It does not allocate and does not
// block.
func (q *CompletionQueue) Poll(completions []Completion) (int, error) {
	first := (*C.struct_zc_completion)(unsafe.Pointer(unsafe.SliceData(completions)))
	n := int(C.zc_poll(q.cq, first, C.int(len(completions))))
	if n < 0 {
		return 0, wrap("poll completion queue", unix.EIO)
	}
	return n, nil
}

// RequestNotification makes the next completion that is added to the queue
// make Descriptor readable, once.
func (q *CompletionQueue) RequestNotification() error {
	if errno := C.zc_request_notification(q.cq); errno != 0 {
		return wrap("request completion notification", unix.Errno(errno))
	}
	return nil
}

// ConsumeNotifications consumes what made Descriptor readable and reports
// whether there was anything.
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

// Close destroys the queue, which waits until all notifications that were
// taken are acknowledged.
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

// WorkStatus is an ibv_wc_status.
type WorkStatus uint32

// The outcomes of work that are told apart.
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

// workStatusNames are in the order of enum ibv_wc_status.
var workStatusNames = [...]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
	"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
	"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
	"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
}

// String returns the symbolic name.
func (s WorkStatus) String() string {
	if int(s) < len(workStatusNames) {
		return "IBV_WC_" + workStatusNames[s]
	}
	return fmt.Sprintf("IBV_WC_%d", uint32(s))
}
