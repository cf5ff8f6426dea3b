package verify

import (
	"errors"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ledger knows of each block of a slice, in four bytes, what it must hold and
// whether a request is under way to it.
type ledger []uint32

const (
	busyBit      = 1 << 31
	markBit      = 1 << 30 // flips with every step that has visited the block
	doubtBit     = 1 << 29 // the target may have lost the last write
	generationOf = doubtBit - 1
)

// unknown is the generation of a block whose content nobody knows: it was not
// written yet, or a write to it has failed.
const unknown = 0

func (l ledger) generation(block uint64) uint32 { return l[block] & generationOf }

func (l ledger) busy(block uint64) bool { return l[block]&busyBit != 0 }

// visited reports whether the step with this mark has visited the block.
func (l ledger) visited(block uint64, mark uint32) bool { return l[block]&markBit == mark }

// claim makes blocks busy, so that no other request touches them, and visited
// by the step with this mark.
func (l ledger) claim(first, count uint64, mark uint32) {
	for i := first; i < first+count; i++ {
		l[i] = l[i]&(generationOf|doubtBit) | busyBit | mark
	}
}

// borrow makes blocks busy without visiting them.
func (l ledger) borrow(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] |= busyBit
	}
}

// release ends what claim or borrow began.
func (l ledger) release(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] &^= busyBit
	}
}

// set notes what a block holds.
func (l ledger) set(block uint64, generation uint32) {
	l[block] = l[block]&^uint32(generationOf|doubtBit) | generation
}

// doubt notes that the last write to a block may be lost.
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

// noMark is the mark of no step.
const noMark = ^uint32(0)

// losses follows which blocks of a slice a restart of the target may undo: a
// write is safe when a flush that was submitted after its acknowledgement has
// succeeded. A target that has restarted has another write verifier; then the
// next flush must fail, and until a block has been read again it may hold
// either what was written last or what is durable.
type losses struct {
	durable      []uint32 // for each block the generation that was flushed
	verifier     uint64   // that the queue's session had when last looked at
	acknowledged uint64   // writes
	flushed      uint64   // of them, by this queue's flushes
	due          bool     // the next flush must tell of a loss

	// flushes counts those that any thread has submitted, and flushesBefore
	// is their number when a write was last acknowledged: the flush of another
	// queue saves it as well.
	flushes       *atomic.Uint64
	flushesBefore uint64
}

func newLosses(blocks, verifier uint64, flushes *atomic.Uint64) *losses {
	return &losses{durable: make([]uint32, blocks), verifier: verifier, flushes: flushes}
}

// written takes note of an acknowledged write.
func (l *losses) written() {
	l.acknowledged++
	l.flushesBefore = l.flushes.Load()
}

// noticeRestart looks whether the queue has gone over to a session with a
// target that has restarted. Everything from sessions before has been
// completed by then.
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
		if generation := w.planner.ledger.generation(uint64(block)); generation != unknown && generation != durable {
			w.planner.ledger.doubt(uint64(block))
		}
	}
}

// submitTold submits the request that has been made for op. A flush that fails
// to tell of a loss is submitted again.
func (w *worker) submitTold(op *operation) error {
	if w.losses == nil || op.kind != iomsg.Flush {
		return w.queue.Submit(&w.request)
	}
	err := w.queue.Submit(&w.request)
	w.noticeRestart()
	defer w.losses.flushes.Add(1) // before its result can be known
	if errors.Is(err, client.ErrWritesLost) {
		w.tally.lossesTold++
		w.losses.due = false
		err = w.queue.Submit(&w.request)
		w.noticeRestart()
	}
	if err == nil && w.losses.due {
		w.losses.due = false
		return status.Errorf(status.Unexpected, "the target has restarted while writes were not flushed, and the next flush does not tell")
	}
	op.cover = w.losses.acknowledged
	return err
}

// flushed takes note of a flush that has succeeded. The one at the end of a
// pass, when nothing else is outstanding, makes the whole slice durable.
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

// settleDoubt looks at a block whose last write may be lost. It returns false
// if the block is neither that nor what is durable. Once everything is
// flushed, what it is found to hold is what it must hold from then on.
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
