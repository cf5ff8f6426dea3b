package client

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// synchronous carries out the requests of ReadAt and the others on a queue
// and a thread of its own.
type synchronous struct {
	volume  *Volume
	queue   *Queue
	engine  *progress.Engine
	slots   []syncSlot
	free    chan *syncSlot
	ranges  *rangeLock
	results [pollBatch]Result

	stopping atomic.Bool
	ended    sync.WaitGroup
}

// syncSlot is a request with a buffer of its own in the data memory.
type syncSlot struct {
	owner   *synchronous
	request Request
	buffer  []byte
	submit  func() // made once, so that handing over does not allocate
	done    chan status.Code
	session uint64 // number of the one that the request was submitted to
	refusal error  // of the submission
}

func (v *Volume) startSynchronous() error {
	engine, err := progress.NewEngine(v.config.Policy)
	if err != nil {
		return err
	}
	s := &synchronous{
		volume: v, queue: v.queues[v.config.Queues], engine: engine,
		slots: make([]syncSlot, v.config.SyncDepth), free: make(chan *syncSlot, v.config.SyncDepth),
		ranges: newRangeLock(),
	}
	size := uint64(v.info.BufferSize)
	for i := range s.slots {
		slot := &s.slots[i]
		start := v.config.MemorySize + uint64(i)*size
		slot.owner, slot.buffer = s, v.region.Bytes()[start:start+size]
		slot.request.Memory, slot.request.Tag = start, uint64(i)
		slot.submit, slot.done = slot.hand, make(chan status.Code, 1)
		s.free <- slot
	}
	if err := errors.Join(s.queue.Attach(engine), engine.Add(s)); err != nil {
		_ = engine.Close()
		return err
	}
	v.synchronous.Store(s)
	s.ended.Go(s.run)
	return nil
}

// run is the thread behind the synchronous requests.
func (s *synchronous) run() {
	runtime.LockOSThread()
	for !s.stopping.Load() {
		s.engine.Idle(s.engine.Progress())
	}
}

// Poll implements progress.Source.
func (s *synchronous) Poll() int {
	n := s.queue.Poll(s.results[:])
	for _, result := range s.results[:n] {
		s.slots[result.Tag].done <- result.Code
	}
	return n
}

// hand submits a slot's request on the queue's thread. There are never more
// slots than the queue is deep.
func (slot *syncSlot) hand() {
	q := slot.owner.queue
	err := q.Submit(&slot.request)
	slot.session = q.lane.session.number
	switch {
	case err == nil:
		q.Flush()
	case errors.Is(err, ErrReopening):
		slot.done <- status.Again
	case errors.Is(err, status.Again):
		slot.owner.engine.Do(slot.submit) // after the next poll
	default:
		slot.refusal = err
		slot.done <- status.CodeOf(err)
	}
}

// begin starts a slot's request.
func (slot *syncSlot) begin(t iomsg.Type, offset uint64, length uint32) {
	slot.request.Type, slot.request.Offset, slot.request.Length = t, offset, length
	slot.again()
}

// again starts the request that the slot had before.
func (slot *syncSlot) again() {
	slot.refusal = nil
	if !slot.owner.engine.Do(slot.submit) {
		slot.done <- status.Shutdown
	}
}

// maxRepetitions bounds how often a request is repeated that has lost its
// session each time: it may be the reason.
const maxRepetitions = 8

// wait waits for the outcome of begin. A request that the loss of a session
// has left open is repeated in the next one. What it reads is of then; what it
// writes can be written twice, because a session is served only when nothing
// of those before it is under way any more.
func (slot *syncSlot) wait() error {
	v := slot.owner.volume
	for repetition := 0; ; repetition++ {
		code := <-slot.done
		if code == status.Success {
			return nil
		}
		if !v.reopens() || (code != status.Again && !tellsEnd(code)) || repetition == maxRepetitions {
			return slot.failure(code)
		}
		if err := v.awaitSession(slot.session); err != nil {
			return fmt.Errorf("%v: %w", slot, err)
		}
		slot.again()
	}
}

func (slot *syncSlot) failure(code status.Code) error {
	if slot.refusal != nil {
		return fmt.Errorf("%v: %w", slot, slot.refusal)
	}
	err := fmt.Errorf("%v: %w", slot, code)
	if end := slot.owner.volume.Err(); end != nil {
		return fmt.Errorf("%w (%w)", err, end)
	}
	return err
}

// String describes the slot's request.
func (slot *syncSlot) String() string {
	r := &slot.request
	return fmt.Sprintf("%v of %d bytes at offset %d", r.Type, r.Length, r.Offset)
}

// useSynchronous returns what carries out synchronous requests. If it
// succeeds, doneSynchronous must follow: until then the data memory stays.
func (v *Volume) useSynchronous() (*synchronous, error) {
	v.callers.RLock()
	s := v.synchronous.Load()
	if s == nil {
		v.callers.RUnlock()
		return nil, errNoSync
	}
	return s, nil
}

func (v *Volume) doneSynchronous() { v.callers.RUnlock() }

// stopSynchronous ends the thread; its queue then belongs to Close. Callers
// that still wait get status.Shutdown, and are waited for.
func (v *Volume) stopSynchronous() {
	s := v.synchronous.Swap(nil)
	if s == nil {
		return
	}
	s.stopping.Store(true)
	s.engine.Wake()
	s.ended.Wait()
	s.queue.Detach(s.engine)
	if err := s.engine.Close(); err != nil {
		v.config.Logger.Sugar().Warnf("release the progress engine of volume %q: %v", v.info.Name, err)
	}
	s.queue.undelivered(func(tag uint64) { s.slots[tag].done <- status.Shutdown })
	v.callers.Lock()
	defer v.callers.Unlock()
}
