// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Queue is the part of a client.Queue that a run uses.
type Queue interface {
	supervisor.Queue
	WriteVerifier() uint64
}

// The stages of a run.
const (
	running supervisor.Stage = iota
	draining
	expired
)

// resultBatch is the number of results to poll at a time.
const resultBatch = 32

// worker verifies a slice of the range through one queue. The queue's thread owns it.
type worker struct {
	index   int // of the queue
	queue   Queue
	run     *supervisor.Supervisor
	planner planner
	tally   tally

	runID     uint64 // in every block that this run writes
	start     uint64 // of the slice in the volume, in bytes
	blockSize uint64
	buffers   []byte // one for each slot
	memory    uint64 // offset of buffers in the volume's data memory
	slotSize  uint64
	slots     []operation
	free      []uint32
	poison    []byte   // what the buffer of a free slot holds
	kept      []bool   // slots whose buffers the relay has kept: nobody writes to them
	ready     []uint32 // slots with an operation that is not submitted yet
	request   client.Request
	results   [resultBatch]client.Result

	losses    *losses // nil if the loss of the volume ends the run
	reopening bool    // the queue accepts no requests until its volume is back

	failure error // reason why the run ended early
	lost    bool  // a result reported the loss of the connection
}

// body runs on the worker's thread.
func (w *worker) body(engine *progress.Engine) error {
	if err := w.queue.Attach(engine); err != nil {
		return err
	}
	defer w.queue.Detach(engine)
	for _, index := range w.free {
		copy(w.buffer(index), w.poison)
	}
	if err := engine.Add(w); err != nil {
		return err
	}
	for !w.finished() {
		engine.Idle(engine.Progress())
	}
	w.checkFree()
	w.tally.publish()
	return nil
}

func (w *worker) finished() bool {
	if len(w.free) == len(w.slots) {
		return !w.canStart()
	}
	if w.run.Stage() < expired {
		return false
	}
	w.timeOutOutstanding()
	return true
}

func (w *worker) canStart() bool {
	return w.failure == nil && !w.lost && !w.planner.done() && w.run.Stage() == running
}

// Poll is one turn of the thread's loop (progress.Source).
func (w *worker) Poll() int {
	n := w.queue.Poll(w.results[:])
	w.noticeRestart()
	for i := range w.results[:n] {
		w.complete(&w.results[i])
	}
	if n > 0 {
		w.tally.publish()
	}
	return n + w.fill()
}

// fill starts as many operations as there is room for. It returns the amount of work done, at least
// 1 while nothing is outstanding whose result could wake the thread.
func (w *worker) fill() int {
	started := 0
	for len(w.ready) > 0 && w.submit(w.ready[len(w.ready)-1]) {
		w.ready = w.ready[:len(w.ready)-1]
		started++
	}
	for len(w.ready) == 0 && len(w.free) > 0 && w.canStart() {
		op, ok := w.planner.next(len(w.free) == len(w.slots))
		if !ok {
			break
		}
		started += w.begin(op)
	}
	if started > 0 {
		w.queue.Ring()
	}
	if len(w.free)+len(w.ready) == len(w.slots) && !w.reopening {
		return 1
	}
	return started
}

// begin prepares the operation's data and submits it.
func (w *worker) begin(op operation) int {
	index := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.checkPoison(index)
	w.slots[index] = op
	data := w.data(index)
	if op.kind == client.Read {
		clear(data) // old content must not pass for data that was read
	} else {
		w.stamp(&op, data)
	}
	if w.submit(index) {
		return 1
	}
	if w.failure != nil {
		w.forget(index)
	} else {
		w.ready = append(w.ready, index)
	}
	return 0
}

func (w *worker) stamp(op *operation, data []byte) {
	for i := range op.count {
		w.identity(op.first+i, w.planner.pass).stamp(data[i*w.blockSize:][:w.blockSize])
	}
}

// identity returns the identity of a block of the slice as a pass writes it.
func (w *worker) identity(block uint64, generation uint32) identity {
	return identity{run: w.runID, offset: w.start + block*w.blockSize, generation: generation}
}

func (w *worker) data(index uint32) []byte {
	return w.buffer(index)[:w.slots[index].count*w.blockSize]
}

func (w *worker) buffer(index uint32) []byte {
	return w.buffers[uint64(index)*w.slotSize:][:w.slotSize]
}

// putBack frees a slot whose operation is over, and poisons its buffer.
func (w *worker) putBack(index uint32) {
	if !w.kept[index] {
		copy(w.data(index), w.poison)
	}
	w.free = append(w.free, index)
}

// checkFree checks the buffers of all free slots.
func (w *worker) checkFree() {
	for _, index := range w.free {
		w.checkPoison(index)
	}
}

// checkPoison checks whether the buffer of a free slot was written after the slot's operation had
// completed.
func (w *worker) checkPoison(index uint32) {
	buffer := w.buffer(index)
	if w.kept[index] || bytes.Equal(buffer, w.poison) {
		return
	}
	op := &w.slots[index]
	first, last := firstDifference(buffer, w.poison), lastDifference(buffer, w.poison)
	w.tally.find(Finding{
		Kind: Late, Offset: w.start + op.first*w.blockSize, Queue: w.index, Pass: w.planner.pass,
		ExpectedGeneration: w.planner.pass, FirstWrongByte: first, LastWrongByte: last,
		Detail: fmt.Sprintf(
			"but bytes %d to %d of the buffer changed after the %v of %d bytes had completed",
			first, last, op.kind, op.count*w.blockSize),
	}, w.run.NowNs())
	copy(buffer, w.poison)
}

// switchMemory switches to new memory, and copies the data of the operations to repeat.
func (w *worker) switchMemory() {
	w.checkFree()
	w.buffers = supervisor.MoveBuffers(w.queue, w.memory, w.buffers)
	clear(w.kept)
	for _, index := range w.free {
		copy(w.buffer(index), w.poison)
	}
}

// submit submits the operation of slot index. It returns false if the operation has to wait for
// room, or if the run has failed.
func (w *worker) submit(index uint32) bool {
	op := &w.slots[index]
	w.request = client.Request{
		Type: op.kind, Length: uint32(op.count * w.blockSize),
		Offset: w.start + op.first*w.blockSize,
		Memory: w.memory + uint64(index)*w.slotSize, Tag: uint64(index),
	}
	if op.kind == client.Flush {
		w.request.Offset, w.request.Memory = 0, 0
	}
	err := w.submitRequest(op)
	if errors.Is(err, client.ErrMemoryReplaced) {
		w.switchMemory()
		err = w.submitRequest(op)
	}
	w.reopening = errors.Is(err, client.ErrReopening)
	if err == nil {
		return true
	}
	if !errors.Is(err, status.Again) {
		w.fail(err)
	}
	return false
}

// fail ends the run because of err, after the outstanding requests have completed.
func (w *worker) fail(err error) {
	for _, index := range w.ready {
		w.forget(index)
	}
	w.ready = w.ready[:0]
	if w.failure == nil {
		w.failure = err
		w.run.Drain()
	}
}

// forget frees a slot whose operation was not carried out.
func (w *worker) forget(index uint32) {
	op := &w.slots[index]
	w.planner.ledger.release(op.first, op.count)
	w.putBack(index)
}

// timeOutOutstanding completes every outstanding request as timed out.
func (w *worker) timeOutOutstanding() {
	for _, index := range w.ready {
		w.forget(index)
	}
	w.ready = w.ready[:0]
	w.losses = nil // nothing is repeated from here on
	idle := make([]bool, len(w.slots))
	for _, index := range w.free {
		idle[index] = true
	}
	for i := range w.slots {
		if !idle[i] {
			w.complete(&client.Result{Tag: uint64(i), Code: status.TimeOut, Quarantined: true})
		}
	}
}

// complete processes a result.
func (w *worker) complete(result *client.Result) {
	index := uint32(result.Tag)
	op := &w.slots[index]
	w.kept[index] = result.Quarantined
	if w.losses != nil && client.CanRepeat(result.Code) {
		w.tally.repeated++
		w.ready = append(w.ready, index)
		return
	}
	w.planner.ledger.release(op.first, op.count)
	switch {
	case result.Code != status.Success:
		w.failed(op, result)
	case op.kind == client.Write:
		w.written(op)
	case op.kind == client.Read:
		w.check(op, w.data(index))
	default:
		w.flushed(op)
	}
	w.putBack(index)
}

// failed counts a failed request. The content of blocks after a failed write is unknown.
func (w *worker) failed(op *operation, result *client.Result) {
	if op.kind == client.Write {
		for i := range op.count {
			w.planner.ledger.set(op.first+i, unknown)
		}
	}
	w.tally.fail(result, func() error {
		cause := result.Err()
		if result.Code == status.TimeOut && w.run.Stage() >= expired {
			cause = w.run.NoReply()
		}
		return fmt.Errorf("%v of %d bytes at offset %d on queue %d: %w",
			op.kind, op.count*w.blockSize, w.start+op.first*w.blockSize, w.index, cause)
	})
	if (client.IsConnectionLost(result.Code) || result.Quarantined) && !w.lost {
		w.lost = true
		w.run.Drain()
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

// check checks every block that was read.
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

// found counts a wrong block, and excludes it from further checks until it has been rewritten.
func (w *worker) found(block uint64, f Finding) {
	w.planner.ledger.set(block, unknown)
	f.Queue, f.Pass = w.index, w.planner.pass
	w.tally.find(f, w.run.NowNs())
}
