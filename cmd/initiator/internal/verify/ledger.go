// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"errors"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ledger records for each block of a slice, in four bytes, its expected content and whether a
// request is in flight to it.
type ledger []uint32

const (
	busyBit      = 1 << 31
	markBit      = 1 << 30 // flips with every step that has visited the block
	doubtBit     = 1 << 29 // the target may have lost the last write
	generationOf = doubtBit - 1
)

// unknown is the generation of a block with unknown content: it has not been written yet, or a
// write to it has failed.
const unknown = 0

func (l ledger) generation(block uint64) uint32 { return l[block] & generationOf }

func (l ledger) busy(block uint64) bool { return l[block]&busyBit != 0 }

// visited reports whether the step with this mark has visited the block.
func (l ledger) visited(block uint64, mark uint32) bool { return l[block]&markBit == mark }

// claim marks blocks as busy, so that no other request touches them, and as visited by the step
// with this mark.
func (l ledger) claim(first, count uint64, mark uint32) {
	for i := first; i < first+count; i++ {
		l[i] = l[i]&(generationOf|doubtBit) | busyBit | mark
	}
}

// borrow marks blocks as busy without visiting them.
func (l ledger) borrow(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] |= busyBit
	}
}

// release ends claim or borrow.
func (l ledger) release(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] &^= busyBit
	}
}

// set records the content of a block.
func (l ledger) set(block uint64, generation uint32) {
	l[block] = l[block]&^uint32(generationOf|doubtBit) | generation
}

// doubt records that the last write to a block may be lost.
func (l ledger) doubt(block uint64) { l[block] |= doubtBit }

func (l ledger) doubtful(block uint64) bool { return l[block]&doubtBit != 0 }

// free counts the blocks from first on, at most limit, that are not busy and,
// unless mark is noMark, not visited.
func (l ledger) free(first, limit uint64, mark uint32) uint64 {
	count := uint64(0)
	for count < limit && first+count < uint64(len(l)) {
		block := first + count
		if l.busy(block) || (mark != noMark && l.visited(block, mark)) {
			break
		}
		count++
	}
	return count
}

// noMark differs from the mark of every step.
const noMark = ^uint32(0)

// losses tracks the blocks of a slice that a restart of the target may revert. A write is durable
// once a flush has succeeded that was submitted after the write's acknowledgement. A restarted
// target has a new write verifier; then the next flush must fail, and until a block has been read
// again it may hold either the last write or the durable content.
type losses struct {
	durable      []uint32 // flushed generation of each block
	verifier     uint64   // of the queue's session, when last checked
	acknowledged uint64   // writes
	flushed      uint64   // how many of them this queue has flushed
	due          bool     // the next flush must report a loss

	// flushes counts the flushes that all threads have submitted, and flushesBefore is its value
	// when a write was last acknowledged: a flush on another queue makes that write durable as
	// well.
	flushes       *atomic.Uint64
	flushesBefore uint64
}

func newLosses(blocks, verifier uint64, flushes *atomic.Uint64) *losses {
	return &losses{durable: make([]uint32, blocks), verifier: verifier, flushes: flushes}
}

// written records an acknowledged write.
func (l *losses) written() {
	l.acknowledged++
	l.flushesBefore = l.flushes.Load()
}

// noticeRestart checks whether the queue has switched to a session with a restarted target. By
// then, everything from earlier sessions has completed.
func (w *worker) noticeRestart() {
	if w.losses == nil {
		return
	}
	verifier := w.queue.WriteVerifier()
	if verifier == w.losses.verifier {
		return
	}
	w.losses.verifier = verifier
	if w.losses.acknowledged == w.losses.flushed {
		return
	}
	w.losses.flushed = w.losses.acknowledged
	w.losses.due = w.losses.due || w.losses.flushesBefore == w.losses.flushes.Load()
	for block, durable := range w.losses.durable {
		if generation := w.planner.ledger.generation(uint64(block)); generation != unknown &&
			generation != durable {
			w.planner.ledger.doubt(uint64(block))
		}
	}
}

// submitRequest submits the request prepared for op. It resubmits a flush that fails to report a
// loss.
func (w *worker) submitRequest(op *operation) error {
	if w.losses == nil || op.kind != client.Flush {
		return w.queue.Submit(&w.request)
	}
	err := w.queue.Submit(&w.request)
	w.noticeRestart()
	defer w.losses.flushes.Add(1)              // before its result can arrive
	for errors.Is(err, client.ErrWritesLost) { // once for each loss; another may follow at once
		w.tally.lossesReported++
		w.losses.due = false
		err = w.queue.Submit(&w.request)
		w.noticeRestart()
	}
	if err == nil && w.losses.due {
		w.losses.due = false
		return status.Errorf(status.Unexpected,
			"the target restarted with unflushed writes, and the next flush did not report it")
	}
	op.cover = w.losses.acknowledged
	return err
}

// flushed records a successful flush. The flush at the end of a pass, when nothing else is
// outstanding, makes the whole slice durable.
func (w *worker) flushed(op *operation) {
	w.tally.flushes++
	if w.losses == nil {
		return
	}
	w.losses.flushed = max(w.losses.flushed, op.cover)
	if w.planner.step != flushing {
		return
	}
	for block := range w.losses.durable {
		if !w.planner.ledger.doubtful(uint64(block)) {
			w.losses.durable[block] = w.planner.ledger.generation(uint64(block))
		}
	}
}

// settleDoubt checks a block whose last write may be lost. It returns false if the block holds
// neither that write nor the durable content. Once everything has been flushed, the content found
// is the expected content from then on.
func (w *worker) settleDoubt(block uint64, content []byte) bool {
	durable := w.losses.durable[block]
	generation := w.planner.ledger.generation(block)
	kept := w.identity(block, generation).holds(content)
	if !kept && durable != unknown && !w.identity(block, durable).holds(content) {
		return false
	}
	if w.planner.step != reading {
		return true
	}
	if !kept {
		w.tally.lostBlocks++
		generation = durable
	}
	w.planner.ledger.set(block, generation)
	w.losses.durable[block] = generation
	return true
}
