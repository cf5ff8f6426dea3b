// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

// #include "core.h"
import "C"

import (
	"errors"
	"syscall"
	"time"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// batch is how many results a queue returns at once.
const batch = 32

// queue is a queue of a volume for one thread of the program.
type queue struct {
	volume   *client.Volume
	queue    *client.Queue
	engine   *progress.Engine
	alarm    *alarm // nil before the program has asked for a descriptor
	spinTime time.Duration
	isArmed  bool
	isHeld   bool // what is pending can be sent only later
	// Fields, so that a turn does not allocate.
	request client.Request
	results [batch]client.Result
}

func newQueue(v *client.Volume, number int, spinTime time.Duration) (*queue, error) {
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		return nil, err
	}
	q := &queue{volume: v, queue: v.Queue(number), engine: engine, spinTime: spinTime}
	if err := q.queue.Attach(engine); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return q, nil
}

func (q *queue) close() error {
	q.disarm()
	q.queue.Detach(q.engine)
	var err error
	if q.alarm != nil {
		err = q.alarm.close()
	}
	return errors.Join(err, q.engine.Close())
}

// turn sends what is pending and collects completions, and waits for one if it is told to.
func (q *queue) turn(t *C.struct_zc_core_turn) uint32 {
	q.disarm()
	n := q.pass(t)
	if n == 0 && t.milliseconds != 0 {
		n = q.wait(t)
	}
	t.volume_size = C.uint64_t(q.volume.Size())
	return n
}

// turnsPerClock is the number of empty turns for each reading of the clock.
const turnsPerClock = 4

// wait looks for completions without sleeping for the spin time, and then sleeps in between.
func (q *queue) wait(t *C.struct_zc_core_turn) uint32 {
	begun := time.Now()
	for turns := 1; ; turns++ {
		if turns%turnsPerClock == 0 {
			waited, left := time.Since(begun), time.Duration(-1)
			if t.milliseconds > 0 {
				left = time.Duration(t.milliseconds)*time.Millisecond - waited
				if left <= 0 {
					return 0
				}
			}
			if waited > q.spinTime {
				q.sleep(left)
			}
		}
		progress.Yield()
		if n := q.pass(t); n > 0 {
			q.engine.Idle(int(n))
			return n
		}
	}
}

// sleep waits until there is something to do, at most for this time unless it is negative. It may
// return early.
func (q *queue) sleep(limit time.Duration) {
	if limit < 0 {
		q.engine.Idle(0)
		return
	}
	q.engine.Arm()
	isReadable(q.engine.Descriptor(), min(limit, longestSleep))
	q.engine.Disarm()
}

// descriptor returns what a program can wait for after arm.
func (q *queue) descriptor() (int, error) {
	if q.alarm == nil {
		var err error
		if q.alarm, err = newAlarm(q.engine.Descriptor()); err != nil {
			return 0, err
		}
	}
	return q.alarm.epoll, nil
}

// arm sends what is pending, and reports whether the thread may wait for the descriptor.
func (q *queue) arm(t *C.struct_zc_core_turn) bool {
	q.disarm()
	t.capacity = 0
	q.pass(t)
	if t.head != t.tail && !q.isHeld {
		return false // a request has failed, which has to be reported
	}
	q.isArmed = true
	q.engine.Arm()
	q.alarm.set(longestSleep)
	return !isReadable(q.engine.Descriptor(), 0)
}

func (q *queue) disarm() {
	if q.isArmed {
		q.isArmed = false
		q.alarm.set(0)
		q.engine.Disarm()
	}
}

// pass sends what is pending and collects completions, without waiting.
func (q *queue) pass(t *C.struct_zc_core_turn) uint32 {
	q.engine.Progress() // the commands of other threads, such as one that wakes this one
	n := uint32(0)
	if t.head != t.tail {
		n = q.submit(t)
		q.queue.Ring()
	}
	completions := unsafe.Slice(t.completions, t.capacity)
	for n < uint32(t.capacity) {
		polled := q.queue.Poll(q.results[:min(batch, uint32(t.capacity)-n)])
		for i := range q.results[:polled] {
			report(&completions[n], &q.results[i])
			n++
		}
		if polled < batch {
			break
		}
	}
	return n
}

// submit sends what is pending, as far as there is room for it. It returns how many requests have
// failed instead. While the volume is being reopened, they stay pending.
func (q *queue) submit(t *C.struct_zc_core_turn) (failed uint32) {
	q.isHeld = false
	pending := unsafe.Slice(t.pending, t.depth)
	for ; t.head != t.tail; t.head++ {
		r := &pending[t.head%t.depth]
		q.request = client.Request{Type: client.RequestType(r.operation),
			Flags: client.Flags(r.flags), Length: uint32(r.length), Offset: uint64(r.offset),
			Memory: uint64(r.memory), Tag: uint64(r.cookie)}
		err := q.queue.Submit(&q.request)
		if err == nil {
			continue
		}
		if q.isHeld = errors.Is(err, status.Again); q.isHeld || failed == uint32(t.capacity) {
			return failed
		}
		code, number := codeOf(err)
		c := unsafe.Slice(t.completions, t.capacity)
		c[failed] = C.struct_zc_completion{cookie: r.cookie, code: C.int32_t(code),
			error_number: C.int32_t(number)}
		failed++
	}
	return failed
}

// report turns a result into a completion.
func report(c *C.struct_zc_completion, r *client.Result) {
	*c = C.struct_zc_completion{cookie: C.uint64_t(r.Tag)}
	if r.Code == status.Success {
		return
	}
	c.code = -C.int32_t(r.Code)
	if errno, ok := r.Cause.Unwrap().(syscall.Errno); ok {
		c.error_number = C.int32_t(errno)
	}
	if r.Quarantined {
		c.flags = C.ZC_QUARANTINED
	}
}
