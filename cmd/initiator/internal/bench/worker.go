// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// group holds the workers of one thread.
type group []*worker

// groupsOf assigns one worker of every session to each thread.
func groupsOf(workers []*worker, threads int) []group {
	groups := make([]group, threads)
	for i, w := range workers {
		groups[i%threads] = append(groups[i%threads], w)
	}
	return groups
}

// body runs on the group's thread.
func (g group) body(engine *progress.Engine) error {
	for _, w := range g {
		if err := w.queue.Attach(engine); err != nil {
			return err
		}
		defer w.queue.Detach(engine)
		if err := engine.Add(w); err != nil {
			return err
		}
	}
	if g[0].hasWarmup {
		g.run(engine, warmingUp, func(*worker) uint64 { return unlimited })
		for _, w := range g {
			w.recorder.resetOperations()
		}
	}
	before := engine.Stats()
	startedNs := g[0].run.NowNs()
	if g[0].hasWarmup && g[0].interval != nil {
		for _, w := range g {
			w.interval.endWarmup(startedNs)
		}
		g[0].run.ObserveNow()
	}
	g.run(engine, measuring, func(w *worker) uint64 { return w.totalLimit })
	endedNs := g[0].run.NowNs()
	for _, w := range g {
		w.startedNs, w.endedNs = startedNs, endedNs
	}
	g[0].engine = difference(engine.Stats(), before)
	return nil
}

// run runs a stage until nothing is outstanding and nothing more may be started.
func (g group) run(engine *progress.Engine, stage supervisor.Stage, limit func(*worker) uint64) {
	for _, w := range g {
		w.stage, w.limit = stage, limit(w)
		w.schedule.begin(w.run.NowNs())
	}
	for !g.finished() {
		engine.Idle(engine.Progress())
	}
	for _, w := range g {
		w.recorder.publish()
	}
}

func (g group) finished() bool {
	finished := true
	for _, w := range g {
		finished = w.finished() && finished // every worker must check its stage
	}
	return finished
}

// difference returns what an engine did since before.
func difference(now, before progress.Stats) progress.Stats {
	return progress.Stats{
		Hits: now.Hits - before.Hits, Misses: now.Misses - before.Misses,
		Sleeps: now.Sleeps - before.Sleeps, LateWakeups: now.LateWakeups - before.LateWakeups,
	}
}

// Queue is the part of a client.Queue that a run uses.
type Queue = supervisor.Queue

// unlimited is a number of requests that no run reaches.
const unlimited = ^uint64(0)

// resultBatch is the number of results to poll at a time.
const resultBatch = 64

// worker keeps the requests of one queue outstanding. Its thread owns it, which serves one queue of
// every session.
type worker struct {
	index     int // of the queue, counted over all sessions
	queue     Queue
	run       *supervisor.Supervisor
	generator generator
	recorder  *recorder
	interval  *intervalRecorder // nil if nobody asks for intervals
	schedule  schedule

	buffers []byte // one for each slot
	memory  uint64 // offset of buffers in the volume's data memory
	slots   []slot
	free    []uint32
	ready   []uint32 // slots with a request that is not submitted yet
	request client.Request
	results [resultBatch]client.Result

	batchSize int // requests after which the queue is flushed; 0 for all that it has room for
	unflushed int // requests since the last flush

	stage      supervisor.Stage // in which requests may be started
	limit      uint64           // requests that may still be started
	totalLimit uint64           // in the measured part
	hasWarmup  bool
	reconnect  bool
	reopening  bool // the queue accepts no requests until its volume is back

	validation *validation // nil if data is not compared

	firstError timedError // of a request
	failure    timedError // reason why the run ended early
	lost       bool       // a result reported the loss of the connection
	startedNs  int64      // in the measured part, by Supervisor.NowNs
	endedNs    int64
	engine     progress.Stats // in the measured part
}

// The stages of a run.
const (
	warmingUp supervisor.Stage = iota
	measuring
	draining
	expired
)

// slot is a request that is outstanding or about to be.
type slot struct {
	sinceNs  int64
	dueNs    int64 // by the schedule of an open loop
	offset   uint64
	kind     client.RequestType
	readBack bool
	repeated bool // was outstanding when a session was lost: its latency continues
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

// canStart reports whether more requests may be started in this stage.
func (w *worker) canStart() bool {
	return w.limit > 0 && w.failure.err == nil && !w.lost && w.run.Stage() <= w.stage
}

// Poll is one turn of the thread's loop (progress.Source). It reads the clock once, and takes that
// as the submission time of the requests that it starts, so that their latencies include the turn's
// own work rather than omit it.
func (w *worker) Poll() int {
	n := w.queue.Poll(w.results[:])
	if n == 0 && len(w.free) == 0 && len(w.ready) == 0 {
		return 0
	}
	nowNs := w.run.NowNs()
	w.completeAll(w.results[:n], nowNs)
	started := w.fill(nowNs)
	if n > 0 {
		w.recorder.publish()
	}
	return n + started
}

func (w *worker) completeAll(results []client.Result, nowNs int64) {
	if w.interval != nil && len(results) > 0 {
		w.interval.mu.Lock()
		defer w.interval.mu.Unlock()
	}
	for i := range results {
		w.complete(&results[i], nowNs)
	}
}

// fill starts as many requests as there is room for.
func (w *worker) fill(nowNs int64) int {
	started := w.startReady(nowNs)
	if len(w.ready) == 0 && w.canStart() {
		started += w.startNew(nowNs)
	}
	if started > 0 {
		w.queue.Ring()
		w.unflushed = 0
	}
	if len(w.ready)+len(w.free) == len(w.slots) && len(w.ready) > 0 && !w.reopening {
		return 1 // the queue is full but nothing is outstanding whose result could wake this thread
	}
	return started
}

// startReady submits the requests that wait in their slots.
func (w *worker) startReady(nowNs int64) int {
	started := 0
	for len(w.ready) > 0 && w.submit(w.ready[len(w.ready)-1], nowNs) {
		w.ready = w.ready[:len(w.ready)-1]
		started++
	}
	return started
}

func (w *worker) startNew(nowNs int64) int {
	started := 0
	for len(w.free) > 0 && w.limit > 0 {
		dueNs := w.schedule.next()
		if dueNs > nowNs && w.schedule.periodNs > 0 {
			break
		}
		index := w.free[len(w.free)-1]
		if !w.prepare(index) {
			break
		}
		w.free = w.free[:len(w.free)-1]
		w.limit--
		w.schedule.made++
		w.slots[index].dueNs = dueNs
		if !w.submit(index, nowNs) {
			w.postpone(index)
			break
		}
		started++
	}
	return started
}

// postpone keeps the request of slot index for later.
func (w *worker) postpone(index uint32) {
	if w.failure.err != nil {
		w.free = append(w.free, index)
		return
	}
	w.ready = append(w.ready, index)
}

// prepare prepares the next request in slot index. It fails only if its data cannot be generated.
func (w *worker) prepare(index uint32) bool {
	s := &w.slots[index]
	s.kind, s.readBack, s.repeated = w.generator.kind(), false, false
	if w.validation == nil {
		s.offset = w.generator.offset(index)
		return true
	}
	s.offset = w.validation.offset(index)
	if err := w.validation.prepare(s.kind, index, s.offset, w.buffer(index)); err != nil {
		w.fail(err)
		return false
	}
	return true
}

// submit submits the request of slot index. It returns false if the request has to wait for room,
// or if the run has failed.
func (w *worker) submit(index uint32, nowNs int64) bool {
	s := &w.slots[index]
	switch {
	case s.repeated:
	case w.schedule.periodNs > 0:
		s.sinceNs = s.dueNs // the time that it has waited for room counts
	default:
		s.sinceNs = nowNs
	}
	w.request.Type, w.request.Offset = s.kind, s.offset
	w.request.Memory = w.memory + uint64(index)*w.generator.blockSize
	w.request.Tag = uint64(index)
	err := w.queue.Submit(&w.request)
	if errors.Is(err, client.ErrMemoryReplaced) {
		w.buffers = supervisor.MoveBuffers(w.queue, w.memory, w.buffers)
		err = w.queue.Submit(&w.request)
	}
	w.reopening = errors.Is(err, client.ErrReopening)
	if err == nil {
		if w.unflushed++; w.unflushed == w.batchSize {
			w.queue.Ring()
			w.unflushed = 0
		}
		return true
	}
	if !errors.Is(err, status.Again) {
		w.fail(err)
	}
	return false
}

// complete processes a result.
func (w *worker) complete(result *client.Result, nowNs int64) {
	index := uint32(result.Tag)
	s := &w.slots[index]
	switch {
	case result.Code != status.Success && w.reconnect && client.CanRepeat(result.Code):
		w.repeat(index)
		return
	case result.Code != status.Success:
		w.failed(s, result, result.Err())
	case w.validation != nil:
		if w.finish(index, nowNs) {
			return
		}
	default:
		w.recorder.record(s.kind, nowNs-s.sinceNs)
		if w.interval != nil {
			w.interval.both.record(nowNs - s.sinceNs)
		}
	}
	w.free = append(w.free, index)
}

func (w *worker) buffer(index uint32) []byte {
	start := uint64(index) * w.generator.blockSize
	return w.buffers[start:][:w.generator.blockSize]
}

// timedError is an error with its time, to find the first error of several threads.
type timedError struct {
	err  error
	atNs int64
}

func (t *timedError) set(err error, atNs int64) { t.err, t.atNs = err, atNs }

// keepEarlier replaces t by other if other is earlier.
func (t *timedError) keepEarlier(other timedError) {
	if other.err != nil && (t.err == nil || other.atNs < t.atNs) {
		*t = other
	}
}

// failed counts a failed request.
func (w *worker) failed(s *slot, result *client.Result, cause error) {
	w.recorder.failures.Add(result)
	if w.firstError.err == nil {
		w.firstError.set(fmt.Errorf("%v of %d bytes at offset %d on queue %d: %w",
			s.kind, w.generator.blockSize, s.offset, w.index, cause),
			w.run.NowNs())
	}
	if (client.IsConnectionLost(result.Code) || result.Quarantined) && !w.lost {
		w.lost = true
		w.run.Drain()
	}
}

// repeat queues the request of slot index to be submitted again.
func (w *worker) repeat(index uint32) {
	w.slots[index].repeated = true
	w.recorder.repeated++
	w.ready = append(w.ready, index)
}

// mismatched counts a request with wrong data.
func (w *worker) mismatched(wrong *mismatch) {
	w.recorder.mismatches++
	if w.firstError.err == nil {
		w.firstError.set(fmt.Errorf("%w (queue %d)", wrong, w.index), w.run.NowNs())
	}
}

// fail ends the run because of err, after the outstanding requests have completed.
func (w *worker) fail(err error) {
	w.free = append(w.free, w.ready...)
	w.ready = w.ready[:0]
	if w.failure.err == nil {
		w.failure.set(err, w.run.NowNs())
		w.run.Drain()
	}
}

// timeOutOutstanding counts every outstanding request as timed out.
func (w *worker) timeOutOutstanding() {
	w.free = append(w.free, w.ready...)
	w.ready = w.ready[:0]
	idle := make([]bool, len(w.slots))
	for _, index := range w.free {
		idle[index] = true
	}
	for i := range w.slots {
		if !idle[i] {
			w.failed(&w.slots[i], &client.Result{Code: status.TimeOut}, w.run.NoReply())
			w.free = append(w.free, uint32(i))
		}
	}
}
