// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dispatch records a completion from the device with its connection, and delivers all completions
// of the connection that have become known.
func (q *completionQueue) dispatch(w *ibv.Completion) {
	token, index, receive := splitWorkID(w.WorkID)
	slots, slot := *q.slots.Load(), slotOf(token)
	if slot >= len(slots) || slots[slot] == nil || slots[slot].token != token {
		return // left over from a connection that no longer exists
	}
	c := slots[slot]
	c.openIfEstablished()
	if c.phase == phaseClosed {
		return // all its requests have completed as flushed
	}
	outcome := outcomeOf(w.Status)
	opcode, id := rdma.OpReceive, uint64(0)
	switch {
	case receive && c.receives.IsOutstanding(index):
		c.receives.report(index, w.Length, outcome)
		id = c.receives.At(index).id
	case !receive && c.sends.IsOutstanding(index):
		c.sends.report(index, outcome)
		opcode, id = c.sends.At(index).opcode, c.sends.At(index).id
	default:
		return
	}
	if outcome != rdma.StatusSuccess {
		c.requestFailed(opcode, id, w)
	}
	if c.phase != phaseConnecting {
		c.deliver()
	}
}

// requestFailed ends the connection because of a failed request. The failure of a flushed request
// does not show why the connection failed; usually the connection manager is about to report that.
func (c *connection) requestFailed(opcode rdma.Opcode, id uint64, w *ibv.Completion) {
	switch {
	case c.phase == phaseConnecting: // the handshake still uses the queue pair
		c.earlyFailure = workError(opcode, id, w)
	case c.phase != phaseOpen:
	case w.Status == ibv.WorkFlushed:
		c.beginClose(c.disconnectReason())
	default:
		c.beginClose(workError(opcode, id, w))
	}
}

// deliver queues the completions of all requests whose outcome is known.
func (c *connection) deliver() {
	for e := c.sends.next(); e != nil; e = c.sends.next() {
		c.completeSend(e)
	}
	for e := c.receives.next(); e != nil; e = c.receives.next() {
		c.completeReceive(e)
	}
}

// outcomeOf converts the status of a completion from the device.
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

// workError describes a failed request. It gives the status, its usual cause, and what to do.
func workError(opcode rdma.Opcode, id uint64, w *ibv.Completion) error {
	cause := workCauses[w.Status]
	if cause == "" {
		cause = "see `man ibv_poll_cq`"
	}
	return status.Errorf(outcomeOf(w.Status).Code(), "%v %#x failed with %v (vendor error %#x): %s",
		opcode, id, w.Status, w.VendorError, cause)
}

// workCauses holds the usual cause of each failure.
var workCauses = map[ibv.WorkStatus]string{
	ibv.WorkLocalLength:          "the message is too long for its buffer or the device",
	ibv.WorkLocalProtection:      "the local memory was deregistered, or forbids the access",
	ibv.WorkLocalAccess:          "the local memory was deregistered, or forbids the access",
	ibv.WorkLocalQueuePair:       "the link is down, or the queue pair cannot execute the request",
	ibv.WorkBadResponse:          "the peer's device sent an unexpected response",
	ibv.WorkRemoteInvalidRequest: "the peer does not support the request, or such a long message",
	ibv.WorkRemoteAccess: "the peer's memory is too short, was deregistered, or forbids the " +
		"access",
	ibv.WorkRemoteOperation: "the peer's device could not execute the request",
	ibv.WorkRetryExceeded: "the peer does not acknowledge: it is down, the network drops " +
		"packets, or the two sides differ in path MTU or RoCE version",
	ibv.WorkRNRRetryExceeded: "the peer has posted no receive",
	ibv.WorkRemoteAborted:    "the peer aborted the request",
	ibv.WorkFatal:            "the device has failed: check the kernel log",
	ibv.WorkResponseTimeout:  "the peer does not respond",
	ibv.WorkGeneral:          "the driver reports no reason: check the kernel log",
}
