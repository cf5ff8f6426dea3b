//go:build verbs

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// outcomeOf translates the status of a work completion.
func outcomeOf(s ibv.WorkStatus) rdma.CompletionStatus {
	switch s {
	case ibv.WorkSuccess:
		return rdma.StatusSuccess
	case ibv.WorkFlushed:
		return rdma.StatusFlushed
	case ibv.WorkLocalLength:
		return rdma.StatusLocalLength
	case ibv.WorkLocalProtection, ibv.WorkLocalAccess, ibv.WorkLocalQueuePair:
		return rdma.StatusLocalProtection
	case ibv.WorkRemoteAccess:
		return rdma.StatusRemoteAccess
	case ibv.WorkRemoteOperation, ibv.WorkRemoteInvalidRequest, ibv.WorkRemoteAborted:
		return rdma.StatusRemoteOperation
	case ibv.WorkRetryExceeded, ibv.WorkRNRRetryExceeded, ibv.WorkResponseTimeout:
		return rdma.StatusRetryExceeded
	}
	return rdma.StatusFatal
}

// workRemedies say what the outcomes usually mean and what to do about them.
var workRemedies = map[ibv.WorkStatus]string{
	ibv.WorkLocalLength:          "a message is longer than its buffer, or than the device allows",
	ibv.WorkLocalProtection:      "the memory was deregistered or lacks the right",
	ibv.WorkLocalAccess:          "the memory was deregistered or lacks the right",
	ibv.WorkLocalQueuePair:       "the device could not carry out the request: the link may be down, or the request does not suit the queue pair",
	ibv.WorkBadResponse:          "the peer's device answered something unexpected",
	ibv.WorkRemoteInvalidRequest: "the peer has no room for a message of this length, or does not take such requests",
	ibv.WorkRemoteAccess:         "the peer's memory was deregistered, is shorter, or may not be accessed like this",
	ibv.WorkRemoteOperation:      "the peer's device could not carry out the request",
	ibv.WorkRetryExceeded: "the peer does not acknowledge: it is gone, the network drops packets, " +
		"or path MTU or RoCE version differ on the two sides",
	ibv.WorkRNRRetryExceeded: "the peer has posted no receive",
	ibv.WorkRemoteAborted:    "the peer aborted the request",
	ibv.WorkFatal:            "the device has failed: see the kernel's log",
	ibv.WorkResponseTimeout:  "the peer does not answer",
	ibv.WorkGeneral:          "the driver gives no reason: see the kernel's log",
}

// workError describes a request that failed.
func workError(opcode rdma.Opcode, id uint64, w *ibv.Completion) error {
	remedy := workRemedies[w.Status]
	if remedy == "" {
		remedy = "see the manual of ibv_poll_cq"
	}
	return status.Errorf(outcomeOf(w.Status).Code(), "%v %#x failed with %v (vendor error %#x): %s", opcode, id, w.Status, w.VendorError, remedy)
}
