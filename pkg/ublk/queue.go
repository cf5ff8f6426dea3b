// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// stage is how far the request of a tag is.
type stage uint8

const (
	offered   stage = iota // the kernel has the tag
	waiting                // for room in the session
	receiving              // the kernel copies the data of a write
	ready                  // to be submitted to the session
	submitted              // the session has the operation
	answered               // to be committed
	ended                  // the kernel takes back the tag, and never returns it
)

// request is the request of a tag.
type request struct {
	stage   stage
	command blockio.Command
	flags   blockio.CommandFlags
	offset  uint64
	length  uint64
	result  int32
	op      *blockio.Operation // from its claim to its release
	isTold  bool               // the kernel copies the data of a write
}

// queue is a queue of a device. It belongs to its thread.
type queue struct {
	config  *queueConfig
	ring    ring
	disk    blockio.Disk
	session blockio.Session
	engine  *progress.Engine

	requests []request
	// The tags of requests at a stage, in the order of their arrival there.
	waiting   []uint16
	receiving []uint16 // whose data the kernel was not told to copy yet
	ready     []uint16 // to be submitted to the session
	answered  []uint16
	copying   int // requests whose data the kernel was told to copy
	active    int // requests that have begun and are not committed
	gone      int // tags that have ended
	found     [completionBatch]completion
	committed []*blockio.Operation

	hasRoom  bool // there may be room in the session again
	draining bool // takes no more requests
	failed   bool
	counters blockio.Counters
}

// queueConfig is what a queue knows about its device.
type queueConfig struct {
	size       uint64 // bytes
	blockSize  uint64
	maxBytes   uint64
	isReadOnly bool
	canDiscard bool
	canZero    bool
	// report is told, once, why a queue has failed; nil means that the kernel ends the device.
	report func(error)
	// drained is called when a queue that drains has no request left.
	drained func()
}

// completionBatch is the number of completions to reap at a time.
const completionBatch = 64

// start offers all tags to the kernel.
func (q *queue) start() error {
	for tag := range q.requests {
		q.ring.fetch(uint16(tag))
	}
	return q.ring.submit(0)
}

// Poll takes requests, submits them, and answers what has completed (progress.Source).
func (q *queue) Poll() int {
	if q.failed {
		return 0
	}
	work := q.reap()
	if q.hasRoom {
		q.hasRoom = false
		q.beginWaiting()
	}
	if len(q.answered)+len(q.receiving)+len(q.ready) > 0 {
		work++
		q.exchange()
	}
	return work
}

// reap handles what the kernel says, a batch at a time, and returns how much it was.
func (q *queue) reap() int {
	n := q.ring.reap(q.found[:])
	for i := range q.found[:n] {
		q.handle(&q.found[i])
	}
	return n
}

// exchange commits what is answered, has the kernel copy the data of writes, and then submits what
// is ready to the session. While the kernel copies to or from the session's buffers, nothing that
// could move these may be called: no method of disk or session but Claim and Release.
func (q *queue) exchange() {
	isPushed := len(q.answered) > 0
	for _, tag := range q.answered {
		q.commit(tag)
	}
	q.answered = q.answered[:0]
	for wait := 0; isPushed || len(q.receiving) > 0 || q.copying > 0; isPushed = false {
		for _, tag := range q.receiving {
			q.receive(tag)
		}
		q.receiving = q.receiving[:0]
		if err := q.ring.submit(wait); err != nil {
			q.fail(err)
			return
		}
		q.release()
		// The kernel copies on this thread, so it has done so by now, unless it is out of memory.
		wait = 0
		if q.copying > 0 && q.reap() == 0 {
			wait = 1
		}
		if q.failed {
			return
		}
	}
	for _, tag := range q.ready {
		r := &q.requests[tag]
		r.stage = submitted
		q.session.Submit(r.op)
	}
	q.ready = q.ready[:0]
	q.disk.Ring()
}

// receive makes the kernel copy the data of a write.
func (q *queue) receive(tag uint16) {
	r := &q.requests[tag]
	r.isTold = true
	q.copying++
	if r.op == nil {
		q.ring.getData(tag, nil)
	} else {
		q.ring.getData(tag, r.op.Data)
	}
}

// commit pushes the answer to a request.
func (q *queue) commit(tag uint16) {
	r := &q.requests[tag]
	var data []byte
	if r.op != nil {
		if r.command == blockio.Read && r.result > 0 {
			data = r.op.Data
		}
		q.committed = append(q.committed, r.op)
	}
	q.ring.commit(tag, r.result, data)
	*r = request{stage: offered}
	q.active--
	q.counters.End()
}

// release gives back the operations whose requests were committed.
func (q *queue) release() {
	for i, op := range q.committed {
		q.session.Release(op)
		q.committed[i] = nil
		q.hasRoom = true
	}
	q.committed = q.committed[:0]
	if q.draining && q.active == 0 {
		q.config.drained()
	}
}

// handle handles a completion.
func (q *queue) handle(c *completion) {
	if c.tag >= uint64(len(q.requests)) {
		q.protest("a completion for tag %d of %d", c.tag, len(q.requests))
		return
	}
	tag := uint16(c.tag)
	r := &q.requests[tag]
	switch {
	case r.stage != offered && !r.isTold:
		q.protest("a completion with result %d for a request that this side has", c.result)
	case c.result == resultAborted:
		q.end(tag)
	case r.isTold:
		q.received(tag, c.result)
	case c.result == resultOK || c.result == resultNeedGetData:
		q.begin(tag, c.result == resultNeedGetData)
	default:
		q.protest("error %d for tag %d", c.result, tag)
	}
}

// received handles the end of a copy.
func (q *queue) received(tag uint16, result int32) {
	r := &q.requests[tag]
	q.copying--
	r.isTold = false
	switch {
	case result == resultNeedGetData:
		q.receiving = append(q.receiving, tag) // the kernel could not copy: once more
	case result != resultOK:
		q.protest("error %d when copying the data of tag %d", result, tag)
	case r.op == nil:
		q.answer(tag, r.result)
	case q.ring.descriptor(tag).sectors != uint32(r.length/sectorSize):
		// The driver shortens the descriptor when a part of the data could not be copied.
		q.answer(tag, -int32(syscall.EIO))
	default:
		q.submitLater(tag)
	}
}

// submitLater makes a request ready for the session.
func (q *queue) submitLater(tag uint16) {
	q.requests[tag].stage = ready
	q.ready = append(q.ready, tag)
}

// end notes that the kernel has taken back a tag.
func (q *queue) end(tag uint16) {
	r := &q.requests[tag]
	if r.isTold {
		q.copying--
		q.active--
		q.counters.End()
		if r.op != nil {
			q.session.Release(r.op)
		}
	}
	*r = request{stage: ended}
	if q.gone++; q.gone == len(q.requests) {
		q.config.report(nil)
	}
}

// begin takes a request.
func (q *queue) begin(tag uint16, hasData bool) {
	r := &q.requests[tag]
	if q.draining {
		r.stage = ended // the next server gets it
		return
	}
	d := q.ring.descriptor(tag)
	command, flags, isKnown := d.command()
	*r = request{command: command, flags: flags, offset: d.start * sectorSize,
		length: uint64(d.sectors) * sectorSize}
	q.active++
	q.counters.Begin()
	if hasData && r.length > q.config.maxBytes {
		q.protest("a write of %d bytes, and the device takes %d", r.length, q.config.maxBytes)
		return
	}
	if result := q.check(r, &d, isKnown, hasData); result != 0 {
		q.reject(tag, result, hasData)
		return
	}
	if r.command == blockio.Flush {
		r.offset, r.length = 0, 0
	}
	if len(q.waiting) > 0 || !q.claim(tag) {
		r.stage = waiting
		q.waiting = append(q.waiting, tag)
	}
}

// check returns the error for a request that must not reach the disk, 0 for others.
func (q *queue) check(r *request, d *descriptor, isKnown, hasData bool) int32 {
	sectors := q.config.size / sectorSize
	changes := r.command != blockio.Read && r.command != blockio.Flush
	switch {
	case !isKnown, r.command == blockio.Trim && !q.config.canDiscard,
		r.command == blockio.WriteZeroes && !q.config.canZero:
		return -int32(syscall.EOPNOTSUPP)
	case hasData != (r.command == blockio.Write):
		return -int32(syscall.EIO)
	case r.command == blockio.Flush:
		return 0
	case changes && q.config.isReadOnly:
		return -int32(syscall.EPERM)
	case d.start > sectors || uint64(d.sectors) > sectors-d.start, d.sectors == 0,
		r.command.MovesData() && r.length > q.config.maxBytes,
		(r.offset|r.length)&(q.config.blockSize-1) != 0:
		return -int32(syscall.EINVAL)
	}
	return 0
}

// claim claims the operation of a request. It returns false if there is no room.
func (q *queue) claim(tag uint16) bool {
	r := &q.requests[tag]
	op := q.session.Claim(r.command, r.flags, r.offset, r.length)
	if op == nil {
		return false
	}
	if op.Length != r.length { // the disk does not keep its word (blockio.Info)
		q.session.Release(op)
		q.reject(tag, -int32(syscall.EIO), r.command == blockio.Write)
		return true
	}
	r.op, op.Request = op, uint32(tag)
	switch r.command {
	case blockio.Write:
		r.stage = receiving
		q.receiving = append(q.receiving, tag)
	default:
		q.submitLater(tag)
	}
	return true
}

// reject answers a request that does not reach the disk. The driver takes no answer to a write
// before it has copied the data.
func (q *queue) reject(tag uint16, result int32, hasData bool) {
	if !hasData {
		q.answer(tag, result)
		return
	}
	r := &q.requests[tag]
	r.stage, r.result = receiving, result
	q.receiving = append(q.receiving, tag)
}

// beginWaiting goes on with requests that waited for room.
func (q *queue) beginWaiting() {
	n := 0
	for n < len(q.waiting) && q.claim(q.waiting[n]) {
		n++
	}
	q.waiting = q.waiting[:copy(q.waiting, q.waiting[n:])]
}

// answer sets the result of a request.
func (q *queue) answer(tag uint16, result int32) {
	r := &q.requests[tag]
	r.stage, r.result = answered, result
	q.answered = append(q.answered, tag)
	outcome := blockio.Success
	if result < 0 {
		outcome = blockio.Errno(-result)
	}
	q.counters.Count(r.command, outcome, r.length)
}

// Completed handles the outcome of an operation (blockio.Handler).
func (q *queue) Completed(op *blockio.Operation) {
	r := &q.requests[op.Request]
	result := -int32(op.Error)
	if op.Error == blockio.Success && r.command.MovesData() {
		result = int32(r.length)
	}
	q.answer(uint16(op.Request), result)
}

// MadeRoom goes on with requests that wait for room (blockio.Handler).
func (q *queue) MadeRoom() { q.hasRoom = true }

// protest fails the queue because the kernel does what the protocol does not know.
func (q *queue) protest(format string, arguments ...any) {
	q.fail(status.Errorf(status.Unexpected, "the kernel reports "+format, arguments...))
}

// fail ends the queue.
func (q *queue) fail(err error) {
	if !q.failed {
		q.failed = true
		q.config.report(err)
	}
}

// drain makes the queue take no more requests.
func (q *queue) drain() {
	q.draining = true
	if q.active == 0 || q.failed {
		q.config.drained()
	}
}

// close ends the session, and then gives back all tags to the kernel, with what was not answered.
func (q *queue) close() error {
	q.session.Close()
	q.engine.Remove(q)
	q.engine.Remove(q.disk)
	err := q.ring.close()
	if closing := q.disk.Close(); err == nil {
		err = closing
	}
	return err
}

// Descriptor is readable while the kernel has something to say (progress.Waiter).
func (q *queue) Descriptor() int { return q.ring.Descriptor() }

// Arm returns false if there is something to do.
func (q *queue) Arm() bool {
	isIdle := len(q.answered)+len(q.receiving)+len(q.ready) == 0 &&
		(!q.hasRoom || len(q.waiting) == 0)
	return q.failed || isIdle && q.ring.Arm()
}

// Disarm undoes Arm.
func (q *queue) Disarm() {
	if !q.failed {
		q.ring.Disarm()
	}
}

// Clear consumes what has made the descriptor readable.
func (q *queue) Clear() { q.ring.Clear() }
