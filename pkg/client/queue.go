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
	pair     *comchPair
	slots    []slot
	free     []uint32
	received [pollBatch]comch.Received
	// encoded is a field because what goes through an interface would
	// otherwise be allocated for each request.
	encoded [iomsg.Size]byte

	disconnected bool // the session is gone; what was outstanding fails
	draining     bool // the session is about to end: an answer has told
	failed       []uint32
	stopSent     bool
	stopped      bool
	unflushed    bool
	checkedAt    int64 // when deadlines were last looked at, by Volume.clock

	next         atomic.Pointer[comchPair] // in the session to go over to
	session      atomic.Pointer[session]   // that of lane, for other threads
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

func newQueue(volume *Volume, index int, pair *comchPair) *Queue {
	depth := volume.info.Depth
	q := &Queue{
		volume: volume, index: index, pair: pair,
		slots: make([]slot, depth), free: make([]uint32, depth), failed: make([]uint32, 0, depth),
	}
	q.session.Store(pair.session)
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
func (q *Queue) WriteVerifier() uint64 { return q.pair.session.info.WriteVerifier }

// Submit sends a request on its way; Flush makes sure that a sleeping relay
// notices. status.Again means that the queue's depth is exhausted: poll first.
// ErrReopening, which matches it, means that the volume is being reopened: go
// on polling. A flush fails with ErrWritesLost where Config.Reconnect says so.
// After the end of the volume Submit fails with Volume.Err.
func (q *Queue) Submit(r *Request) error {
	if q.disconnected || q.draining || q.stopSent {
		if err := q.recoverSession(); err != nil {
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
		if s.cover == nil {
			s.cover = make([]uint64, len(q.volume.queues))
		}
		if err := q.volume.writes.beginFlush(q, q.volume.queues, s.cover); err != nil {
			return err
		}
	}
	iomsg.Encode(q.encoded[:], &iomsg.Message{
		Type: r.Type, UserData: uint64(s.generation+1)<<32 | uint64(index), IOSize: r.Length,
		RequesterOffset: r.Memory, StorageOffset: r.Offset, Flags: r.Flags,
	})
	if err := q.pair.producer.Send(q.encoded[:], nil); err != nil {
		switch {
		case errors.Is(err, status.Again):
			return status.Again
		case q.volume.reconnects():
			return ErrReopening // Poll finds the session ended
		}
		return q.pair.session.endError()
	}
	q.unflushed = true
	q.free = q.free[:n-1]
	s.generation++
	s.tag, s.outstanding, s.since = r.Tag, true, q.volume.clock.Load()
	s.volatile = r.volatile()
	return nil
}

// recoverSession is called for a request that the lane cannot take. It succeeds if
// there is another lane.
func (q *Queue) recoverSession() error {
	switch {
	case q.stopSent:
		return q.pair.session.endError()
	case len(q.failed) > 0:
		return status.Again
	case q.disconnected && q.switchSession():
		return nil
	}
	if err := q.volume.Err(); err != nil {
		return err
	}
	if !q.volume.reconnects() {
		return q.pair.session.endError()
	}
	return ErrReopening
}

// Flush wakes a sleeping relay for what has been submitted. It is called once
// after a batch of Submit.
func (q *Queue) Flush() {
	if q.unflushed {
		q.unflushed = false
		q.pair.producer.Flush()
	}
}

// Poll fills results with outcomes and returns their number. When the session
// has ended, everything outstanding fails with status.ConnectionReset,
// Shutdown or TimeOut, or, in a volume that is not reopened, with the code of
// Volume.Err.
func (q *Queue) Poll(results []Result) int {
	if q.disconnected {
		return q.pollFailed(results)
	}
	consumer := q.pair.consumer
	// Asked first: what came before the end is found by the poll behind it.
	running := consumer.State() == progress.Running
	n := consumer.Poll(q.received[:min(len(results), pollBatch)])
	if n == 0 && !running {
		q.failOutstanding()
		return q.pollFailed(results)
	}
	if n == 0 {
		q.checkDeadlines()
		return 0
	}
	count := 0
	for i := range q.received[:n] {
		if q.receive(&q.received[i], &results[count]) {
			count++
		}
	}
	consumer.Flush()
	return count
}

// receive turns one received message into a result; ok is false if it is none.
func (q *Queue) receive(r *comch.Received, result *Result) (ok bool) {
	var buf [iomsg.Size]byte
	consumer, session := q.pair.consumer, q.pair.session
	if r.Length != iomsg.Size {
		session.failProtocol(status.Errorf(status.InvalidValue, "relay sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return false
	}
	// Copied once: the relay can change the buffer at any time.
	copy(buf[:], consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		session.failProtocol(fmt.Errorf("post receive: %w", err))
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
		session.failProtocol(status.Errorf(status.Unexpected, "relay sent type %d for transaction %#x, which is not outstanding", uint32(m.Type), m.UserData))
		return false
	}
	s := &q.slots[index]
	*result = Result{Tag: s.tag, Code: m.Result}
	switch {
	case m.Result != status.Success:
		if q.volume.reconnects() && endsSession(m.Result) && !q.draining {
			q.draining = true
			session.expectEnd(m.Result)
		}
	case s.volatile:
		q.acknowledged.Store(q.acknowledged.Load() + 1)
	case s.flush:
		q.volume.writes.completeFlush(s.cover)
	}
	q.release(index)
	return true
}

// endsSession reports whether an answer with code means that no further request
// of the session will succeed.
func endsSession(code status.Code) bool {
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

// checkDeadlines ends the session if a request takes too long.
func (q *Queue) checkDeadlines() {
	now, limit := q.volume.clock.Load(), q.volume.config.IOTimeout
	if now == q.checkedAt || limit < 0 {
		return
	}
	q.checkedAt = now
	for i := range q.slots {
		if s := &q.slots[i]; s.outstanding && time.Duration(now-s.since) > limit {
			q.pair.session.fail(status.Errorf(status.TimeOut, "relay did not answer an IO within %v", limit))
			return
		}
	}
}

// failOutstanding fails everything outstanding.
func (q *Queue) failOutstanding() {
	q.disconnected = true
	for i := range q.slots {
		if q.slots[i].outstanding {
			q.slots[i].outstanding = false
			q.failed = append(q.failed, uint32(i))
		}
	}
	if engine := q.engine.Load(); engine != nil && q.volume.reconnects() {
		// Its doorbell would not stop ringing.
		engine.RemoveWaiter(q.pair.consumer)
	}
}

// pollFailed reports what has failed, and then goes over to the next session
// if there is one.
func (q *Queue) pollFailed(results []Result) int {
	n := min(len(results), len(q.failed))
	if n == 0 {
		q.switchSession()
		return 0
	}
	code := q.failureCode()
	for i := range n {
		index := q.failed[len(q.failed)-1-i]
		results[i] = Result{Tag: q.slots[index].tag, Code: code}
		q.release(index)
	}
	q.failed = q.failed[:len(q.failed)-n]
	return n
}

// failureCode is how requests fail that the end of a session has left open.
func (q *Queue) failureCode() status.Code {
	code := status.CodeOf(q.pair.session.endError())
	if q.volume.reconnects() && !endsSession(code) {
		return status.ConnectionReset
	}
	return code
}

// switchSession takes the lane in the next session, if there is one, into use.
// Everything outstanding in the former has been reported.
func (q *Queue) switchSession() bool {
	next := q.next.Swap(nil)
	if next == nil {
		return false
	}
	former := q.pair
	q.volume.writes.switchSession(q, former.session, next.session)
	q.pair, q.disconnected, q.draining, q.unflushed = next, false, false, false
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

// setNext gives the queue the lane to go over to, in place of one that it has
// not taken.
func (q *Queue) setNext(next *comchPair) {
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
	if err := engine.AddWaiter(q.pair.consumer); err != nil {
		return fmt.Errorf("attach queue: %w", err)
	}
	q.engine.Store(engine)
	return nil
}

// Detach ends what Attach began.
func (q *Queue) Detach(engine *progress.Engine) {
	q.engine.Store(nil)
	engine.RemoveWaiter(q.pair.consumer)
}

// stopPollInterval is how often a queue looks for the answer to its stop.
const stopPollInterval = 50 * time.Microsecond

// stop sends the stop message and waits until it has come back: then nothing
// of the queue is under way any more, anywhere.
func (q *Queue) stop(ctx context.Context) error {
	if !q.disconnected && q.pair.session != q.volume.session.Load() {
		q.failOutstanding()
	}
	results := make([]Result, pollBatch)
	for q.disconnected {
		// Nobody waits for what is left of a session that was lost.
		if n := q.Poll(results); n == 0 && q.disconnected {
			return q.pair.session.endError()
		}
	}
	var buf [iomsg.Size]byte
	iomsg.Encode(buf[:], &iomsg.Message{Type: iomsg.Stop})
	if err := q.pair.producer.Send(buf[:], nil); err != nil {
		return fmt.Errorf("send stop: %w", err)
	}
	q.pair.producer.Flush()
	q.stopSent = true
	for !q.stopped {
		q.Poll(results) // outcomes that nobody waits for any more
		if q.disconnected {
			return q.pair.session.endError()
		}
		select {
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the answer to stop with %d requests outstanding: %w", q.Outstanding(), ctx.Err())
		case <-time.After(stopPollInterval):
		}
	}
	return nil
}

// eachOutstanding calls each for every request whose result has not been polled.
func (q *Queue) eachOutstanding(each func(tag uint64)) {
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
	err := q.pair.close()
	if next := q.next.Swap(nil); next != nil {
		err = errors.Join(err, next.close())
	}
	return err
}
