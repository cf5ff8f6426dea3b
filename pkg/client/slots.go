// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// syncIO carries out the requests of the blocking methods on its own queue and OS thread.
//
// Besides the slots for calls there are spare ones. When a caller leaves, a spare takes the place
// of each slot that its call still uses, so that requests that nobody waits for leave the others
// all of the depth. Without a spare, the call keeps the place.
type syncIO struct {
	common
	queue  *Queue
	engine *progress.Engine
	slots  []syncSlot
	free   chan *syncSlot

	mu    sync.Mutex  // guards the fields below
	spare []*syncSlot // that take the place of others
	// given holds the reads whose callers have left. If no spare is left, other reads of their
	// blocks wait for them: one block that never responds must not use up everything.
	given []*read

	// ranges are being changed. No caller waits for one while it holds another.
	ranges  rangelock.Locks
	results [pollBatch]Result
	// parked holds the slots whose requests the queue does not take at the moment, in their order.
	// retried is the spare list.
	parked, retried []*syncSlot

	stopping atomic.Bool
	running  sync.WaitGroup
}

// syncSlot is a request with a buffer in the data memory.
type syncSlot struct {
	owner     *syncIO
	request   Request
	call      *call       // that the request belongs to
	memory    *dataMemory // that buffer is a part of
	buffer    []byte
	command   func() // submit, bound once so that passing it to the engine does not allocate
	done      chan Result
	since     int64  // when the request began, according to the clock
	session   uint64 // number of the session that the request was submitted to
	exposedTo uint64 // the latest session whose relay may still use buffer; 0 if none may
	submitErr error  // why Submit failed
	replaced  bool   // a spare has taken its place; syncIO.mu guards it
}

// startSyncIO starts the thread that owns queue.
func startSyncIO(queue *Queue) (*syncIO, error) {
	t := queue.terms
	engine, err := progress.NewEngine(t.config.Policy)
	if err != nil {
		return nil, err
	}
	count := t.config.SyncDepth + t.spareSlots
	s := &syncIO{
		common: queue.common, queue: queue, engine: engine,
		slots: make([]syncSlot, count), free: make(chan *syncSlot, count),
		parked: make([]*syncSlot, 0, count), retried: make([]*syncSlot, 0, count),
	}
	for i := range s.slots {
		slot := &s.slots[i]
		slot.owner, slot.request.Tag = s, uint64(i)
		slot.request.Memory = t.config.MemorySize + uint64(i)*uint64(t.info.BufferSize)
		slot.switchMemory()
		slot.command, slot.done = slot.submit, make(chan Result, 1)
		if i < t.config.SyncDepth {
			s.free <- slot
		} else {
			s.spare = append(s.spare, slot)
		}
	}
	if err := errors.Join(s.queue.Attach(engine), engine.Add(s)); err != nil {
		_ = engine.Close()
		return nil, err
	}
	s.running.Go(s.run)
	return s, nil
}

// acquire waits for a free slot. It fails if the caller leaves before, or if no slot can be used
// again because the volume is over.
func (s *syncIO) acquire(c *call) (*syncSlot, error) {
	for {
		if err := c.err(); err != nil {
			return nil, err
		}
		select {
		case slot := <-s.free:
			exposedTo := slot.exposedTo
			if s.lend(c, slot) {
				return slot, nil
			}
			if err := s.life.awaitSession(exposedTo); err != nil {
				return nil, fmt.Errorf("volume %q: %w", s.terms.info.Name, err)
			}
		case <-c.hasLeft():
		}
	}
}

// lend lets a call use a free slot, and reports whether it can. The buffer of a request that was
// cut off stays as it is until a later session has begun: the relay may still carry out the
// request, with whatever the buffer holds by then. A volume that has failed or is being closed has
// no later session, so the slot is never used again.
func (s *syncIO) lend(c *call, slot *syncSlot) bool {
	if slot.exposedTo >= s.life.session.Load().id.number {
		s.free <- slot
		return false
	}
	slot.switchMemory() // before the call copies data to the buffer, which may be in quarantine
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots = append(c.slots, slot)
	if c.left != nil {
		slot.replace(c.read)
	}
	return true
}

// release undoes acquire.
func (s *syncIO) release(c *call, slot *syncSlot) {
	if c != nil {
		c.mu.Lock()
		c.slots = slices.DeleteFunc(c.slots, func(other replaceable) bool { return other == slot })
		c.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot.replaced {
		slot.replaced = false
		s.spare = append(s.spare, slot)
		return
	}
	s.free <- slot // it has room for all
}

// replace lets a spare take the place of the slot, because the caller has left.
func (slot *syncSlot) replace(r *read) {
	s := slot.owner
	s.mu.Lock()
	defer s.mu.Unlock()
	if r != nil && !slices.Contains(s.given, r) {
		s.given = append(s.given, r)
	}
	if last := len(s.spare) - 1; last >= 0 {
		slot.replaced = true
		s.free <- s.spare[last]
		s.spare = s.spare[:last]
	}
}

// beginRead waits until a read of a range may begin. It fails if the caller leaves before.
func (s *syncIO) beginRead(c *call, start, end uint64) (*read, error) {
	if !s.ranges.WaitToRead(start, end, c.hasLeft()) {
		return nil, c.err()
	}
	for given := s.overlapping(start, end); given != nil; given = s.overlapping(start, end) {
		select {
		case <-given.ended:
		case <-c.hasLeft():
			return nil, c.err()
		}
	}
	if c == nil {
		return nil, nil
	}
	r := &read{start: start, end: end, ended: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = r
	return r, nil
}

// overlapping returns a read that a read of a range has to wait for, or nil.
func (s *syncIO) overlapping(start, end uint64) *read {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spare) > 0 {
		return nil
	}
	for _, r := range s.given {
		if r.start < end && start < r.end {
			return r
		}
	}
	return nil
}

// endRead undoes beginRead.
func (s *syncIO) endRead(c *call, r *read) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = slices.DeleteFunc(s.given, func(other *read) bool { return other == r })
	close(r.ended)
}

// run is the loop of the thread that owns the queue.
func (s *syncIO) run() {
	runtime.LockOSThread()
	log := s.terms.logger()
	log.Debug("begin in the background", zap.String("task", "blocking methods"))
	for !s.stopping.Load() {
		s.engine.Idle(s.engine.Progress())
	}
	log.Debug("end in the background", zap.String("task", "blocking methods"))
}

// Poll passes results to the callers that wait for them, and submits what is parked.
func (s *syncIO) Poll() int {
	n := s.queue.Poll(s.results[:])
	for _, result := range s.results[:n] {
		slot := &s.slots[result.Tag]
		if !result.Quarantined {
			slot.exposedTo = 0
		}
		slot.done <- result
	}
	return n + s.submitParked()
}

// submitParked submits the parked requests, and returns how many are no longer parked. What makes
// the queue take requests again also wakes the thread: the evidence that a lost session's memory is
// safe to use, or a receive of the relay.
func (s *syncIO) submitParked() int {
	if len(s.parked) == 0 {
		return 0
	}
	s.parked, s.retried = s.retried[:0], s.parked
	for _, slot := range s.retried {
		slot.submit()
	}
	if len(s.parked) == 0 {
		s.queue.pair.hasRoom(s.engine)
	} else {
		s.checkParked(s.parked[0])
	}
	return len(s.retried) - len(s.parked)
}

// checkParked fails the session if the relay has not taken the oldest parked request within
// IOTimeout.
func (s *syncIO) checkParked(oldest *syncSlot) {
	limit := s.terms.config.IOTimeout
	if limit >= 0 && time.Duration(s.clock.Load()-oldest.since) > limit {
		s.queue.session.fail(status.Errorf(status.TimeOut,
			"relay did not take an IO within %v", limit))
	}
}

// park keeps a request until the queue takes it.
func (s *syncIO) park(slot *syncSlot) {
	s.parked = append(s.parked, slot)
	if s.queue.state == queueLost {
		slot.since = s.clock.Load() // the next session's relay gets all of the time
	} else {
		s.queue.pair.awaitRoom(s.engine)
	}
}

// submit submits the slot's request. It runs on the queue's thread. There are never more slots than
// the queue's depth.
func (slot *syncSlot) submit() {
	q := slot.owner.queue
	if slot.owner.stopping.Load() {
		slot.done <- Result{Code: status.Shutdown}
		return
	}
	if err := slot.call.err(); err != nil {
		slot.submitErr = err // the caller has left, and nobody wants the request any more
		slot.done <- Result{Code: status.Unknown}
		return
	}
	if slot.memory.generation < q.memory.generation {
		slot.session = 0 // nothing to wait for: wait moves the slot to the new memory
		slot.done <- Result{Code: status.Again}
		return
	}
	err := q.Submit(&slot.request)
	slot.session = q.session.id.number
	switch {
	case err == nil:
		slot.exposedTo = slot.session
		q.Ring()
	case errors.Is(err, ErrMemoryReplaced):
		q.SwitchMemory()
		slot.submit()
	case errors.Is(err, ErrReopening):
		slot.done <- Result{Code: status.Again}
	case errors.Is(err, status.Again):
		slot.owner.park(slot)
	default:
		slot.submitErr = err
		slot.done <- Result{Code: status.CodeOf(err)}
	}
}

// switchMemory moves the slot, with the content of its buffer, to the memory of the volume's
// current session. Only whoever has claimed the slot may call it, and no request may be
// outstanding.
func (slot *syncSlot) switchMemory() {
	s := slot.owner
	memory := func() *dataMemory { return s.life.session.Load().memory.dataMemory }
	if memory() == slot.memory {
		return
	}
	current := s.memories.claim(memory)
	buffer := current.Bytes()[slot.request.Memory:][:s.terms.info.BufferSize]
	if slot.memory != nil {
		copy(buffer, slot.buffer)
		slot.memory.users.Add(-1)
	}
	slot.memory, slot.buffer = current, buffer
}

// switchMemory moves the slots that are free to the memory of the volume's current session. The
// others move when they are used again.
func (s *syncIO) switchMemory() {
	s.mu.Lock()
	for _, slot := range s.spare {
		slot.switchMemory()
	}
	s.mu.Unlock()
	for range s.slots {
		select {
		case slot := <-s.free:
			slot.switchMemory()
			s.free <- slot
		default:
			return
		}
	}
}

// start submits a new request from the slot.
func (slot *syncSlot) start(c *call, t RequestType, flags Flags, offset uint64, length uint32) {
	slot.call, slot.request.Type, slot.request.Flags = c, t, flags
	slot.request.Offset, slot.request.Length = offset, length
	slot.restart()
}

// restart submits the slot's previous request again.
func (slot *syncSlot) restart() {
	slot.submitErr, slot.since = nil, slot.owner.clock.Load()
	slot.switchMemory()
	if !slot.owner.engine.Do(slot.command) {
		slot.done <- Result{Code: status.Shutdown}
	}
}

// wait waits for the outcome of start. If a lost session left the request unfinished, wait repeats
// it in the next session, unless the caller has left. Either way wait returns when the request has
// no effect any more, because a session is served only after all IO of the sessions before it has
// finished. If there will be no next session, the request may still have an effect, and the slot
// stays exposed. A repeated read returns the data at the time of the repetition.
func (slot *syncSlot) wait() error {
	s := slot.owner
	var repeats retry.Repeats
	for {
		result := <-slot.done
		if result.Code == status.Success {
			return nil
		}
		if !s.life.canReconnect || (result.Code != status.Again && !isSessionEnd(result.Code)) {
			return slot.failure(&result)
		}
		canRepeat := repeats.Allow(time.Now(), s.terms.config.Reconnect.Total)
		if err := s.life.awaitSession(slot.session); err != nil {
			return fmt.Errorf("%v: %w", slot, err)
		}
		if !canRepeat {
			return slot.failure(&result)
		}
		slot.restart()
	}
}

// failure returns the error of a failed request. It includes the volume's error if the volume has
// failed.
func (slot *syncSlot) failure(result *Result) error {
	if slot.submitErr != nil {
		return fmt.Errorf("%v: %w", slot, slot.submitErr)
	}
	life, err := slot.owner.life, result.Err()
	err = fmt.Errorf("%v: %w", slot, err)
	if result.Code == status.Shutdown && life.isClosed() {
		return fmt.Errorf("%v: %w", slot, life.err())
	}
	if end := life.err(); end != nil {
		return fmt.Errorf("%w (%w)", err, end)
	}
	return err
}

// String describes the slot's request for errors.
func (slot *syncSlot) String() string {
	r := &slot.request
	return slot.owner.terms.describe(r.Type, int64(r.Offset), int64(r.Length))
}

// stop ends the thread and transfers the queue to the caller. Calls that still wait get
// ErrClosed.
func (s *syncIO) stop() {
	s.stopping.Store(true)
	s.engine.Wake()
	s.running.Wait()
	s.queue.Detach(s.engine)
	if err := s.engine.Close(); err != nil {
		s.terms.config.Logger.Sugar().Warnf("release the progress engine of volume %q: %v",
			s.terms.info.Name, err)
	}
	for outstanding := range s.queue.Pending() {
		s.slots[outstanding.Tag].done <- Result{Code: status.Shutdown}
	}
	for _, slot := range s.parked {
		slot.done <- Result{Code: status.Shutdown}
	}
}
