package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pollBatch is how many answers a queue takes from the relay at a time.
const pollBatch = 32

// spareReceives is the room, beyond the depth, for the answer to stop.
const spareReceives = 4

// Request is one operation of a Queue.
type Request struct {
	// Type is iomsg.Read, Write, Flush, Trim or WriteZeroes.
	Type iomsg.Type
	// Flags may be iomsg.FUA.
	Flags iomsg.Flags
	// Length is the number of bytes, a multiple of the block size; at most
	// Info.BufferSize if data is moved.
	Length uint32
	// Offset is where in the volume, a multiple of the block size.
	Offset uint64
	// Memory is where the data lies in Volume.Memory.
	Memory uint64
	// Tag comes back in the result.
	Tag uint64
}

// volatile reports whether a restart of the target can undo the request after
// it has been acknowledged. What is left of a trim is undefined anyway.
func (r *Request) volatile() bool {
	return (r.Type == iomsg.Write || r.Type == iomsg.WriteZeroes) && r.Flags&iomsg.FUA == 0
}

// Result is the outcome of a Request.
type Result struct {
	Tag  uint64
	Code status.Code
}

// Queue submits requests and polls for their results. Requests are carried
// out in any order. A queue is used by one thread at a time; nothing in
// Submit, Flush and Poll allocates, blocks or locks, but for flush requests
// and changes of the session.
type Queue struct {
	volume   *Volume
	index    int
	lane     *lane
	slots    []slot
	free     []uint32
	received [pollBatch]comch.Received
	// encoded is a field because what goes through an interface would
	// otherwise be allocated for each request.
	encoded [iomsg.Size]byte

	ended     bool // the session is gone; what was outstanding fails
	ending    bool // the session is about to end: an answer has told
	failed    []uint32
	stopSent  bool
	stopped   bool
	unflushed bool
	checkedAt int64 // when deadlines were last looked at, by Volume.clock

	next         atomic.Pointer[lane]    // in the session to go over to
	session      atomic.Pointer[session] // that of lane, for other threads
	engine       atomic.Pointer[progress.Engine]
	acknowledged atomic.Uint64 // writes that a restart of the target may lose
	lossesSeen   uint64        // guarded by acknowledgedWrites
}

// slot is an outstanding request.
type slot struct {
	tag         uint64
	generation  uint32
	outstanding bool
	volatile    bool     // a write that a flush must follow
	flush       bool     // that makes cover durable
	cover       []uint64 // made when first needed
	since       int64    // by Volume.clock
}

func newQueue(volume *Volume, index int, l *lane) *Queue {
	depth := volume.info.Depth
	q := &Queue{
		volume: volume, index: index, lane: l,
		slots: make([]slot, depth), free: make([]uint32, depth), failed: make([]uint32, 0, depth),
	}
	q.session.Store(l.session)
	for i := range q.free {
		q.free[i] = uint32(depth - 1 - i)
	}
	return q
}

// Outstanding is how many requests have been submitted and have no result
// yet.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) }

// WriteVerifier is that of the session that the queue works in: it changes
// whenever the target has restarted. It is for the queue's thread.
func (q *Queue) WriteVerifier() uint64 { return q.lane.session.info.WriteVerifier }

// Submit sends a request on its way; Flush makes sure that a sleeping relay
// notices. status.Again means that the queue's depth is exhausted: poll first.
// ErrReopening, which matches it, means that the volume is being reopened: go
// on polling. A flush fails with ErrWritesLost where Config.Reconnect says so.
// After the end of the volume Submit fails with Volume.Err.
func (q *Queue) Submit(r *Request) error {
	if q.ended || q.ending || q.stopSent {
		if err := q.resume(); err != nil {
			return err
		}
	}
	n := len(q.free)
	if n == 0 {
		return status.Again
	}
	index := q.free[n-1]
	s := &q.slots[index]
	s.flush = r.Type == iomsg.Flush
	if s.flush {
		if err := q.beginFlush(s); err != nil {
			return err
		}
	}
	iomsg.Encode(q.encoded[:], &iomsg.Message{
		Type: r.Type, UserData: uint64(s.generation+1)<<32 | uint64(index), IOSize: r.Length,
		RequesterOffset: r.Memory, StorageOffset: r.Offset, Flags: r.Flags,
	})
	if err := q.lane.producer.Send(q.encoded[:], nil); err != nil {
		return q.unsent(err)
	}
	q.unflushed = true
	q.free = q.free[:n-1]
	s.generation++
	s.tag, s.outstanding, s.since = r.Tag, true, q.volume.clock.Load()
	s.volatile = r.volatile()
	return nil
}

// resume is called for a request that the lane cannot take. It succeeds if
// there is another lane.
func (q *Queue) resume() error {
	switch {
	case q.stopSent:
		return q.lane.session.endError()
	case len(q.failed) > 0:
		return status.Again
	case q.ended && q.goOver():
		return nil
	}
	if err := q.volume.Err(); err != nil {
		return err
	}
	if !q.volume.reopens() {
		return q.lane.session.endError()
	}
	return ErrReopening
}

// unsent is the outcome of a Submit that the lane did not take.
func (q *Queue) unsent(err error) error {
	switch {
	case errors.Is(err, status.Again):
		return status.Again
	case q.volume.reopens():
		return ErrReopening // Poll finds the session ended
	}
	return q.lane.session.endError()
}

// beginFlush prepares a slot for a flush, which has to tell of lost writes
// instead if there are any.
func (q *Queue) beginFlush(s *slot) error {
	if s.cover == nil {
		s.cover = make([]uint64, len(q.volume.queues))
	}
	return q.volume.writes.flushing(q, q.volume.queues, s.cover)
}

// Flush wakes a sleeping relay for what has been submitted. It is called once
// after a batch of Submit.
func (q *Queue) Flush() {
	if q.unflushed {
		q.unflushed = false
		q.lane.producer.Flush()
	}
}

// Poll fills results with outcomes and returns their number. When the session
// has ended, everything outstanding fails with status.ConnectionReset,
// Shutdown or TimeOut, or, in a volume that is not reopened, with the code of
// Volume.Err.
func (q *Queue) Poll(results []Result) int {
	if q.ended {
		return q.pollEnded(results)
	}
	limit := min(len(results), pollBatch)
	consumer := q.lane.consumer
	// Asked first: what came before the end is found by the poll behind it.
	running := consumer.State() == progress.Running
	n := consumer.Poll(q.received[:limit])
	if n == 0 {
		return q.pollNothing(results, running)
	}
	count := 0
	for i := range q.received[:n] {
		if q.take(&q.received[i], &results[count]) {
			count++
		}
	}
	consumer.Flush()
	return count
}

// take turns one received message into a result; ok is false if it is none.
func (q *Queue) take(r *comch.Received, result *Result) (ok bool) {
	var buf [iomsg.Size]byte
	consumer, session := q.lane.consumer, q.lane.session
	if r.Length != iomsg.Size {
		session.violation(status.Errorf(status.InvalidValue, "relay sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return false
	}
	// Copied once: the relay can change the buffer at any time.
	copy(buf[:], consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		session.violation(fmt.Errorf("post receive: %w", err))
		return false
	}
	var m iomsg.Message
	iomsg.Decode(buf[:], &m)
	if m.Type == iomsg.Stop && q.stopSent && !q.stopped {
		q.stopped = true
		return false
	}
	index, generation := uint32(m.UserData), uint32(m.UserData>>32)
	if m.Type != iomsg.Result || index >= uint32(len(q.slots)) ||
		!q.slots[index].outstanding || q.slots[index].generation != generation {
		session.violation(status.Errorf(status.Unexpected, "relay sent type %d for transaction %#x, which is not outstanding", uint32(m.Type), m.UserData))
		return false
	}
	*result = Result{Tag: q.slots[index].tag, Code: m.Result}
	q.answered(&q.slots[index], m.Result)
	q.release(index)
	return true
}

// answered takes note of what the outcome of a request means for others.
func (q *Queue) answered(s *slot, code status.Code) {
	switch {
	case code != status.Success:
		if q.volume.reopens() && tellsEnd(code) && !q.ending {
			q.ending = true
			q.lane.session.expectEnd(code)
		}
	case s.volatile:
		q.acknowledged.Store(q.acknowledged.Load() + 1)
	case s.flush:
		q.volume.writes.flushed(s.cover)
	}
}

// tellsEnd reports whether an answer with code means that no further request
// of the session will succeed.
func tellsEnd(code status.Code) bool {
	switch code {
	case status.ConnectionReset, status.Shutdown, status.TimeOut:
		return true
	}
	return false
}

func (q *Queue) release(index uint32) {
	q.slots[index].outstanding = false
	q.free = append(q.free, index)
}

// pollNothing looks for the reasons why nothing may ever come.
func (q *Queue) pollNothing(results []Result, running bool) int {
	if !running {
		q.end()
		return q.pollEnded(results)
	}
	if now := q.volume.clock.Load(); now != q.checkedAt {
		q.checkedAt = now
		q.checkDeadline(now)
	}
	return 0
}

// checkDeadline ends the session if a request takes too long.
func (q *Queue) checkDeadline(now int64) {
	limit := q.volume.config.IOTimeout
	if limit < 0 {
		return
	}
	for i := range q.slots {
		if s := &q.slots[i]; s.outstanding && time.Duration(now-s.since) > limit {
			q.lane.session.fail(status.Errorf(status.TimeOut, "relay did not answer an IO within %v", limit))
			return
		}
	}
}

// end fails everything outstanding.
func (q *Queue) end() {
	q.ended = true
	for i := range q.slots {
		if q.slots[i].outstanding {
			q.slots[i].outstanding = false
			q.failed = append(q.failed, uint32(i))
		}
	}
	if engine := q.engine.Load(); engine != nil && q.volume.reopens() {
		// Its doorbell would not stop ringing.
		engine.RemoveWaiter(q.lane.consumer)
	}
}

// pollEnded reports what has failed, and then goes over to the next session
// if there is one.
func (q *Queue) pollEnded(results []Result) int {
	n := min(len(results), len(q.failed))
	if n == 0 {
		q.goOver()
		return 0
	}
	code := q.lossCode()
	for i := range n {
		index := q.failed[len(q.failed)-1-i]
		results[i] = Result{Tag: q.slots[index].tag, Code: code}
		q.release(index)
	}
	q.failed = q.failed[:len(q.failed)-n]
	return n
}

// lossCode is how requests fail that the end of a session has left open.
func (q *Queue) lossCode() status.Code {
	code := status.CodeOf(q.lane.session.endError())
	if q.volume.reopens() && !tellsEnd(code) {
		return status.ConnectionReset
	}
	return code
}

// goOver takes the lane in the next session, if there is one, into use.
// Everything outstanding in the former has been reported.
func (q *Queue) goOver() bool {
	next := q.next.Swap(nil)
	if next == nil {
		return false
	}
	former := q.lane
	q.volume.writes.goingOver(q, former.session, next.session)
	q.lane, q.ended, q.ending, q.unflushed = next, false, false, false
	q.session.Store(next.session)
	if err := former.close(); err != nil {
		q.volume.config.Logger.Sugar().Warnf("release a lane of a lost session: %v", err)
	}
	if engine := q.engine.Load(); engine != nil {
		if err := engine.AddWaiter(next.consumer); err != nil {
			next.session.fail(err) // Poll finds it ended
		}
	}
	return true
}

// offer gives the queue the lane to go over to, in place of one that it has
// not taken.
func (q *Queue) offer(next *lane) {
	if unused := q.next.Swap(next); unused != nil {
		if err := unused.close(); err != nil {
			q.volume.config.Logger.Sugar().Warnf("release a lane of a lost session: %v", err)
		}
	}
	q.wake()
}

// wake makes the engine that the queue is attached to poll it.
func (q *Queue) wake() {
	if engine := q.engine.Load(); engine != nil {
		engine.Wake()
	}
}

// Attach lets engine's thread sleep until the queue has results: the thread
// polls the queue and passes what it found to Engine.Idle. A queue is attached
// to one engine at a time.
func (q *Queue) Attach(engine *progress.Engine) error {
	if err := engine.AddWaiter(q.lane.consumer); err != nil {
		return fmt.Errorf("attach queue: %w", err)
	}
	q.engine.Store(engine)
	return nil
}

// Detach ends what Attach began.
func (q *Queue) Detach(engine *progress.Engine) {
	q.engine.Store(nil)
	engine.RemoveWaiter(q.lane.consumer)
}

// stopPollInterval is how often a queue looks for the answer to its stop.
const stopPollInterval = 50 * time.Microsecond

// stop sends the stop message and waits until it has come back: then nothing
// of the queue is under way any more, anywhere.
func (q *Queue) stop(ctx context.Context) error {
	if !q.ended && q.lane.session != q.volume.session.Load() {
		q.end()
	}
	results := make([]Result, pollBatch)
	for q.ended {
		// Nobody waits for what is left of a session that was lost.
		if n := q.Poll(results); n == 0 && q.ended {
			return q.lane.session.endError()
		}
	}
	var buf [iomsg.Size]byte
	iomsg.Encode(buf[:], &iomsg.Message{Type: iomsg.Stop})
	if err := q.lane.producer.Send(buf[:], nil); err != nil {
		return fmt.Errorf("send stop: %w", err)
	}
	q.lane.producer.Flush()
	q.stopSent = true
	for !q.stopped {
		q.Poll(results) // outcomes that nobody waits for any more
		if q.ended {
			return q.lane.session.endError()
		}
		select {
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the answer to stop with %d requests outstanding: %w", q.Outstanding(), ctx.Err())
		case <-time.After(stopPollInterval):
		}
	}
	return nil
}

// undelivered calls each for every request whose result has not been polled.
func (q *Queue) undelivered(each func(tag uint64)) {
	for i := range q.slots {
		if q.slots[i].outstanding {
			each(q.slots[i].tag)
		}
	}
	for _, index := range q.failed {
		each(q.slots[index].tag)
	}
}

func (q *Queue) close() error {
	err := q.lane.close()
	if next := q.next.Swap(nil); next != nil {
		err = errors.Join(err, next.close())
	}
	return err
}
