// SPDX-License-Identifier: Apache-2.0

// Package hook injects faults into the requests of an opened volume: those of its queues, as an
// application submits them. Its operations are those of the seam "volume".
//
// A request that fails or is dropped by a rule is not submitted; one that is dropped succeeds.
// Delayed and frozen requests are submitted at once and complete later. A write is corrupted until
// it completes.
package hook

import (
	"fmt"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/verify"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
	volumehook "github.com/zc-relay/zc-relay/pkg/volume/hook"
)

// Queue is a queue with hooks. One thread uses it, like the queue that it wraps.
type Queue struct {
	verify.Queue
	points [iomsg.OperationCount]*fault.Point
	memory []byte

	slots   []slot
	free    []uint64 // indexes of slots
	waiting []waiting
	// silence is a pipe that nobody writes to: a descriptor to sleep on until something is due.
	silence [2]*os.File
}

// slot is a request that has been submitted. Its index is the request's tag in the inner queue.
type slot struct {
	request client.Request // the caller's
	hit     fault.Hit
	stall   fault.Stall // begins with the submission
}

// waiting is a result that is not delivered yet.
type waiting struct {
	result client.Result
	stall  fault.Stall
}

// NewQueue hooks a queue of depth requests. memory is the data memory of its volume.
func NewQueue(inner verify.Queue, depth int, memory []byte, injector *fault.Injector) *Queue {
	q := &Queue{Queue: inner, points: volumehook.Points(injector), memory: memory,
		slots: make([]slot, depth), free: make([]uint64, depth)}
	for i := range q.free {
		q.free[i] = uint64(i)
	}
	return q
}

// Submit submits a request, or makes it fail. A request that the inner queue refuses counts again
// when it is submitted again.
func (q *Queue) Submit(r *client.Request) error {
	if len(q.free) == 0 {
		return status.Again
	}
	tag := q.free[len(q.free)-1]
	hit := q.points[r.Type.Operation()].NextAt(r.Offset, uint64(r.Length))
	if hit.Action == fault.Error || hit.Action == fault.Drop {
		q.free = q.free[:len(q.free)-1]
		q.slots[tag] = slot{request: *r, hit: hit}
		result := client.Result{Tag: tag}
		if hit.Action == fault.Error {
			err := hit.Err()
			result.Code, result.Cause = status.CodeOf(err), status.CauseOf(err)
		}
		q.waiting = append(q.waiting, waiting{result: result})
		return nil
	}
	s := slot{request: *r, hit: hit, stall: hit.Stall()}
	q.corrupt(&s, iomsg.OpWrite)
	inner := *r
	inner.Tag = tag
	if err := q.Queue.Submit(&inner); err != nil {
		q.corrupt(&s, iomsg.OpWrite)
		return err
	}
	q.free = q.free[:len(q.free)-1]
	q.slots[tag] = s
	return nil
}

// corrupt inverts a bit of a request's data if a rule says so and it is the given operation. A
// second call restores it.
func (q *Queue) corrupt(s *slot, operation iomsg.Operation) {
	if s.hit.Action == fault.Corrupt && s.request.Type.Operation() == operation {
		s.hit.Corrupt(q.memory[s.request.Memory:][:s.request.Length])
	}
}

// Poll fills results with outcomes that are due, and returns their number.
func (q *Queue) Poll(results []client.Result) int {
	n := 0
	for i := range results[:q.Queue.Poll(results)] {
		r := results[i]
		s := &q.slots[r.Tag]
		if s.hit.Stalls() {
			q.waiting = append(q.waiting, waiting{result: r, stall: s.stall})
			continue
		}
		if !r.Quarantined { // otherwise others may still use the buffer
			q.corrupt(s, iomsg.OpWrite)
			q.corrupt(s, iomsg.OpRead)
		}
		results[n] = q.deliver(r)
		n++
	}
	kept := q.waiting[:0]
	for _, w := range q.waiting {
		if n < len(results) && w.stall.IsOver() {
			results[n] = q.deliver(w.result)
			n++
			continue
		}
		kept = append(kept, w)
	}
	q.waiting = kept
	return n
}

// deliver frees the slot of a request and returns its result with the caller's tag.
func (q *Queue) deliver(r client.Result) client.Result {
	tag := r.Tag
	r.Tag = q.slots[tag].request.Tag
	q.free = append(q.free, tag)
	return r
}

// SwitchMemory switches to the volume's new memory.
func (q *Queue) SwitchMemory() []byte {
	q.memory = q.Queue.SwitchMemory()
	return q.memory
}

// Attach lets the engine's thread sleep until the queue has results.
func (q *Queue) Attach(engine *progress.Engine) error {
	var err error
	if q.silence[0], q.silence[1], err = os.Pipe(); err != nil {
		return fmt.Errorf("attach queue with faults: %w", err)
	}
	if err := engine.AddWaiter(waiter{q}); err != nil {
		q.endSilence()
		return err
	}
	if err := q.Queue.Attach(engine); err != nil {
		engine.RemoveWaiter(waiter{q})
		q.endSilence()
		return err
	}
	return nil
}

// Detach undoes Attach.
func (q *Queue) Detach(engine *progress.Engine) {
	q.Queue.Detach(engine)
	engine.RemoveWaiter(waiter{q})
	q.endSilence()
}

func (q *Queue) endSilence() {
	for _, file := range q.silence {
		_ = file.Close() // nothing was written
	}
}

// waiter wakes a queue's thread for results that are held back.
type waiter struct{ q *Queue }

// releaseCheck is how often to look for the release of something frozen.
const releaseCheck = 10 * time.Millisecond

// Due returns when the next result may be due (progress.TimedWaiter).
func (w waiter) Due() (time.Duration, bool) {
	if len(w.q.waiting) == 0 {
		return 0, false
	}
	earliest := releaseCheck
	for i := range w.q.waiting {
		if due, known := w.q.waiting[i].stall.Due(); known {
			earliest = min(earliest, max(due, 0))
		}
	}
	return earliest, true
}

func (w waiter) Descriptor() int { return int(w.q.silence[0].Fd()) }

func (w waiter) Arm() bool {
	for i := range w.q.waiting {
		if w.q.waiting[i].stall.IsOver() {
			return false
		}
	}
	return true
}

func (w waiter) Disarm() {}
func (w waiter) Clear()  {}
