// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// sendEntry is a posted Send, Write, or Read.
type sendEntry struct {
	id     uint64
	opcode rdma.Opcode
	silent bool
	done   bool // the device has reported the outcome
	status rdma.CompletionStatus
}

// sendRing mirrors the device's send queue.
type sendRing struct {
	workqueue.Queue[sendEntry]
	// reported is the index after the latest request whose outcome the device has reported. Silent
	// requests before it have succeeded, except Reads.
	reported uint32
}

// report records the outcome of a request. Devices report in posting order, except siw, which
// reports requests that follow a Read before the Read.
func (r *sendRing) report(index uint32, outcome rdma.CompletionStatus) {
	e := r.At(index)
	e.done, e.status = true, outcome
	if isBefore(r.reported, index+1) {
		r.reported = index + 1
	}
}

// isBefore compares indices that are less than 2^31 apart.
func isBefore(a, b uint32) bool { return int32(a-b) < 0 }

// next returns the oldest request, which the caller completes, if its outcome is known, else nil.
// The entry is valid until the next request is posted.
func (r *sendRing) next() *sendEntry {
	if r.Head == r.Tail || !r.hasOutcome(r.At(r.Head)) {
		return nil
	}
	return r.At(r.Head)
}

// nextFlushed returns the oldest request, which the caller completes, or nil if the ring is empty.
// If the outcome is unknown, it becomes StatusFlushed.
func (r *sendRing) nextFlushed() *sendEntry {
	if r.Head == r.Tail {
		return nil
	}
	e := r.At(r.Head)
	if !r.hasOutcome(e) {
		e.done, e.status = true, rdma.StatusFlushed
	}
	return e
}

// hasOutcome reports whether the outcome of the oldest request is known. A silent request has
// succeeded once the device reports a later one. That does not hold for Reads, which are therefore
// always posted to the device as signaled.
func (r *sendRing) hasOutcome(oldest *sendEntry) bool {
	return oldest.done ||
		oldest.silent && oldest.opcode != rdma.OpRead && isBefore(r.Head, r.reported)
}

// receiveEntry is a posted receive.
type receiveEntry struct {
	id     uint64
	length uint32 // bytes received
	done   bool   // the device has reported the outcome
	status rdma.CompletionStatus
}

// receiveRing mirrors the device's receive queue.
type receiveRing struct{ workqueue.Queue[receiveEntry] }

// report records the outcome of a receive.
func (r *receiveRing) report(index, length uint32, outcome rdma.CompletionStatus) {
	e := r.At(index)
	e.done, e.length, e.status = true, length, outcome
}

// next returns the oldest receive, which the caller completes, if its outcome is known, else nil.
func (r *receiveRing) next() *receiveEntry {
	if r.Head == r.Tail || !r.At(r.Head).done {
		return nil
	}
	return r.At(r.Head)
}

// nextFlushed returns the oldest receive, which the caller completes, or nil if the ring is empty.
// If the outcome is unknown, it becomes StatusFlushed.
func (r *receiveRing) nextFlushed() *receiveEntry {
	if r.Head == r.Tail {
		return nil
	}
	e := r.At(r.Head)
	if !e.done {
		e.length, e.status = 0, rdma.StatusFlushed
	}
	return e
}

// A work ID identifies a request to the device: bit 63 says which ring it is in, the next 31 bits
// are the token of its connection, and the low 32 bits are its index. A token combines the
// connection's slot in the completion queue with a generation, so that a completion for a
// connection that no longer exists is recognized.
const (
	slotBits       = 16
	maxSlots       = 1 << slotBits
	maxGeneration  = 1<<15 - 1
	tokenShift     = 32
	receiveWorkBit = 1 << 63
)

func newToken(slot int, generation uint32) uint32 {
	return uint32(slot) | (generation&maxGeneration)<<slotBits
}

func slotOf(token uint32) int { return int(token & (maxSlots - 1)) }

func sendWorkID(token, index uint32) uint64 { return uint64(token)<<tokenShift | uint64(index) }

func receiveWorkID(token, index uint32) uint64 { return receiveWorkBit | sendWorkID(token, index) }

func splitWorkID(id uint64) (token, index uint32, receive bool) {
	return uint32(id&^receiveWorkBit>>tokenShift) & (1<<31 - 1), uint32(id), id&receiveWorkBit != 0
}
