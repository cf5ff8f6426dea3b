// SPDX-License-Identifier: Apache-2.0

// Package transfer moves byte streams to and from a volume through queues. It keeps many requests
// outstanding, and reads and writes the stream directly in the data memory, without a copy.
package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Volume is the part of an opened volume that a transfer uses.
type Volume interface {
	Info() client.Info
	// Memory is the data memory that the queues' requests refer to.
	Memory() []byte
	// Only Put calls WriteAt and Flush, the latter also while its queues are busy.
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
	// Only Get calls ExtentsContext, while its queues are busy.
	ExtentsContext(ctx context.Context, off, length int64) ([]iomsg.Extent, error)
}

// Queue is the part of a client.Queue that a transfer uses.
type Queue = supervisor.Queue

// Config describes a transfer.
type Config struct {
	Volume Volume
	// Queues belong to the transfer until it ends. Each has up to Depth requests of at most
	// BufferSize bytes outstanding, for which Volume.Memory has room.
	Queues     []Queue
	Depth      int
	BufferSize uint32
	Policy     progress.Policy
	// DrainTimeout bounds the wait for outstanding requests after a failure.
	DrainTimeout time.Duration
	// Reconnections, if not nil, makes the transfer repeat requests whose outcome the loss of a
	// session left open, after the volume has been reopened. They are counted there when it ends.
	Reconnections *document.Reconnections
	// Observe is called about once a second with the number of bytes moved; may be nil.
	Observe func(bytes uint64)
	// Checkpoint is called every few seconds, and when a transfer fails, with the number of bytes
	// from the first on that have been moved without a gap; may be nil. What Put has written is
	// flushed by then. An error makes the transfer fail. Calls are serialized.
	Checkpoint func(bytes uint64) error
}

// extent is a range of whole blocks of the volume.
type extent struct {
	offset uint64
	length uint32
	// zero means that the data is all zeroes, and crosses no network: the volume can write zeroes
	// without data, or has a hole there.
	zero bool
}

func (e extent) end() uint64 { return e.offset + uint64(e.length) }

// isZero reports whether data is all zeroes.
func isZero(data []byte) bool {
	for len(data) >= len(zeroes) {
		if !bytes.Equal(data[:len(zeroes)], zeroes[:]) {
			return false
		}
		data = data[len(zeroes):]
	}
	return bytes.Equal(data, zeroes[:len(data)])
}

// zeroes is what isZero compares with, in pieces.
var zeroes [4096]byte

// job is one transfer, shared by the threads of all queues.
type job interface {
	// kind is client.Read or client.Write.
	kind() client.RequestType
	// next returns the next extent, and fills the buffer if the extent is to be written. Length 0
	// is the end. Threads of several queues call it concurrently.
	next(buffer []byte) (extent, error)
	// done is called after the data of an extent has been moved, for each queue in the order of
	// next.
	done(e extent, data []byte) error
	// checkpoint makes what has been moved durable, and returns how much of it has no gap.
	checkpoint() (bytes uint64, err error)
}

// execute runs a job on all queues.
func (c *Config) execute(ctx context.Context, j job, moved *atomic.Uint64) error {
	run := supervisor.New(running, 0, c.DrainTimeout)
	workers := make([]*worker, len(c.Queues))
	size := uint64(c.Depth) * uint64(c.BufferSize)
	for i := range workers {
		memory := uint64(i) * size
		workers[i] = &worker{
			queue: c.Queues[i], run: run, job: j,
			buffers: c.Volume.Memory()[memory:][:size], memory: memory,
			bufferSize: uint64(c.BufferSize),
			slots:      make([]slot, c.Depth), reconnect: c.Reconnections != nil,
		}
		if err := run.Threads().Go(affinity.AnyCPU, c.Policy, workers[i].body); err != nil {
			workers[i].fail(err)
			workers = workers[:i+1]
			break
		}
	}
	endCheckpoints := c.beginCheckpoints(j, run.Drain)
	err := run.Wait(ctx, func() { c.observe(moved) })
	checkpointError := endCheckpoints()
	for _, w := range workers {
		if c.Reconnections != nil {
			c.Reconnections.RepeatedRequests += w.repeated
		}
		if err == nil {
			err = w.failure
		}
	}
	if err == nil && run.Interrupted() {
		err = context.Cause(ctx)
	}
	if err == nil || checkpointError != nil {
		return errors.Join(err, checkpointError)
	}
	last := c.checkpoint(j)
	if client.IsConnectionLost(status.CodeOf(last)) {
		last = nil // as err says; an earlier checkpoint counts
	}
	return errors.Join(err, last)
}

func (c *Config) observe(moved *atomic.Uint64) {
	if c.Observe != nil {
		c.Observe(moved.Load())
	}
}

// incomplete returns the error for a transfer that failed after some bytes.
func incomplete(what string, moved *atomic.Uint64, err error) error {
	return fmt.Errorf("%s: failed after %d bytes: %w", what, moved.Load(), err)
}

// The stages of a transfer.
const (
	running supervisor.Stage = iota
	draining
	expired
)

// worker runs a job's share on one queue. The queue's thread owns it. Its slots are a ring:
// requests complete in any order, but extents are finished in the order in which they were made.
type worker struct {
	queue Queue
	run   *supervisor.Supervisor
	job   job

	buffers    []byte // one for each slot
	memory     uint64 // offset of buffers in the volume's data memory
	bufferSize uint64
	slots      []slot
	oldest     uint64   // number of the first extent that is not finished
	made       uint64   // number of extents that the job returned
	submitted  uint64   // number of them that were submitted
	completed  uint64   // number of requests with a result
	again      []uint64 // slots to submit again, after the loss of a session
	repeated   uint64   // number of requests that were submitted again
	reconnect  bool
	reopening  bool // the queue accepts no requests until its volume is back
	ended      bool // there are no more extents
	results    [32]client.Result
	request    client.Request

	failure error // reason why the transfer ended early
}

// slot is an unfinished extent.
type slot struct {
	extent extent
	moved  bool
}

// body runs on the worker's thread.
func (w *worker) body(engine *progress.Engine) error {
	if err := w.queue.Attach(engine); err != nil {
		return err
	}
	defer w.queue.Detach(engine)
	if err := engine.Add(w); err != nil {
		return err
	}
	for !w.finished() {
		engine.Idle(engine.Progress())
	}
	return nil
}

func (w *worker) finished() bool {
	if w.outstanding() > 0 {
		if w.run.Stage() < expired {
			return false
		}
		w.fail(fmt.Errorf("%d requests: %w", w.outstanding(), w.run.NoReply()))
		return true
	}
	return !w.canContinue() || (w.ended && w.oldest == w.made)
}

func (w *worker) outstanding() uint64 { return w.submitted + w.repeated - w.completed }

func (w *worker) canContinue() bool { return w.failure == nil && w.run.Stage() == running }

// Poll is one turn of the thread's loop (progress.Source).
func (w *worker) Poll() int {
	n := w.queue.Poll(w.results[:])
	for _, result := range w.results[:n] {
		w.complete(result)
	}
	work := n + w.finishOldest() + w.fill()
	if w.outstanding() == 0 && !w.reopening {
		return work + 1 // nothing is outstanding whose result could wake this thread
	}
	return work
}

func (w *worker) complete(result client.Result) {
	w.completed++
	s := &w.slots[result.Tag]
	if result.Code != status.Success && w.reconnect && client.CanRepeat(result.Code) {
		w.again = append(w.again, result.Tag)
		return
	}
	if result.Code != status.Success {
		w.fail(fmt.Errorf("%v of %d bytes at offset %d: %w", w.job.kind(), s.extent.length,
			s.extent.offset, result.Err()))
		return
	}
	s.moved = true
}

// finishOldest finishes the oldest extents whose data has been moved.
func (w *worker) finishOldest() int {
	finished := 0
	for w.oldest < w.submitted && w.failure == nil {
		index := w.oldest % uint64(len(w.slots))
		s := &w.slots[index]
		if !s.moved {
			break
		}
		if err := w.job.done(s.extent, w.buffer(index)[:s.extent.length]); err != nil {
			w.fail(err)
			break
		}
		s.moved = false
		w.oldest++
		finished++
	}
	return finished
}

// fill submits as many requests as there is room for.
func (w *worker) fill() int {
	started := 0
	for w.canContinue() && len(w.again) > 0 && w.submit(w.again[0]) {
		w.again = w.again[1:]
		w.repeated++
		w.queue.Ring()
		started++
	}
	for w.canContinue() && len(w.again) == 0 && w.make() &&
		w.submit(w.submitted%uint64(len(w.slots))) {
		w.submitted++
		// Flush each request by itself, so that the first is in flight while the next is read.
		w.queue.Ring()
		started++
	}
	return started
}

// make reports whether there is an extent to submit, after asking the job for one if necessary.
func (w *worker) make() bool {
	if w.submitted < w.made {
		return true // the queue had no room for it before
	}
	if w.ended || w.made-w.oldest == uint64(len(w.slots)) {
		return false
	}
	index := w.made % uint64(len(w.slots))
	e, err := w.job.next(w.buffer(index))
	if err != nil {
		w.fail(err)
		return false
	}
	if e.length == 0 {
		w.ended = true
		return false
	}
	w.slots[index].extent = e
	w.made++
	return true
}

// submit submits the request of a slot.
func (w *worker) submit(index uint64) bool {
	e := w.slots[index].extent
	if e.zero && w.job.kind() == client.Read {
		clear(w.buffer(index)[:e.length])
		w.slots[index].moved = true
		w.completed++
		return true
	}
	w.request = client.Request{
		Type: w.job.kind(), Length: e.length, Offset: e.offset,
		Memory: w.memory + index*w.bufferSize, Tag: index,
	}
	if e.zero {
		w.request.Type, w.request.Memory = client.WriteZeroes, 0
		w.request.Flags = client.Deallocate
	}
	err := w.queue.Submit(&w.request)
	if errors.Is(err, client.ErrMemoryReplaced) {
		w.buffers = supervisor.MoveBuffers(w.queue, w.memory, w.buffers)
		err = w.queue.Submit(&w.request)
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

func (w *worker) buffer(index uint64) []byte {
	return w.buffers[index*w.bufferSize:][:w.bufferSize]
}

// fail ends the transfer because of err, after the outstanding requests have completed.
func (w *worker) fail(err error) {
	if w.failure == nil {
		w.failure = err
		w.run.Drain()
	}
}
