package verify

import (
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// complete takes note of a result.
func (w *worker) complete(result *client.Result) {
	index := uint32(result.Tag)
	op := &w.slots[index]
	if w.losses != nil && supervisor.LeftOpen(result.Code) {
		w.tally.repeated++
		w.ready = append(w.ready, index)
		return
	}
	w.planner.ledger.release(op.first, op.count)
	switch {
	case result.Code != status.Success:
		w.failed(op, result.Code)
	case op.kind == iomsg.Write:
		w.written(op)
	case op.kind == iomsg.Read:
		w.check(op, w.data(index))
	default:
		w.flushed(op)
	}
	w.free = append(w.free, index)
}

// failed takes note of a request that failed. What a failed write has left
// behind is not known.
func (w *worker) failed(op *operation, code status.Code) {
	if op.kind == iomsg.Write {
		for i := range op.count {
			w.planner.ledger.set(op.first+i, unknown)
		}
	}
	w.tally.fail(code, func() error {
		return fmt.Errorf("%v of %d bytes at offset %d on queue %d: %w",
			op.kind, op.count*w.blockSize, w.start+op.first*w.blockSize, w.index, code)
	})
	if supervisor.LostConnection(code) && !w.lost {
		w.lost = true
		w.run.End()
	}
}

func (w *worker) written(op *operation) {
	for i := range op.count {
		w.planner.ledger.set(op.first+i, w.planner.pass)
	}
	if w.losses != nil {
		w.losses.written()
	}
	w.tally.writes++
	w.tally.blocksWritten += op.count
}

// check looks at every block that was read.
func (w *worker) check(op *operation, data []byte) {
	w.tally.reads++
	w.tally.blocksRead += op.count
	for i := range op.count {
		block := op.first + i
		generation := w.planner.ledger.generation(block)
		if generation == unknown {
			continue
		}
		w.tally.blocksChecked++
		content := data[i*w.blockSize:][:w.blockSize]
		if w.planner.ledger.doubtful(block) && w.settleDoubt(block, content) {
			continue
		}
		if want := w.identity(block, generation); !want.holds(content) {
			w.found(block, classify(content, want))
		}
	}
}

// found takes note of a wrong block, and does not look at it again until it
// has been written anew.
func (w *worker) found(block uint64, f Finding) {
	w.planner.ledger.set(block, unknown)
	f.Queue, f.Pass = w.index, w.planner.pass
	w.tally.find(f, w.run.NowNs())
}
