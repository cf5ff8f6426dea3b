package bench

import (
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// timedError is an error and when it happened, so that the first of several
// threads' can be told.
type timedError struct {
	err  error
	atNs int64
}

func (t *timedError) set(err error, atNs int64) { t.err, t.atNs = err, atNs }

// note takes other over if it is the earlier one.
func (t *timedError) note(other timedError) {
	if other.err != nil && (t.err == nil || other.atNs < t.atNs) {
		*t = other
	}
}

// failed takes note of a request that failed.
func (w *worker) failed(s *slot, code status.Code) {
	w.recorder.fail(code)
	if w.firstError.err == nil {
		w.firstError.set(fmt.Errorf("%v of %d bytes at offset %d on queue %d: %w",
			s.kind, w.generator.blockSize, s.offset, w.index, code), w.run.NowNs())
	}
	if supervisor.LostConnection(code) && !w.lost {
		w.lost = true
		w.run.End()
	}
}

// repeat has slot index submit its request again.
func (w *worker) repeat(index uint32) {
	w.slots[index].repeated = true
	w.recorder.repeated++
	w.ready = append(w.ready, index)
}

// mismatched takes note of data that is wrong.
func (w *worker) mismatched(wrong *mismatch) {
	w.recorder.mismatches++
	if w.firstError.err == nil {
		w.firstError.set(fmt.Errorf("%w (queue %d)", wrong, w.index), w.run.NowNs())
	}
}

// fail ends the run because of err. Requests that are outstanding are still
// waited for.
func (w *worker) fail(err error) {
	w.free = append(w.free, w.ready...)
	w.ready = w.ready[:0]
	if w.failure.err == nil {
		w.failure.set(err, w.run.NowNs())
		w.run.End()
	}
}

// giveUp counts everything outstanding as timed out.
func (w *worker) giveUp() {
	w.free = append(w.free, w.ready...)
	w.ready = w.ready[:0]
	idle := make([]bool, len(w.slots))
	for _, index := range w.free {
		idle[index] = true
	}
	for i := range w.slots {
		if !idle[i] {
			w.failed(&w.slots[i], status.TimeOut)
			w.free = append(w.free, uint32(i))
		}
	}
}
