package verify

import (
	"errors"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
