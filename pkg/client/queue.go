// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pollBatch is the most responses that one Poll receives.
const pollBatch = 32

// common is what the queues of a volume and its blocking methods share.
type common struct {
	terms    *terms
	life     *life
	memories *memories
	writes   *acknowledgedWrites
	clock    *clock
}

// Queue submits requests and polls for their results. Requests complete in any order. One thread at
// a time may use a queue. Submit, Ring, and Poll neither allocate, block, nor lock, except for
// flush requests and when the session changes.
type Queue struct {
	common
	index    int
	session  *session
	pair     *comchPair // that of the session
	slots    []slot
	free     []uint32
	received [pollBatch]comch.Received
	// encoded is a field because a local array would escape through the producer's interface and
	// cost an allocation per request.
	encoded [iomsg.Size]byte
	// unsent are messages of the latest request with segments that the relay has no room for yet.
	unsent []unsentMessage
	// extra is how many slots segments have beyond the first one of their requests.
	extra int

	memory        *dataMemory // that requests refer to
	memoryEnd     uint64      // the first offset in memory that requests may not touch
	former        *dataMemory // used before SwitchMemory; nil after the next Submit
	memoryChanged bool        // the session has other memory than the last request

	state queueState
	lost  []uint32 // slots whose requests were lost with the session, not polled yet
	// lostChanges is how many of lost, at its beginning, are requests that change the volume:
	// reportLost reports them last.
	lostChanges int
	unrung      bool // the relay has not been woken for the last Submit

	// Other goroutines use the fields below.
	next      atomic.Pointer[session] // to switch to
	engine    atomic.Pointer[progress.Engine]
	written   queueWrites
	user      Flusher // of flushes that have no other
	deadlines deadlines
	published publishedStats

	sampler sampler
	counted Stats
	events  *progress.Engine // of EventDescriptor; nil if the queue has none
	called  callbacks
	// isClosed is set by close. A closed queue is one that has lost its session, has nothing to
	// report, and gets no other session.
	isClosed bool
}

// queueState is what a queue does with requests in its session. The table shows the effect of each
// event, as that of life does: an arrow precedes the new state, a dash means that the event cannot
// occur, and a test tries each cell. A violation of the protocol ends the session.
//
//	                    accepting   ending      lost         stopping    stopped
//	Submit              sends       reopening   again¹       ended       ended
//	response            completes   completes   –            completes   violation
//	response of an end  → ending²   completes   –            completes   violation
//	end of the session  → lost      → lost      stays        → lost      –
//	next session        stays       stays       → accepting  –           –
//	stop                → stopping  → stopping  stays³       –           –
//	response to stop    violation   violation   –            → stopped   violation
//
//	¹ Submit is told that the volume is being reopened once everything lost is reported.
//	² Without Config.Reconnect the queue goes on: the application sees the code.
//	³ The stop fails unless there is a next session.
type queueState uint8

const (
	queueAccepting queueState = iota
	queueEnding               // a response has shown that the session is about to end
	queueLost                 // the session has ended; what was outstanding is lost
	queueStopping             // the stop message is sent, and no request may follow
	queueStopped              // the relay has returned it
)

// slot holds one outstanding request. The slot's index and generation are the user data of the
// message and identify the slot when the response arrives.
type slot struct {
	tag         uint64
	generation  uint32
	kind        RequestType
	length      uint32
	outstanding bool
	volatile    bool     // a write that is durable only after a flush
	isSegment   bool     // the message is one of several of its request, which segment describes
	cover       []uint64 // of a flush, which makes it durable; allocated for the slot's first one
	since       int64    // when it was submitted, according to the clock
	deadline    int64    // when it fails the session, according to the clock
	done        func(*Result)
	segment     segmentState
}

// changes reports whether the request changes the volume.
func (s *slot) changes() bool { return s.kind.Operation().Changes() }

func newQueue(c common, index int, first *session) *Queue {
	depth := c.terms.info.Depth
	q := &Queue{
		common: c, index: index, session: first, pair: first.pairs[index],
		memory: first.memory.dataMemory, slots: make([]slot, depth), free: make([]uint32, depth),
		lost: make([]uint32, 0, depth),
	}
	q.sampler = newSampler(&c.terms.config, index, depth)
	q.deadlines.init(c.terms.config.IOTimeout)
	if q.memoryEnd = c.terms.config.MemorySize; index == c.terms.config.Queues {
		q.memoryEnd += c.terms.stagingSize() // the queue of the blocking methods
	}
	q.memory.users.Add(1)
	q.written.session.Store(&first.id)
	c.writes.queues = append(c.writes.queues, &q.written)
	for i := range q.free {
		q.free[i] = uint32(depth - 1 - i)
	}
	return q
}

// Submit sends a request. Call Ring after a batch of requests to wake the relay if it sleeps.
//
// A request that does not fit the volume or the memory fails at once, with status.InvalidValue or
// status.TooBig. status.Again means that the queue is full: poll first. A request with Segments
// takes the place of as many requests as it has segments. ErrReopening, which matches
// status.Again, means that the volume is being reopened: keep polling. A flush fails with
// ErrWritesLost when writes may have been lost (see Flusher), a read or write with
// ErrMemoryReplaced until the queue has switched to new memory. After the volume has failed or was
// closed, Submit returns Volume.Err.
func (q *Queue) Submit(r *Request) error {
	if err := q.terms.check(r, q.memoryEnd); err != nil {
		return err
	}
	if q.state != queueAccepting {
		if err := q.recoverSession(); err != nil {
			return err
		}
	}
	if q.memoryChanged {
		if err := q.checkMemory(r); err != nil {
			return err
		}
	}
	if len(r.Segments) > 0 {
		return q.submitSegments(r)
	}
	n := len(q.free)
	if n == 0 || len(q.unsent) > 0 {
		return status.Again
	}
	index := q.free[n-1]
	s := &q.slots[index]
	if r.Type == Flush {
		if s.cover == nil {
			s.cover = make([]uint64, len(q.writes.queues))
		}
		if r.Flusher != nil && r.Flusher.writes != nil && r.Flusher.writes != q.writes {
			return status.Errorf(status.InvalidValue,
				"Request.Flusher is a user of another volume than %q", q.terms.info.Name)
		}
		user := cmp.Or(r.Flusher, &q.user)
		if err := q.writes.beginFlush(&q.written, user, s.cover); err != nil {
			return err
		}
	}
	part := Segment{Memory: r.Memory, Length: r.Length}
	if !q.canCarry(r, part, r.Offset) {
		return errNotCarried
	}
	traceID := q.encode(index, r, part, r.Offset)
	if err := q.pair.producer.Send(q.encoded[:], nil); err != nil {
		return q.sendError(err)
	}
	q.unrung = true
	q.free = q.free[:n-1]
	q.begin(index, r, part, r.Offset, traceID)
	q.counted.Submitted++
	return nil
}

// encode makes the message of a request in encoded, or of a part of one at an offset of the volume,
// and returns the ID of its trace, 0 for none.
func (q *Queue) encode(
	index uint32, r *Request, part Segment, offset uint64,
) (traceID uint32) {
	flags := iomsg.Flags(r.Flags)
	if q.sampler.isOn() {
		if traceID = q.sampler.sample(); traceID != 0 {
			flags |= iomsg.Traced
		}
	}
	iomsg.Encode(q.encoded[:], &iomsg.Message{
		Type: iomsg.Type(r.Type), UserData: uint64(q.slots[index].generation+1)<<32 | uint64(index),
		IOSize:          part.Length,
		RequesterOffset: part.Memory, StorageOffset: offset, Flags: flags, Range: r.Range,
		Trace: traceID,
	})
	if foreign := q.session.foreign; foreign != nil {
		foreign.ToTarget(q.encoded[:])
	}
	return traceID
}

// canCarry reports whether the relay's protocol has the message of a request, or of a part of one.
func (q *Queue) canCarry(r *Request, part Segment, offset uint64) bool {
	foreign := q.session.foreign
	return foreign == nil ||
		r.Flags == 0 && foreign.CanCarry(iomsg.Type(r.Type), part.Memory, offset)
}

// begin fills the slot of a message that has been encoded.
func (q *Queue) begin(index uint32, r *Request, part Segment, offset uint64, traceID uint32) {
	s := &q.slots[index]
	s.generation++
	s.tag, s.outstanding, s.since = r.Tag, true, q.clock.Load()
	s.kind, s.length, s.volatile = r.Type, part.Length, r.isVolatile()
	s.deadline = q.deadlines.begin(s.since, r.Timeout)
	if r.Done != nil || s.done != nil {
		s.done = r.Done
	}
	if q.sampler.isOn() {
		q.sampler.begin(index, traceID, r.Type.Operation(), offset, part.Length)
	}
}

// sendError returns why Submit fails if the producer does not take a message.
func (q *Queue) sendError(err error) error {
	switch {
	case errors.Is(err, status.Again):
		return status.Again
	case q.life.canReconnect:
		return ErrReopening // Poll will find that the session has ended
	case q.pair.isLate:
		q.pair.pollLate() // knows the reason
	}
	return q.session.endError()
}

var errNotCarried = status.Errorf(status.NotSupported,
	"the relay's protocol does not have the request")

// Ring wakes the relay, if it sleeps, for the requests submitted so far. It makes nothing durable:
// that is what a request of type Flush does.
func (q *Queue) Ring() {
	if q.unrung {
		q.unrung = false
		q.pair.producer.Flush()
		q.publishStats()
	}
}

// Poll fills results with outcomes and returns their number. After the session has ended, every
// outstanding request fails once: with status.ConnectionReset, Shutdown, or TimeOut if the volume
// is reopened (Config.Reconnect), otherwise with the code of Volume.Err, which is status.InUse
// after ErrPreempted. It fails once the relay has released the memory, or as quarantined after
// ReleaseTimeout: see Result.Quarantined. If the relay has died, a change fails when it can take
// effect no more: when the next session has begun, or after the leases of the relay's targets.
func (q *Queue) Poll(results []Result) int {
	if q.events != nil {
		return q.pollAwake(results)
	}
	return q.poll(results)
}

func (q *Queue) poll(results []Result) int {
	if q.state == queueLost {
		return q.reportLost(results)
	}
	if len(q.unsent) > 0 {
		q.sendUnsent()
	}
	consumer := q.pair.consumer
	if q.pair.isLate {
		q.pair.pollLate()
	}
	// Read the state before polling: messages that arrived before the end must still be found.
	running := consumer.State() == progress.Running
	n := consumer.Poll(q.received[:min(len(results), pollBatch)])
	if n == 0 && !running {
		q.collectLost()
		return q.reportLost(results)
	}
	count := 0
	for i := range q.received[:n] {
		if q.receive(&q.received[i], &results[count]) {
			count++
		}
	}
	q.checkDeadlines() // also under load: a relay may respond to everything except one request
	if n > 0 {
		consumer.Flush()
		q.publishStats()
	}
	return count
}

// receive turns a received message into a result. It returns false for the response to a stop
// message, for a message that violates the protocol, which ends the session, and for a segment of a
// request that has others outstanding.
func (q *Queue) receive(r *comch.Received, result *Result) (ok bool) {
	var buf [iomsg.Size]byte
	consumer, session := q.pair.consumer, q.session
	if r.Length != iomsg.Size {
		session.failProtocol(status.Errorf(status.InvalidValue,
			"relay sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return false
	}
	// Copy once, then examine: the relay can change the message memory at any time.
	copy(buf[:], consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		session.failProtocol(fmt.Errorf("post receive: %w", err))
		return false
	}
	var m iomsg.Message
	iomsg.Decode(buf[:], &m)
	if m.Type == iomsg.Stop && q.state == queueStopping {
		q.state = queueStopped
		return false
	}
	index, generation := uint32(m.UserData), uint32(m.UserData>>32)
	if m.Type != iomsg.Result || index >= uint32(len(q.slots)) ||
		!q.slots[index].outstanding || q.slots[index].generation != generation {
		session.failProtocol(status.Errorf(status.Unexpected,
			"relay sent type %d for transaction %#x, which is not outstanding",
			uint32(m.Type), m.UserData))
		return false
	}
	s := &q.slots[index]
	*result = Result{Tag: s.tag, Code: m.Result}
	switch {
	case m.Result != status.Success:
		if m.Cause.Known() {
			result.Cause = m.Cause
		}
		if q.life.canReconnect && isSessionEnd(m.Result) && q.state != queueEnding {
			session.expectEnd(m.Result)
			if q.state == queueAccepting {
				q.state = queueEnding
			}
		}
	case s.kind == Flush:
		q.writes.completeFlush(s.cover)
	}
	if q.sampler.isOn() {
		q.sampler.end(index, m.Result)
	}
	if s.isSegment {
		return q.completeSegment(index, result)
	}
	q.complete(index, result.Code, uint64(s.length))
	return true
}

// complete frees the slot of a request that has completed, of length bytes.
func (q *Queue) complete(index uint32, code status.Code, length uint64) {
	s := &q.slots[index]
	if code == status.Success && s.volatile {
		q.written.acknowledged.Store(q.written.acknowledged.Load() + 1)
	}
	q.counted.complete(s.kind, code, length)
	if q.called.isOn {
		q.called.add(s)
	}
	s.outstanding = false
	q.free = append(q.free, index)
}

// Memory returns the data memory that requests of this queue refer to. It has Config.MemorySize
// bytes, which all queues share. While a request is outstanding, the transport owns its part of the
// memory: do not change the data of a write, and do not use the data of a read. Only the queue's
// thread may call Memory. After the volume was closed it returns nil, and what it has returned
// before cannot be used any more: see Volume.Memory.
func (q *Queue) Memory() []byte {
	if q.isClosed {
		return nil
	}
	return q.memory.Bytes()[:q.terms.config.MemorySize]
}

// SwitchMemory makes the queue's requests refer to the memory of its current session, and returns
// that memory, or nil after the volume was closed. Call it when Submit fails with
// ErrMemoryReplaced.
//
// The memory that the queue has used so far keeps its content until the next Submit of this queue:
// before that, copy what is still needed, for instance the data of writes to repeat. Do not use it
// afterwards. It is freed when all queues have switched and the relay has released it. Only the
// queue's thread may call SwitchMemory.
func (q *Queue) SwitchMemory() []byte {
	if next := q.session.memory.dataMemory; next != q.memory && !q.isClosed {
		q.dropFormerMemory()
		q.memory, q.former = next, q.memory
		next.users.Add(1)
	}
	return q.Memory()
}

// dropFormerMemory ends the queue's use of the memory that it has switched from, if any.
func (q *Queue) dropFormerMemory() {
	if q.former != nil {
		q.former.users.Add(-1)
		q.former = nil
	}
}

// checkMemory is called by Submit after the session's memory has changed, until a request has used
// the new memory.
func (q *Queue) checkMemory(r *Request) error {
	if q.memory != q.session.memory.dataMemory {
		if r.Type.Operation().MovesData() {
			return ErrMemoryReplaced
		}
		return nil
	}
	q.dropFormerMemory()
	q.memoryChanged = false
	return nil
}

// Attach lets the engine's thread sleep until the queue has results. The thread polls the queue and
// passes the number of results to Engine.Idle. Only the queue's thread may call Attach and Detach.
// A queue is attached to at most one engine at a time, and once: otherwise Attach fails with
// status.InUse.
func (q *Queue) Attach(engine *progress.Engine) error {
	err := q.attach(engine)
	if err != nil {
		return fmt.Errorf("attach queue %d of volume %q: %w", q.index, q.terms.info.Name, err)
	}
	return nil
}

func (q *Queue) attach(engine *progress.Engine) error {
	switch attached := q.engine.Load(); {
	case engine == nil:
		return status.Errorf(status.InvalidValue, "the engine is nil")
	case q.isClosed:
		return ErrClosed
	case q.events != nil:
		return status.Errorf(status.InUse, "it has an event descriptor")
	case attached == engine:
		return status.Errorf(status.InUse, "it is attached to this engine already")
	case attached != nil:
		return status.Errorf(status.InUse, "it is attached to another engine: Detach it first")
	}
	if q.state != queueLost {
		// The doorbell of a queue that has lost its session would never stop ringing: the queue is
		// attached when it switches to the next one.
		if err := q.pair.attach(engine); err != nil {
			return err
		}
	}
	q.engine.Store(engine)
	return nil
}

// Detach undoes Attach. It does nothing for an engine to which the queue is not attached. Detach a
// queue before the volume is closed.
func (q *Queue) Detach(engine *progress.Engine) {
	if engine != nil && q.engine.CompareAndSwap(engine, nil) {
		q.pair.detach(engine)
	}
}

// Outstanding returns the number of requests whose results have not been polled yet.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) - q.extra }

// WriteVerifier returns the write verifier of the session that the queue uses. It changes whenever
// writes that were not flushed may have been lost. Only the queue's thread may call it.
func (q *Queue) WriteVerifier() uint64 { return q.session.id.writeVerifier }

// Session returns the number of the session that the queue uses. It grows whenever the queue
// switches to another one, and then no request of an earlier session has an effect any more. Only
// the queue's thread may call it.
func (q *Queue) Session() uint64 { return q.session.id.number }

// stopPollInterval is the pause between polls for the response to a stop message.
const stopPollInterval = 50 * time.Microsecond

// stop sends a stop message and waits until the relay returns it. The relay returns it once
// everything submitted before has completed, so nothing of this queue is in flight anywhere
// afterwards. Without a stop message, stop waits for everything itself.
func (q *Queue) stop(ctx context.Context) error {
	if q.state != queueLost && q.session != q.life.session.Load() {
		q.collectLost()
	}
	results := make([]Result, pollBatch)
	for q.state == queueLost {
		// Discard the results of a session that was lost.
		if n := q.Poll(results); n == 0 && q.state == queueLost {
			return q.session.endError()
		}
	}
	for len(q.unsent) > 0 {
		q.Poll(results)
		if q.state == queueLost {
			return q.session.endError()
		}
		if len(q.unsent) > 0 && !retry.Sleep(ctx, stopPollInterval) {
			return status.Errorf(status.TimeOut, "wait until the relay takes %d messages: %w",
				len(q.unsent), ctx.Err())
		}
	}
	q.state = queueStopping
	if q.takesStop() {
		var buf [iomsg.Size]byte
		iomsg.Encode(buf[:], &iomsg.Message{Type: iomsg.Stop})
		if err := q.pair.producer.Send(buf[:], nil); err != nil {
			return fmt.Errorf("send stop: %w", err)
		}
		q.pair.producer.Flush()
	}
	for q.state != queueStopped {
		if !q.takesStop() && q.Outstanding() == 0 {
			return nil
		}
		q.Poll(results) // discard the results: their callers are gone
		if q.state == queueLost {
			return q.session.endError()
		}
		if !retry.Sleep(ctx, stopPollInterval) {
			return status.Errorf(status.TimeOut,
				"wait for the response to stop with %d requests outstanding: %w",
				q.Outstanding(), ctx.Err())
		}
	}
	return nil
}

// takesStop reports whether a stop message ends the queue. In the applications' protocols it ends
// all queues, is sent on the first, and only in 2.10.
func (q *Queue) takesStop() bool {
	foreign := q.session.foreign
	return foreign == nil || foreign.TakesStop() && q.index == 0
}

// close releases the queue, and does nothing the second time.
func (q *Queue) close() error {
	if q.isClosed {
		return nil
	}
	q.isClosed, q.state, q.lost, q.unrung = true, queueLost, nil, false
	err := errors.Join(q.closeEvents(), q.pair.close())
	if next := q.next.Swap(nil); next != nil {
		err = errors.Join(err, next.pairs[q.index].close())
	}
	return err
}
