package client

import (
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
	if err := s.queue.Attach(engine); err != nil {
		_ = engine.Close()
		return err
	}
	engine.Add(s)
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
	if err := q.Submit(&slot.request); err != nil {
		slot.done <- status.CodeOf(err)
		return
	}
	q.Flush()
}

// begin starts a slot's request.
func (slot *syncSlot) begin(t iomsg.Type, offset uint64, length uint32) {
	slot.request.Type, slot.request.Offset, slot.request.Length = t, offset, length
	if !slot.owner.engine.Do(slot.submit) {
		slot.done <- status.Shutdown
	}
}

// wait waits for the outcome of begin.
func (slot *syncSlot) wait() error {
	code := <-slot.done
	if code == status.Success {
		return nil
	}
	err := fmt.Errorf("%v of %d bytes at offset %d: %w", slot.request.Type, slot.request.Length, slot.request.Offset, code)
	if end := slot.owner.volume.Err(); end != nil {
		return fmt.Errorf("%w (%w)", err, end)
	}
	return err
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
	for i := range s.queue.slots {
		if slot := &s.queue.slots[i]; slot.outstanding {
			s.slots[slot.tag].done <- status.Shutdown
		}
	}
	v.callers.Lock()
	defer v.callers.Unlock()
}
