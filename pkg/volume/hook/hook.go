// SPDX-License-Identifier: Apache-2.0

// Package hook wraps any volume. The wrapper forwards everything, and traces, delays, fails, drops,
// corrupts, or freezes the operations that fault rules name.
//
// The operations of the seam "volume" are read, write, flush, trim, write_zeroes, and extents. A
// request that fails or is dropped by a rule is not carried out; one that is dropped succeeds, as
// on a disk that loses writes. Delayed and frozen requests are carried out at once and complete
// later. A write is corrupted for as long as it is carried out: its buffer gets the inverted bit
// back before it completes.
package hook

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Config configures the hooks.
type Config struct {
	// Injector holds the rules; nil means none.
	Injector *fault.Injector
}

// Wrap returns inner with hooks, or inner itself if there are no rules for the seam.
func Wrap(inner volume.Volume, config Config) volume.Volume {
	if !config.Injector.Has(fault.Volume) {
		return inner
	}
	return &hookedVolume{Volume: inner, injector: config.Injector, points: Points(config.Injector)}
}

// Points returns the rules of each operation of the seam, nil for operations without rules.
func Points(injector *fault.Injector) (points [iomsg.OperationCount]*fault.Point) {
	for operation := iomsg.OpRead; operation < iomsg.OperationCount; operation++ {
		points[operation] = injector.Point(fault.Volume, operation.String())
	}
	return points
}

type hookedVolume struct {
	volume.Volume
	injector *fault.Injector
	points   [iomsg.OperationCount]*fault.Point

	failed [iomsg.OperationCount]atomic.Uint64 // by rules
}

// Memory hides the content if reads have rules, because reading it directly would bypass them.
func (v *hookedVolume) Memory() *memory.Region {
	if v.points[iomsg.OpRead] != nil {
		return nil
	}
	return v.Volume.Memory()
}

// CauseInjected is the cause of failures by rules.
const CauseInjected = "injected"

// Failures returns how many requests have failed.
func (v *hookedVolume) Failures() []volume.Failure {
	all := v.Volume.Failures()
	for operation := range v.failed {
		if n := v.failed[operation].Load(); n > 0 {
			all = append(all, volume.Failure{Operation: iomsg.Operation(operation),
				Cause: CauseInjected, Count: n})
		}
	}
	return all
}

// NewQueue opens a queue for one thread.
func (v *hookedVolume) NewQueue(depth int) (volume.Queue, error) {
	info := v.Info()
	inner, err := v.Volume.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	q := &queue{volume: v, inner: inner, info: info, depth: depth,
		marked: make([]markedRequest, 0, depth)}
	if q.Waiter, err = v.injector.NewWaiter(inner, v.points[:]...); err != nil {
		return nil, errors.Join(fmt.Errorf("open queue of volume %q: %w", info.Name, err),
			inner.Close())
	}
	return q, nil
}

// queue submits requests for one thread.
type queue struct {
	*fault.Waiter
	volume *hookedVolume
	inner  volume.Queue
	info   volume.Info
	closed bool

	depth   int
	running int             // submitted and not yet polled
	marked  []markedRequest // those of them that rules have matched
}

// markedRequest is a request to which something happens.
type markedRequest struct {
	request *volume.Request
	hit     fault.Hit
	stall   fault.Stall
	done    bool // carried out, or failed or dropped instead
}

// Submit starts a request, or makes it fail.
func (q *queue) Submit(r *volume.Request) error {
	if q.running >= q.depth {
		if q.closed {
			return fmt.Errorf("queue of volume %q: %w", q.info.Name, status.ErrClosed)
		}
		return status.Again
	}
	if err := q.info.Check(r); err != nil {
		q.info = q.volume.Info() // it may have grown
		if err := q.info.Check(r); err != nil {
			return err
		}
	}
	var hit fault.Hit
	if p := q.volume.points[r.Operation]; p != nil {
		hit = p.NextAt(r.Offset, r.Length)
	}
	if hit.Action == fault.None {
		if err := q.inner.Submit(r); err != nil {
			return err
		}
		q.running++
		return nil
	}
	return q.submitMarked(r, hit)
}

func (q *queue) submitMarked(r *volume.Request, hit fault.Hit) error {
	m := markedRequest{request: r, hit: hit, stall: hit.Stall()}
	switch hit.Action {
	case fault.Drop:
		m.done = true
		r.Err = nil
	case fault.Error:
		m.done = true
		q.volume.failed[r.Operation].Add(1)
		r.Err = fmt.Errorf("%v %d bytes at offset %d: %w", r.Operation, r.Length, r.Offset,
			hit.Err())
	default:
		if hit.Action == fault.Corrupt && r.Operation == iomsg.OpWrite {
			hit.Corrupt(r.Buffer)
		}
		if err := q.inner.Submit(r); err != nil {
			m.uncorrupt()
			return err
		}
	}
	q.running++
	q.marked = append(q.marked, m)
	return nil
}

// uncorrupt restores the buffer of a write.
func (m *markedRequest) uncorrupt() {
	if m.hit.Action == fault.Corrupt && m.request.Operation == iomsg.OpWrite {
		m.hit.Corrupt(m.request.Buffer)
	}
}

// Poll returns completed requests that are due.
func (q *queue) Poll(completed []*volume.Request) int {
	if len(q.marked) == 0 {
		n := q.inner.Poll(completed)
		q.running -= n
		return n
	}
	n := 0
	for _, r := range completed[:q.inner.Poll(completed)] {
		if q.carriedOut(r) {
			completed[n] = r
			n++
		}
	}
	q.marked = slices.DeleteFunc(q.marked, func(m markedRequest) bool {
		if n == len(completed) || !m.done || !m.stall.IsOver() {
			return false
		}
		completed[n] = m.request
		n++
		return true
	})
	q.running -= n
	return n
}

// carriedOut finishes a request that the inner queue has completed, and reports whether it
// completes now.
func (q *queue) carriedOut(r *volume.Request) bool {
	i := slices.IndexFunc(q.marked, func(m markedRequest) bool { return m.request == r })
	if i < 0 {
		return true
	}
	m := &q.marked[i]
	if m.hit.Action == fault.Corrupt {
		m.hit.Corrupt(r.Buffer) // a write had it inverted before
		q.marked = slices.Delete(q.marked, i, i+1)
		return true
	}
	m.done = true
	return false
}

// Arm prepares for sleep until a request completes or is due.
func (q *queue) Arm() bool {
	if len(q.marked) > 0 && q.isDue() {
		q.Disarm() // it may have been armed before
		return false
	}
	return q.Waiter.Arm()
}

// isDue reports whether a request that a rule has matched is due. If not, it wakes the thread in
// time.
func (q *queue) isDue() bool {
	var earliest fault.Stall
	for i := range q.marked {
		if m := &q.marked[i]; m.done && m.stall.IsBefore(&earliest) {
			earliest = m.stall
		}
	}
	q.WakeAt(&earliest)
	return slices.ContainsFunc(q.marked,
		func(m markedRequest) bool { return m.done && m.stall.IsOver() })
}

// Close releases the queue.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	if q.running > 0 {
		return status.Errorf(status.InUse,
			"close queue of volume %q: %d requests are in flight", q.info.Name, q.running)
	}
	if err := q.inner.Close(); err != nil {
		return err
	}
	q.closed, q.depth = true, 0 // so that Submit need not look for both
	return q.Waiter.Close()
}
