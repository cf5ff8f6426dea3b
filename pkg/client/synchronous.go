package client

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// errNoSync is returned by the blocking methods of a volume without them.
var errNoSync = status.Errorf(status.BadState,
	"the volume is closed or was opened without blocking methods (negative SyncDepth)")

// ReadAt implements io.ReaderAt for any offset and length; it returns io.EOF at the end of the
// volume. Requests larger than Info.BufferSize are split and carried out in parallel.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) { return v.readAt(nil, p, off) }

func (v *Volume) readAt(c *call, p []byte, off int64) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if off < 0 {
		return 0, status.Errorf(status.InvalidValue, "%s: the offset is negative",
			v.describe(iomsg.Read, off, int64(len(p))))
	}
	if uint64(off) >= v.size.Load() {
		return 0, io.EOF
	}
	rest := v.size.Load() - uint64(off)
	short := uint64(len(p)) > rest
	if short {
		p = p[:rest]
	}
	r, err := s.beginRead(c, uint64(off), uint64(off)+uint64(len(p)))
	if err != nil {
		return 0, err
	}
	defer s.endRead(c, r)
	n, err := s.transfer(c, p, uint64(off), s.startRead, s.finishRead)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// WriteAt implements io.WriterAt for any offset and length within the volume. It writes a part of a
// block by reading, changing, and writing back the whole block. That never undoes a concurrent
// WriteAt, Trim, or WriteZeroes of this Volume, but it may undo a write to the same block by
// another client or through a Queue.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) { return v.writeAt(nil, p, off) }

func (v *Volume) writeAt(c *call, p []byte, off int64) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if err := v.checkRange(iomsg.Write, off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.write(c, p, uint64(off))
}

// Flush makes all writes that completed before the call durable. Once writes may have been lost, it
// fails with ErrWritesLost for good, because the volume does not know which of its callers have
// learned of that. A program that goes on after a loss has a Flusher for each user.
func (v *Volume) Flush() error { return v.everybody.Flush() }

// Trim discards the content of a range of whole blocks. What reads return afterwards is undefined.
func (v *Volume) Trim(off, length int64) error {
	return v.clearRange(nil, iomsg.Trim, 0, off, length)
}

// WriteZeroes makes a range of whole blocks read as zeroes. Where the volume can do that, the range
// keeps its space, so that later writes to it do not fail for lack of space.
func (v *Volume) WriteZeroes(off, length int64) error {
	return v.clearRange(nil, iomsg.WriteZeroes, 0, off, length)
}

// PunchHole makes a range of whole blocks read as zeroes, too, and frees its space where the volume
// can do that.
func (v *Volume) PunchHole(off, length int64) error {
	return v.clearRange(nil, iomsg.WriteZeroes, iomsg.Deallocate, off, length)
}

// longestRange is the most bytes that a request without data may cover. It fits the 32-bit length
// field and is a multiple of every block size.
const longestRange = 1 << 30

// clearRange carries out a Trim or WriteZeroes in as many requests as it takes.
func (v *Volume) clearRange(c *call, t iomsg.Type, flags iomsg.Flags, off, length int64) error {
	if err := v.checkBlocks(t, off, length); err != nil {
		return err
	}
	for length > 0 {
		if err := c.err(); err != nil {
			return err
		}
		n := min(length, longestRange)
		r := Request{Type: t, Flags: flags, Offset: uint64(off), Length: uint32(n)}
		if err := v.submitAndWait(c, &r); err != nil {
			return err
		}
		off += n
		length -= n
	}
	return nil
}

// checkRange fails unless the range is within the volume.
func (v *Volume) checkRange(t iomsg.Type, off, length int64) error {
	if off < 0 || length < 0 || uint64(off) > v.size.Load() ||
		uint64(length) > v.size.Load()-uint64(off) {
		return status.Errorf(status.InvalidValue, "%s, which has only %d bytes",
			v.describe(t, off, length), v.size.Load())
	}
	return nil
}

// checkBlocks fails unless the range consists of whole blocks of the volume.
func (v *Volume) checkBlocks(t iomsg.Type, off, length int64) error {
	if err := v.checkRange(t, off, length); err != nil {
		return err
	}
	block := int64(v.info.BlockSize)
	if off%block != 0 || length%block != 0 {
		return status.Errorf(status.InvalidValue, "%s is not a range of whole blocks of %d bytes",
			v.describe(t, off, length), block)
	}
	return nil
}

// describe describes a request for errors.
func (v *Volume) describe(t iomsg.Type, off, length int64) string {
	if t == iomsg.Flush {
		return fmt.Sprintf("%v of volume %q", t, v.info.Name)
	}
	return fmt.Sprintf("%v of %d bytes at offset %d of volume %q", t, length, off, v.info.Name)
}

// extentsAtOnce is how many extents one request of Extents returns.
const extentsAtOnce = 256

// longestExtents is the most bytes that one request describes, so that none takes long.
const longestExtents = 64 << 30

// Extents describes a range of whole blocks by its extents, in order: where data is, and where
// holes are, which read as zeroes. Neighbors may be of the same kind. If the volume does not know
// (see Info.CanReportExtents), everything is data. What is written meanwhile may be missing.
func (v *Volume) Extents(off, length int64) ([]iomsg.Extent, error) {
	return v.extents(nil, off, length)
}

func (v *Volume) extents(c *call, off, length int64) ([]iomsg.Extent, error) {
	if err := v.checkBlocks(iomsg.Extents, off, length); err != nil || length == 0 {
		return nil, err
	}
	if !v.info.CanReportExtents {
		return []iomsg.Extent{{Length: uint64(length)}}, nil
	}
	s, err := v.acquireSync()
	if err != nil {
		return nil, err
	}
	defer v.releaseSync()
	r, err := s.beginRead(c, uint64(off), uint64(off)+uint64(length))
	if err != nil {
		return nil, err
	}
	defer s.endRead(c, r)
	slot, err := s.acquire(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		slot.request.Range = 0
		s.release(c, slot)
	}()
	size := min(extentsAtOnce*iomsg.ExtentSize, v.info.BufferSize)
	var all []iomsg.Extent
	for length > 0 {
		if err := c.err(); err != nil {
			return nil, err
		}
		slot.request.Range = uint64(min(length, longestExtents))
		slot.start(c, iomsg.Extents, uint64(off), size)
		if err := slot.wait(); err != nil {
			return nil, err
		}
		found := len(all)
		all, err = iomsg.DecodeExtents(all, slot.buffer[:size], slot.request.Range)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", slot, err)
		}
		for _, e := range all[found:] {
			off, length = off+int64(e.Length), length-int64(e.Length)
		}
	}
	return all, nil
}

// submitAndWait carries out one request that moves no data.
func (v *Volume) submitAndWait(c *call, r *Request) error {
	s, err := v.acquireSync()
	if err != nil {
		return err
	}
	defer v.releaseSync()
	if r.Type == iomsg.Flush {
		if !s.ranges.WaitToRead(0, math.MaxUint64, c.hasLeft()) {
			return c.err()
		}
	} else {
		held, err := c.lock(&s.ranges, r.Offset, r.Offset+uint64(r.Length))
		if err != nil {
			return err
		}
		defer c.unlock(&s.ranges, held)
	}
	slot, err := s.acquire(c)
	if err != nil {
		return err
	}
	defer func() {
		slot.request.Flags, slot.request.Flusher = 0, nil
		s.release(c, slot)
	}()
	slot.request.Flags, slot.request.Flusher = r.Flags, r.Flusher
	slot.start(c, r.Type, r.Offset, r.Length)
	return slot.wait()
}

// write writes the partial block at the start, the whole blocks, and the partial block at the end,
// one after the other.
func (s *syncIO) write(c *call, p []byte, offset uint64) (int, error) {
	block := uint64(s.volume.info.BlockSize)
	done := 0
	if inside := offset % block; inside > 0 && len(p) > 0 {
		head := p[:min(uint64(len(p)), block-inside)]
		if err := s.writePart(c, head, offset); err != nil {
			return 0, err
		}
		done = len(head)
	}
	whole := uint64(len(p)-done) &^ (block - 1)
	if whole > 0 {
		n, err := s.writeBlocks(c, p[done:][:whole], offset+uint64(done))
		if done += n; err != nil {
			return done, err
		}
	}
	if tail := p[done:]; len(tail) > 0 {
		if err := s.writePart(c, tail, offset+uint64(done)); err != nil {
			return done, err
		}
	}
	return len(p), nil
}

// writeBlocks writes whole blocks.
func (s *syncIO) writeBlocks(c *call, p []byte, offset uint64) (int, error) {
	held, err := c.lock(&s.ranges, offset, offset+uint64(len(p)))
	if err != nil {
		return 0, err
	}
	defer c.unlock(&s.ranges, held)
	return s.transfer(c, p, offset, s.startWrite, s.finishWrite)
}

// writePart writes a part of one block.
func (s *syncIO) writePart(c *call, p []byte, offset uint64) error {
	block := uint64(s.volume.info.BlockSize)
	start := offset &^ (block - 1)
	held, err := c.lock(&s.ranges, start, start+block)
	if err != nil {
		return err
	}
	defer c.unlock(&s.ranges, held)
	slot, err := s.acquire(c)
	if err != nil {
		return err
	}
	defer s.release(c, slot)
	slot.start(c, iomsg.Read, start, uint32(block))
	if err := slot.wait(); err != nil {
		return err
	}
	if err := c.copy(slot.buffer[offset-start:], p); err != nil {
		return err
	}
	slot.start(c, iomsg.Write, start, uint32(block))
	return slot.wait()
}

// piece is a part of a transfer that fits into one slot's buffer.
type piece struct {
	slot   *syncSlot
	call   *call
	data   []byte // the caller's
	offset uint64 // position of data in the volume, in bytes
}

// transfer splits a read or write into pieces and keeps several of them in flight. It returns how
// many bytes from the start were transferred without a gap.
func (s *syncIO) transfer(
	c *call, p []byte, offset uint64, start, finish func(*piece) error,
) (int, error) {
	var pending []piece
	var failure error
	done := 0
	for len(p) > 0 || len(pending) > 0 {
		slot, err := s.nextSlot(c, len(p) > 0 && failure == nil, len(pending) == 0)
		if err != nil {
			return done, err
		}
		if slot == nil {
			oldest := pending[0]
			pending = pending[1:]
			err := finish(&oldest)
			s.release(c, oldest.slot)
			if failure = errors.Join(failure, err); failure != nil {
				p = nil // start nothing more
			} else {
				done += len(oldest.data)
			}
			continue
		}
		n := min(uint64(len(p)), uint64(len(slot.buffer))-offset%uint64(s.volume.info.BlockSize))
		next := piece{slot: slot, call: c, data: p[:n], offset: offset}
		if failure = start(&next); failure != nil {
			s.release(c, slot)
			p = nil
			continue
		}
		pending = append(pending, next)
		p, offset = p[n:], offset+n
	}
	return done, failure
}

// nextSlot returns a free slot if one is wanted, or nil. Only a call that holds no slot may wait
// for one: otherwise it could wait for itself. Without a slot it fails if the caller has left.
func (s *syncIO) nextSlot(c *call, wanted, mayWait bool) (*syncSlot, error) {
	if !wanted {
		return nil, nil
	}
	if mayWait {
		return s.acquire(c)
	}
	select {
	case slot := <-s.free:
		if s.lend(c, slot) {
			return slot, nil
		}
	default:
	}
	return nil, nil
}

// span returns the whole blocks that contain a piece.
func (s *syncIO) span(p *piece) (start uint64, length uint32) {
	block := uint64(s.volume.info.BlockSize)
	start = p.offset &^ (block - 1)
	end := (p.offset + uint64(len(p.data)) + block - 1) &^ (block - 1)
	return start, uint32(end - start)
}

func (s *syncIO) startRead(p *piece) error {
	if err := p.call.err(); err != nil {
		return err
	}
	start, length := s.span(p)
	p.slot.start(p.call, iomsg.Read, start, length)
	return nil
}

func (s *syncIO) finishRead(p *piece) error {
	if err := p.slot.wait(); err != nil {
		return err
	}
	start, _ := s.span(p)
	return p.call.copy(p.data, p.slot.buffer[p.offset-start:])
}

func (s *syncIO) startWrite(p *piece) error {
	if err := p.call.copy(p.slot.buffer, p.data); err != nil {
		return err
	}
	p.slot.start(p.call, iomsg.Write, p.offset, uint32(len(p.data)))
	return nil
}

func (s *syncIO) finishWrite(p *piece) error { return p.slot.wait() }

// syncIO carries out the requests of the blocking methods on its own queue and OS thread.
//
// Besides the slots for calls there are spare ones. When a caller leaves, a spare takes the place
// of each slot that its call still uses, so that requests that nobody waits for leave the others
// all of the depth. Without a spare, the call keeps the place.
type syncIO struct {
	volume *Volume
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
	since     int64  // when the request began, according to Volume.clock
	session   uint64 // number of the session that the request was submitted to
	exposedTo uint64 // the latest session whose relay may still use buffer; 0 if none may
	submitErr error  // why Submit failed
	replaced  bool   // a spare has taken its place; syncIO.mu guards it
}

// read is a range of the volume that a call reads.
type read struct {
	start, end uint64
	ended      chan struct{}
}

func (v *Volume) startSync() error {
	engine, err := progress.NewEngine(v.config.Policy)
	if err != nil {
		return err
	}
	count := v.config.SyncDepth + v.spareSlots
	s := &syncIO{
		volume: v, queue: v.queues[v.config.Queues], engine: engine,
		slots: make([]syncSlot, count), free: make(chan *syncSlot, count),
		parked: make([]*syncSlot, 0, count), retried: make([]*syncSlot, 0, count),
	}
	for i := range s.slots {
		slot := &s.slots[i]
		slot.owner, slot.request.Tag = s, uint64(i)
		slot.request.Memory = v.config.MemorySize + uint64(i)*uint64(v.info.BufferSize)
		slot.switchMemory()
		slot.command, slot.done = slot.submit, make(chan Result, 1)
		if i < v.config.SyncDepth {
			s.free <- slot
		} else {
			s.spare = append(s.spare, slot)
		}
	}
	if err := errors.Join(s.queue.Attach(engine), engine.Add(s)); err != nil {
		_ = engine.Close()
		return err
	}
	v.sync.Store(s)
	s.running.Go(s.run)
	return nil
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
			if err := s.volume.awaitSession(exposedTo); err != nil {
				return nil, err
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
	if slot.exposedTo >= s.volume.session.Load().number {
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
		s.abandon(slot, c.read)
	}
	return true
}

// release undoes acquire.
func (s *syncIO) release(c *call, slot *syncSlot) {
	if c != nil {
		c.mu.Lock()
		c.slots = slices.DeleteFunc(c.slots, func(other *syncSlot) bool { return other == slot })
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

// abandon is called when the caller has left whose call uses the slot, perhaps for a read. The
// holder of the call's lock calls it.
func (s *syncIO) abandon(slot *syncSlot, r *read) {
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
	for !s.stopping.Load() {
		s.engine.Idle(s.engine.Progress())
	}
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
	limit := s.volume.config.IOTimeout
	if limit >= 0 && time.Duration(s.volume.clock.Load()-oldest.since) > limit {
		s.queue.pair.session.fail(status.Errorf(status.TimeOut,
			"relay did not take an IO within %v", limit))
	}
}

// park keeps a request until the queue takes it.
func (s *syncIO) park(slot *syncSlot) {
	s.parked = append(s.parked, slot)
	if s.queue.disconnected {
		slot.since = s.volume.clock.Load() // the next session's relay gets all of the time
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
	slot.session = q.pair.session.number
	switch {
	case err == nil:
		slot.exposedTo = slot.session
		q.Flush()
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
	v := slot.owner.volume
	if v.session.Load().memory == slot.memory {
		return
	}
	v.mu.Lock() // so that the memory that is current is not freed before it has this user
	current := v.session.Load().memory
	current.users.Add(1)
	v.mu.Unlock()
	buffer := current.Bytes()[slot.request.Memory:][:v.info.BufferSize]
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
func (slot *syncSlot) start(c *call, t iomsg.Type, offset uint64, length uint32) {
	slot.call, slot.request.Type, slot.request.Offset, slot.request.Length = c, t, offset, length
	slot.restart()
}

// restart submits the slot's previous request again.
func (slot *syncSlot) restart() {
	slot.submitErr, slot.since = nil, slot.owner.volume.clock.Load()
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
	v := slot.owner.volume
	var repeats retry.Repeats
	for {
		result := <-slot.done
		if result.Code == status.Success {
			return nil
		}
		if !v.canReconnect() || (result.Code != status.Again && !isSessionEnd(result.Code)) {
			return slot.failure(&result)
		}
		canRepeat := repeats.Allow(time.Now(), v.config.Reconnect.Total)
		if err := v.awaitSession(slot.session); err != nil {
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
	v, err := slot.owner.volume, result.Err()
	if result.Code == status.NotPermitted && v.Info().ReadOnly {
		err = fmt.Errorf("the volume is read-only: %w", err)
	}
	err = fmt.Errorf("%v: %w", slot, err)
	if end := v.Err(); end != nil {
		return fmt.Errorf("%w (%w)", err, end)
	}
	return err
}

// String describes the slot's request for errors.
func (slot *syncSlot) String() string {
	r := &slot.request
	return slot.owner.volume.describe(r.Type, int64(r.Offset), int64(r.Length))
}

// acquireSync returns the syncIO, which carries out blocking requests. If it succeeds, the caller
// must call releaseSync. The data memory stays allocated until then.
func (v *Volume) acquireSync() (*syncIO, error) {
	v.callers.RLock()
	s := v.sync.Load()
	if s == nil {
		v.callers.RUnlock()
		return nil, errNoSync
	}
	return s, nil
}

func (v *Volume) releaseSync() { v.callers.RUnlock() }

// stopSync ends the thread and transfers its queue to the caller. Blocking methods that still wait
// get status.Shutdown; stopSync waits for them to return.
func (v *Volume) stopSync() {
	s := v.sync.Swap(nil)
	if s == nil {
		return
	}
	s.stopping.Store(true)
	s.engine.Wake()
	s.running.Wait()
	s.queue.Detach(s.engine)
	if err := s.engine.Close(); err != nil {
		v.config.Logger.Sugar().Warnf("release the progress engine of volume %q: %v", v.info.Name,
			err)
	}
	s.queue.eachOutstanding(func(tag uint64) { s.slots[tag].done <- Result{Code: status.Shutdown} })
	for _, slot := range s.parked {
		slot.done <- Result{Code: status.Shutdown}
	}
	v.callers.Lock()
	defer v.callers.Unlock()
}
