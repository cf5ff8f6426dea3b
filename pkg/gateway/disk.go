// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// operationsPerSession bounds the operations of a session: enough for all requests of a connection,
// and for the parts of some large ones.
const operationsPerSession = 512

// resultBatch is the number of results to poll at a time.
const resultBatch = 32

// disk is a volume as one worker uses it, through one queue. Only the worker's thread calls its
// methods.
type disk struct {
	export *Export
	queue  Queue
	engine *progress.Engine

	memory     []byte // of the volume; the disk's part begins at base
	base       uint64
	sessions   []session
	operations []operation // of all sessions
	waiting    []uint32    // operations that are queued, in order
	lost       []uint32    // operations that are lost
	closed     bool
	kept       int // pieces that sessions keep from use until there is new memory
	results    [resultBatch]client.Result
	request    client.Request
}

// session is one connection's share of the disk.
type session struct {
	disk    *disk
	handler blockio.Handler // nil after Close
	buffers buffers
	// operations are the session's part of those of the disk, and free has the slots of those that
	// are not claimed.
	operations []operation
	free       []uint32
	user       *client.Flusher // on whose behalf the session flushes
}

func newDisk(e *Export, i int, engine *progress.Engine) *disk {
	d := &disk{export: e, queue: e.config.Queues[i], engine: engine,
		memory:     e.config.Volume.Memory(),
		base:       uint64(i) * uint64(e.perQueue) * e.share,
		sessions:   make([]session, e.perQueue),
		operations: make([]operation, e.perQueue*operationsPerSession),
	}
	for j := range d.operations {
		op := &d.operations[j]
		op.Slot = uint32(j)
		// Bound once, so that a lock does not allocate.
		resume := func() {
			if !d.closed {
				d.locked(op)
				d.queue.Ring()
			}
		}
		op.granted = func() { d.engine.Do(resume) }
	}
	for j := range d.sessions {
		s := &d.sessions[j]
		s.disk = d
		s.operations = d.operations[j*operationsPerSession:][:operationsPerSession]
		s.buffers = newBuffers(d.base+uint64(j)*e.share, e.share,
			max(preferredBlock, uint64(e.info.BlockSize)), uint64(e.info.BufferSize))
		for k := range operationsPerSession {
			s.free = append(s.free, uint32((j+1)*operationsPerSession-1-k))
		}
	}
	return d
}

// Open takes a session that nobody uses, and whose former operations have ended (blockio.Disk).
func (d *disk) Open(handler blockio.Handler) (blockio.Session, error) {
	for i := range d.sessions {
		if s := &d.sessions[i]; s.handler == nil && len(s.free) == operationsPerSession {
			s.handler, s.user = handler, d.export.config.Volume.NewFlusher()
			return s, nil
		}
	}
	return nil, status.Errorf(status.Full,
		"requests of connections that have ended are still in progress: try again later")
}

// Close detaches the queue, which may have requests outstanding (blockio.Disk).
func (d *disk) Close() error {
	d.queue.Detach(d.engine)
	d.closed = true
	remaining := 0
	for i := range d.operations {
		if d.operations[i].state > claimed {
			remaining++
		}
	}
	d.export.orphans.remove(remaining)
	return nil
}

// Ring wakes the relay for what has been submitted (blockio.Disk).
func (d *disk) Ring() { d.queue.Ring() }

// Poll processes results, and submits what had to wait (progress.Source).
func (d *disk) Poll() int {
	n := d.queue.Poll(d.results[:])
	for i := range d.results[:n] {
		d.complete(&d.results[i])
	}
	submitted := 0
	for len(d.waiting) > 0 {
		op := &d.operations[d.waiting[0]]
		err := d.submit(op)
		if errors.Is(err, status.Again) {
			break
		}
		submitted++
		d.waiting = d.waiting[:copy(d.waiting, d.waiting[1:])]
		d.submitted(op, err)
	}
	if n+submitted > 0 {
		d.queue.Ring()
	}
	if len(d.lost) > 0 {
		n += d.endLost()
	}
	if d.kept > 0 {
		// No request may ask for new memory, because it finds no room in the former.
		d.switchMemory()
	}
	return n + submitted
}

// complete processes a result.
func (d *disk) complete(result *client.Result) {
	op := &d.operations[result.Tag]
	op.quarantined = result.Quarantined
	isLost := d.export.config.Repeat && client.CanRepeat(result.Code)
	switch {
	case isLost && op.session.handler != nil &&
		op.repeats.Allow(time.Now(), d.export.config.RepeatFor):
		op.isRepeated = true
		d.enqueue(op)
	case isLost && !op.locked.IsRead:
		d.lose(op, errnoOf(result.Code, result.Cause))
	case op.session.handler == nil:
		d.finish(op, blockio.Shutdown) // nobody waits for it
	case result.Code == status.Success && op.Command == blockio.BlockStatus:
		d.finish(op, op.takeExtents())
	case result.Code == status.Success:
		op.repeats = retry.Repeats{}
		if op.hasDonePart() {
			d.export.ranges.Advance(&op.locked, op.position)
		}
		d.goOn(op)
	default:
		d.finish(op, errnoOf(result.Code, result.Cause))
	}
}

// lose makes an operation wait for the end of its request with an outcome.
func (d *disk) lose(op *operation, outcome blockio.Errno) {
	op.state, op.Error = lost, outcome
	d.lost = append(d.lost, op.Slot)
}

// endLost ends the operations that have ended with their session, once the next session has begun,
// or there will be none. It returns their number.
func (d *disk) endLost() int {
	session, over := d.queue.Session(), d.export.config.Volume.Err() != nil
	former := d.lost
	d.lost = nil
	for _, slot := range former {
		if op := &d.operations[slot]; over || op.sentIn != session {
			d.finish(op, op.Error)
		} else {
			d.lost = append(d.lost, slot)
		}
	}
	return len(former) - len(d.lost)
}

// locked goes on with an operation that has its range now.
func (d *disk) locked(op *operation) {
	op.state = queued
	if op.session.handler == nil {
		d.finish(op, blockio.Shutdown)
		return
	}
	d.goOn(op)
}

// goOn submits the next request of an operation, or ends it if there is none.
func (d *disk) goOn(op *operation) {
	if !op.next() {
		d.finish(op, blockio.Success)
		return
	}
	d.enqueue(op)
}

// enqueue submits the operation's request now or, if the queue has no room, later.
func (d *disk) enqueue(op *operation) {
	if len(d.waiting) == 0 {
		if err := d.submit(op); !errors.Is(err, status.Again) {
			d.submitted(op, err)
			return
		}
	}
	op.state = queued
	d.waiting = append(d.waiting, op.Slot)
}

// submit submits the operation's request. It returns status.Again if the request has to wait.
func (d *disk) submit(op *operation) error {
	d.request = op.request
	d.request.Tag = uint64(op.Slot)
	err := d.queue.Submit(&d.request)
	if errors.Is(err, client.ErrMemoryReplaced) {
		d.switchMemory()
		err = d.queue.Submit(&d.request)
	}
	return err
}

// submitted is called after submit, unless the request has to wait.
func (d *disk) submitted(op *operation, err error) {
	if err != nil { // also client.ErrWritesLost
		d.finish(op, errnoOf(status.CodeOf(err), status.CauseOf(err)))
		return
	}
	op.state, op.sentIn, op.isRepeated = sent, d.queue.Session(), false
}

// switchMemory switches to new memory, if there is any, and copies what is in use.
func (d *disk) switchMemory() {
	former := d.memory
	d.memory = d.queue.SwitchMemory()
	if &d.memory[0] == &former[0] {
		return
	}
	size := uint64(len(d.sessions)) * d.export.share
	copy(d.memory[d.base:][:size], former[d.base:][:size])
	for i := range d.operations {
		op := &d.operations[i]
		op.quarantined = false
		op.setData()
	}
	d.kept = 0
	for i := range d.sessions {
		d.sessions[i].releaseKept()
	}
}

// finish ends an operation that has its range.
func (d *disk) finish(op *operation, outcome blockio.Errno) {
	if !op.locked.IsRead {
		d.export.ranges.Unlock(&op.locked)
	}
	op.Error, op.state = outcome, claimed
	if op.session.handler == nil {
		op.session.Release(&op.Operation)
		d.export.orphans.remove(1)
		return
	}
	op.session.handler.Completed(&op.Operation)
}

// Claim returns an operation on the range, or on the start of it (blockio.Session).
func (s *session) Claim(command blockio.Command, flags blockio.CommandFlags, offset,
	length uint64) *blockio.Operation {
	if len(s.free) == 0 {
		return nil
	}
	op := &s.disk.operations[s.free[len(s.free)-1]]
	op.prepare(s, command, flags, offset, length)
	if op.bufferSize > 0 {
		var ok bool
		if op.buffer, ok = s.buffers.allocate(op.bufferSize); !ok {
			op.bufferSize = 0
			return nil
		}
	}
	s.free = s.free[:len(s.free)-1]
	op.state = claimed
	op.setData()
	return &op.Operation
}

// Submit starts an operation (blockio.Session).
func (s *session) Submit(operation *blockio.Operation) {
	d := s.disk
	op := &d.operations[operation.Slot]
	op.prepareRange()
	op.state = locking
	if d.export.ranges.Lock(&op.locked) {
		d.locked(op)
	}
}

// Release frees an operation and its buffer (blockio.Session).
func (s *session) Release(operation *blockio.Operation) {
	op := &s.disk.operations[operation.Slot]
	if op.bufferSize > 0 {
		if op.quarantined {
			// The relay may still use the buffer: nobody writes to it until there is new memory.
			s.buffers.kept = append(s.buffers.kept, piece{op.buffer, op.bufferSize})
			s.disk.kept++
		} else {
			s.buffers.release(op.buffer, op.bufferSize)
		}
	}
	op.Data, op.Extents, op.quarantined, op.state = nil, nil, false, free
	op.bufferSize = 0
	s.free = append(s.free, op.Slot)
}

// Close ends the session. It drops the operations whose requests wait, and makes orphans of the
// others. The session's place is free when those have ended (blockio.Session).
func (s *session) Close() {
	s.handler = nil
	for i := range s.operations { // first those that could be granted what the others give up
		op := &s.operations[i]
		if op.state == claimed ||
			op.state == locking && s.disk.export.ranges.Withdraw(&op.locked) {
			s.Release(&op.Operation)
		}
	}
	s.disk.dropWaiting()
	remaining := 0
	for i := range s.operations {
		op := &s.operations[i]
		if op.state == free {
			continue
		}
		remaining++
		if op.state != locking && !op.locked.IsRead {
			s.disk.export.ranges.Orphan(&op.locked)
		}
	}
	s.disk.export.orphans.add(remaining)
}

// dropWaiting drops the operations that are queued and whose connections have ended.
func (d *disk) dropWaiting() {
	d.waiting = slices.DeleteFunc(d.waiting, func(slot uint32) bool {
		op := &d.operations[slot]
		switch {
		case op.session.handler != nil:
			return false
		case op.locked.IsRead:
			op.session.Release(&op.Operation)
		case op.isRepeated && op.sentIn == d.queue.Session():
			d.lose(op, blockio.Shutdown)
		default:
			d.export.ranges.Unlock(&op.locked)
			op.session.Release(&op.Operation)
		}
		return true
	})
}

// releaseKept frees the buffers that were kept from use in the former memory, and tells the
// handler.
func (s *session) releaseKept() {
	if len(s.buffers.kept) == 0 {
		return
	}
	for _, p := range s.buffers.kept {
		s.buffers.release(p.start, p.size)
	}
	s.buffers.kept = s.buffers.kept[:0]
	if s.handler != nil {
		s.handler.MadeRoom()
	}
}

// errnoOf translates the outcome of a request. The cause of a failed volume IO is mapped as other
// NBD servers do.
func errnoOf(code status.Code, cause status.Cause) blockio.Errno {
	switch syscall.Errno(cause) {
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return blockio.NoSpace
	case syscall.EPERM, syscall.EROFS:
		return blockio.NotPermitted
	case syscall.ENOMEM:
		return blockio.NoMemory
	}
	switch code {
	case status.Success:
		return blockio.Success
	case status.NotPermitted:
		return blockio.NotPermitted
	case status.InUse: // the volume belongs to another client now
		return blockio.Shutdown
	case status.InvalidValue, status.TooBig:
		return blockio.Invalid
	case status.NoMemory:
		return blockio.NoMemory
	case status.NotSupported:
		return blockio.NotSupported
	}
	return blockio.IOError
}

// Types of the requests that each command causes on whole blocks.
var requestTypes = [blockio.CommandCount]client.RequestType{
	blockio.Read: client.Read, blockio.Write: client.Write, blockio.Flush: client.Flush,
	blockio.Trim:  client.Trim,
	blockio.Cache: client.Read, blockio.WriteZeroes: client.WriteZeroes,
	blockio.BlockStatus: client.Extents,
}
