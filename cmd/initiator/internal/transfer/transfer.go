// Package transfer moves byte streams to and from a volume through queues,
// with many requests outstanding and no copy between the stream's reads or
// writes and the data memory.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Volume is what a transfer needs of an opened volume.
type Volume interface {
	Info() client.Info
	// Memory is the data memory that the queues' requests refer to.
	Memory() []byte
	// WriteAt and Flush are used by Put only.
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
}

// Queue is what a transfer needs of a client.Queue.
type Queue interface {
	Submit(request *client.Request) error
	Flush()
	Poll(results []client.Result) int
	Attach(engine *progress.Engine) error
	Detach(engine *progress.Engine)
}

// Config is what a transfer works with.
type Config struct {
	Volume Volume
	// Queues are used by nobody else. Each has Depth requests of at most
	// BufferSize bytes outstanding, for which Volume.Memory has room.
	Queues     []Queue
	Depth      int
	BufferSize uint32
	Policy     progress.Policy
	// DrainTimeout bounds the wait for outstanding requests after a failure.
	DrainTimeout time.Duration
	// Observe is told now and then how many bytes were moved; may be nil.
	Observe func(bytes uint64)
}

// extent is a range of whole blocks of the volume.
type extent struct {
	offset uint64
	length uint32
}

// job is one transfer, shared by the threads of all queues.
type job interface {
	// kind is iomsg.Read or iomsg.Write.
	kind() iomsg.Type
	// next takes the next extent and fills the buffer if it is to be written.
	// Length 0 is the end.
	next(buffer []byte) (extent, error)
	// done is called in the order of next, for one queue, when the data of an
	// extent has been moved.
	done(e extent, data []byte) error
}

// carryOut does a job on all queues.
func (c *Config) carryOut(ctx context.Context, j job, moved *atomic.Uint64) error {
	run := supervisor.New(running, 0, c.DrainTimeout)
	workers := make([]*worker, len(c.Queues))
	size := uint64(c.Depth) * uint64(c.BufferSize)
	for i := range workers {
		memory := uint64(i) * size
		workers[i] = &worker{
			queue: c.Queues[i], run: run, job: j,
			buffers: c.Volume.Memory()[memory:][:size], memory: memory, bufferSize: uint64(c.BufferSize),
			slots: make([]slot, c.Depth),
		}
		if err := run.Threads().Go(affinity.AnyCPU, c.Policy, workers[i].body); err != nil {
			workers[i].fail(err)
			workers = workers[:i+1]
			break
		}
	}
	err := run.Wait(ctx, func() { c.observe(moved) })
	for _, w := range workers {
		if err == nil {
			err = w.failure
		}
	}
	if err == nil && run.Interrupted() {
		err = context.Cause(ctx)
	}
	return err
}

func (c *Config) observe(moved *atomic.Uint64) {
	if c.Observe != nil {
		c.Observe(moved.Load())
	}
}

// incomplete says of a transfer that failed how far it was.
func incomplete(what string, moved *atomic.Uint64, err error) error {
	return fmt.Errorf("%s: broke off after %d bytes: %w", what, moved.Load(), err)
}

// The stages of a transfer.
const (
	running supervisor.Stage = iota
	draining
	abandoned
)

// worker does its part of a job on one queue. It belongs to the queue's
// thread. Its slots are a ring: requests complete in any order, but are dealt
// with in the order in which they were made.
type worker struct {
	queue Queue
	run   *supervisor.Supervisor
	job   job

	buffers    []byte // one for each slot
	memory     uint64 // where buffers lie in the volume's data memory
	bufferSize uint64
	slots      []slot
	oldest     uint64 // number of the first extent that is not done with
	made       uint64 // number of extents that were taken
	submitted  uint64 // number of them that were submitted
	completed  uint64 // number of requests with a result
	ended      bool   // there are no more extents
	results    [32]client.Result
	request    client.Request

	failure error // that ended the transfer
}

// slot is an extent that is not done with.
type slot struct {
	extent extent
	moved  bool
}

// body is the life of the worker's thread.
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
		if w.run.Stage() < abandoned {
			return false
		}
		w.fail(status.Errorf(status.TimeOut, "%d requests have not completed", w.outstanding()))
		return true
	}
	return !w.mayGoOn() || (w.ended && w.oldest == w.made)
}

func (w *worker) outstanding() uint64 { return w.submitted - w.completed }

func (w *worker) mayGoOn() bool { return w.failure == nil && w.run.Stage() == running }

// Poll implements progress.Source: one turn of the loop.
func (w *worker) Poll() int {
	n := w.queue.Poll(w.results[:])
	for _, result := range w.results[:n] {
		w.complete(result)
	}
	work := n + w.retire() + w.fill()
	if w.outstanding() == 0 {
		return work + 1 // no result would wake this thread
	}
	return work
}

func (w *worker) complete(result client.Result) {
	w.completed++
	s := &w.slots[result.Tag]
	if result.Code != status.Success {
		w.fail(fmt.Errorf("%v of %d bytes at offset %d: %w", w.job.kind(), s.extent.length, s.extent.offset, result.Code))
		return
	}
	s.moved = true
}

// retire deals with the oldest extents whose data has been moved.
func (w *worker) retire() int {
	retired := 0
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
		retired++
	}
	return retired
}

// fill submits as many requests as there is room for.
func (w *worker) fill() int {
	started := 0
	for w.mayGoOn() && w.make() && w.submit() {
		// One at a time, so that the first is under way while the next is
		// being read.
		w.queue.Flush()
		started++
	}
	return started
}

// make sees to it that there is an extent to submit.
func (w *worker) make() bool {
	if w.submitted < w.made {
		return true // the queue had no room for it
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

func (w *worker) submit() bool {
	index := w.submitted % uint64(len(w.slots))
	e := w.slots[index].extent
	w.request = client.Request{
		Type: w.job.kind(), Length: e.length, Offset: e.offset,
		Memory: w.memory + index*w.bufferSize, Tag: index,
	}
	err := w.queue.Submit(&w.request)
	if err == nil {
		w.submitted++
		return true
	}
	if !errors.Is(err, status.Again) {
		w.fail(err)
	}
	return false
}

func (w *worker) buffer(index uint64) []byte { return w.buffers[index*w.bufferSize:][:w.bufferSize] }

// fail ends the transfer because of err. What is outstanding is still waited
// for.
func (w *worker) fail(err error) {
	if w.failure == nil {
		w.failure = err
		w.run.End()
	}
}
