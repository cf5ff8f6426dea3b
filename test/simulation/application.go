// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// application reads and writes its own blocks of a volume, checks every result, and knows what each
// block may hold. The scheduler calls turn; only open and close run on goroutines of their own.
type application struct {
	world   *world
	process *process
	name    string
	disk    *disk
	channel string
	first   int // of its blocks
	blocks  []block
	queues  int
	depth   int
	buffer  int // blocks per request

	volume     *client.Volume
	slots      []slot
	operation  map[uint64]*operation // outstanding, by tag
	left       int                   // requests still to submit
	tag        uint64
	sequence   uint64 // counts submissions and results
	fence      uint64 // the latest submission that succeeded
	restarted  uint64 // the sequence number at which the target last ended
	stamps     map[uint64]*operation
	idle       bool
	finished   bool  // all results are in
	failure    error // of the volume, once it is not reopened any more
	results    []client.Result
	closing    bool // the volume is being closed, or has been
	blocking   bool // it uses blocking methods instead of queues
	*ownership      // nil for one that owns no estate
}

// block is what the application knows of a block.
type block struct {
	busy bool // an operation on it is outstanding
	// live holds the stamps that a read may find; durable those that a crash may leave.
	live, durable []uint64
	volatile      bool // written successfully, and not flushed since
	// lost is set if a crash may have undone a write whose success the application knew, until a
	// flush has reported it. written is the sequence number of the last such success.
	lost    bool
	written uint64
	zeroed  uint64 // sequence number of the last result of a trim or write zeroes
}

// slot is a buffer in the data memory.
type slot struct {
	queue    int
	busy     bool
	poisoned bool
	poison   uint64
	// quarantined buffers are left to the relay until the queue has new memory.
	quarantined bool
}

// operation is a request from its submission to its result.
type operation struct {
	tag       uint64
	request   client.Request
	queue     int
	slot      int
	first     int // block, relative to the application's
	count     int
	stamp     uint64     // of a write
	submitted uint64     // sequence
	completed uint64     // sequence; 0 while outstanding
	live      [][]uint64 // of a flush: what the blocks might hold when it was submitted
	mustFail  bool       // of a flush: submitted when a loss was to be reported
	crashed   bool       // the target's machine lost power while the operation was outstanding
	ended     bool       // the target ended while it was outstanding
}

// poisonMark is in the first word of a poisoned block, and in no written one.
const poisonMark = 0xdeadbeef << 32

// openTime is how long an application tries to open its volume.
const openTime = 2 * time.Minute

// open opens a volume. It tries again, because the relay may be down.
func open(ctx context.Context, config client.Config) (*client.Volume, error) {
	return openAs(ctx, func() client.Config { return config })
}

// openAs is open with a configuration for each attempt.
func openAs(ctx context.Context, config func() client.Config) (*client.Volume, error) {
	begun := time.Now()
	volume, err := client.Open(ctx, config())
	for err != nil && time.Since(begun) < openTime && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		volume, err = client.Open(ctx, config())
	}
	return volume, err
}

// open opens the application's volume.
func (a *application) open(ctx context.Context) {
	volume, err := openAs(ctx, a.config)
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	if err != nil {
		a.failure, a.finished = err, true
		return
	}
	a.volume = volume
	if a.ownership != nil && a.preempts {
		a.former.leaves, a.blocks = true, a.former.bequeath()
	}
	if a.blocking {
		a.startCallers(ctx)
	}
	a.slots = make([]slot, a.queues*a.depth)
	for i := range a.slots {
		a.slots[i].queue = i / a.depth
	}
	a.world.productive.Store(true)
}

// turn polls the queues and perhaps submits requests. It returns how much it did.
func (a *application) turn() int {
	if a.volume == nil || a.finished {
		return 0
	}
	done := 0
	for q := range a.queues {
		queue := a.volume.Queue(q)
		n := queue.Poll(a.results)
		for _, r := range a.results[:n] {
			a.complete(q, r)
		}
		done += n
		for range a.world.random.IntN(4) {
			if !a.wantsMore() || !a.submit(queue, q) {
				break
			}
			done++
		}
		queue.Ring()
	}
	select {
	case <-a.volume.Done():
		if len(a.operation) == 0 {
			a.failure, a.finished = a.volume.Err(), true
		}
	default:
		if a.left == 0 && a.world.faultsLeft {
			a.left = 10 // so that every fault meets requests
		}
		a.finished = !a.wantsMore() && len(a.operation) == 0
	}
	return done
}

// wantsMore reports whether the application has requests to make.
func (a *application) wantsMore() bool {
	if a.ownership != nil && a.leaves {
		return false
	}
	return a.left > 0 || !a.hasTakenOver()
}

// requestMix has each type of request as often as applications submit it.
var requestMix = []client.RequestType{
	client.Read, client.Read, client.Read, client.Read, client.Read, client.Write, client.Write,
	client.Write, client.Write, client.Write, client.Write, client.Flush, client.Trim,
	client.WriteZeroes, client.Extents,
}

func (a *application) submit(queue *client.Queue, q int) bool {
	random := a.world.random
	slot := slices.IndexFunc(a.slots,
		func(s slot) bool { return s.queue == q && !s.busy && !s.quarantined })
	if slot < 0 {
		// If all buffers are in quarantine, a flush finds out whether there is new memory.
		return a.awaitsMemory(queue, q)
	}
	o := &operation{queue: q, slot: slot}
	o.request.Type = a.nextType(random)
	if o.request.Type != client.Flush {
		if !a.choose(o, random) {
			return false
		}
		o.request.Memory = uint64(slot * a.buffer * blockSize)
		switch {
		case o.request.Type == client.Extents:
			o.request.Range = uint64(o.request.Length)
			o.request.Length = uint32(o.count) * iomsg.ExtentSize
		case o.request.Type != client.Read && random.IntN(5) == 0:
			o.request.Flags = client.FUA
		}
	}
	a.checkPoison(slot)
	a.prepare(o, a.memory(slot))
	err := queue.Submit(&o.request)
	if errors.Is(err, client.ErrWritesLost) {
		a.world.trace("%s: queue %d: %v", a.name, q, err)
		a.lossReported()
		a.slots[slot].poisoned = false
		return true
	}
	if err != nil {
		a.slots[slot].poisoned = false // it holds the data of a write that was not submitted
		if errors.Is(err, client.ErrMemoryReplaced) {
			a.switchMemory(queue, q)
		}
		return false
	}
	a.slots[slot].busy = true
	a.submitted(o)
	return true
}

// prepare completes an operation, and fills the memory for it.
func (a *application) prepare(o *operation, memory []byte) {
	switch o.request.Type {
	case client.Write:
		a.world.stamp++
		o.stamp = a.world.stamp
		for i := range o.count {
			fill(memory[i*blockSize:][:blockSize], o.stamp, a.first+o.first+i)
		}
	case client.Flush:
		o.mustFail = slices.ContainsFunc(a.blocks, func(b block) bool { return b.lost })
		for i := range a.blocks {
			o.live = append(o.live, slices.Clone(a.blocks[i].live))
		}
	}
	a.tag++
	o.tag, o.request.Tag = a.tag, a.tag
}

// submitted notes that an operation is outstanding.
func (a *application) submitted(o *operation) {
	a.sequence++
	o.submitted = a.sequence
	a.operation[o.tag] = o
	for i := range o.count {
		a.blocks[o.first+i].busy = true
	}
	if o.stamp != 0 {
		a.stamps[o.stamp] = o
	}
	a.count(o)
	if tracing {
		a.world.trace("%s submits %v", a.name, o)
	}
}

// lossReported notes that the client has said that completed writes may be lost.
func (a *application) lossReported() {
	for i := range a.blocks {
		b := &a.blocks[i]
		b.lost, b.volatile = false, b.volatile && b.written > a.restarted
	}
}

// choose picks blocks that no outstanding operation uses.
func (a *application) choose(o *operation, random *rand.Rand) bool {
	for range 8 {
		if next := a.nextBlock(); next < len(a.blocks) {
			o.first, o.count = next, min(a.buffer, len(a.blocks)-next)
		} else {
			o.count = 1 + random.IntN(a.buffer)
			o.first = random.IntN(len(a.blocks) - o.count + 1)
		}
		if !slices.ContainsFunc(a.blocks[o.first:o.first+o.count],
			func(b block) bool { return b.busy }) {
			o.request.Offset = uint64(a.first+o.first) * blockSize
			o.request.Length = uint32(o.count) * blockSize
			return true
		}
	}
	return false
}

func (a *application) memory(slot int) []byte {
	size := a.buffer * blockSize
	return a.volume.Queue(a.slots[slot].queue).Memory()[slot*size:][:size]
}

// complete checks a result and brings the knowledge of the blocks up to date.
func (a *application) complete(q int, r client.Result) {
	o := a.operation[r.Tag]
	if o == nil || o.queue != q {
		a.world.violate("%s: queue %d returned a result for tag %d, which is not outstanding there",
			a.name, q, r.Tag)
		return
	}
	a.slots[o.slot].busy = false
	a.completed(o, r.Code, a.memory(o.slot))
	if r.Quarantined {
		a.slots[o.slot].quarantined, a.slots[o.slot].poisoned = true, false
		return
	}
	a.poison(o.slot)
}

// completed notes the result of an operation, and checks what it has left in the memory.
func (a *application) completed(o *operation, code status.Code, memory []byte) {
	if tracing {
		a.world.trace("%s gets %v for %v", a.name, code, o)
	}
	delete(a.operation, o.tag)
	a.sequence++
	o.completed = a.sequence
	for i := range o.count {
		a.blocks[o.first+i].busy = false
	}
	success := code == status.Success
	if success {
		a.fence = max(a.fence, o.submitted)
	}
	switch {
	case o.request.Type.Operation().Changes():
		a.written(o, success)
	case !success:
	case o.request.Type == client.Read:
		a.checkRead(o, memory)
	case o.request.Type == client.Extents:
		a.checkExtents(o, memory)
	case o.request.Type == client.Flush:
		a.flushed(o)
	}
}

// awaitsMemory switches to new memory if there is any, and reports whether it has.
func (a *application) awaitsMemory(queue *client.Queue, q int) bool {
	if slices.ContainsFunc(a.slots, func(s slot) bool { return s.queue == q && s.busy }) {
		return false
	}
	err := queue.Submit(&client.Request{Type: client.Read, Length: blockSize})
	if err == nil {
		panic("simulation: a queue whose buffers are all in quarantine accepts a read")
	}
	if !errors.Is(err, client.ErrMemoryReplaced) {
		return false
	}
	a.switchMemory(queue, q)
	return true
}

// switchMemory switches all buffers of a queue to new memory.
func (a *application) switchMemory(queue *client.Queue, q int) {
	for i := range a.slots {
		if a.slots[i].queue == q {
			a.checkPoison(i)
		}
	}
	queue.SwitchMemory()
	a.world.trace("%s: queue %d has new memory", a.name, q)
	for i := range a.slots {
		if s := &a.slots[i]; s.queue == q {
			s.quarantined, s.poisoned = false, false
		}
	}
}

func (a *application) checkRead(o *operation, memory []byte) {
	for i := range o.count {
		b := &a.blocks[o.first+i]
		stamp, err := identify(memory[i*blockSize:][:blockSize], a.first+o.first+i)
		if err != nil {
			a.world.violate("%s: %v returned block %d with %v", a.name, o, a.first+o.first+i, err)
			return
		}
		if !slices.Contains(b.live, stamp) {
			a.world.violate("%s: %v returned block %d with stamp %d, but it can only hold %v",
				a.name, o, a.first+o.first+i, stamp, b.live)
			return
		}
		if !o.crashed { // else the crash may have changed it since
			b.live = []uint64{stamp}
		}
	}
}

// checkExtents checks that blocks that are told to be holes can hold zeroes.
func (a *application) checkExtents(o *operation, memory []byte) {
	extents, err := iomsg.DecodeExtents(nil, memory[:o.request.Length], o.request.Range)
	if err != nil || len(extents) != o.count {
		a.world.violate("%s: %v returned %d extents, %v", a.name, o, len(extents), err)
		return
	}
	for i, e := range extents {
		b := &a.blocks[o.first+i]
		switch {
		case e.Flags&iomsg.Hole == 0:
		case !slices.Contains(b.live, 0):
			a.world.violate("%s: %v returned a hole at block %d, but it can only hold %v", a.name, o,
				a.first+o.first+i, b.live)
		case !o.crashed:
			b.live = []uint64{0}
		}
	}
}

// written notes the outcome of an operation that changes blocks. One that has failed may have taken
// effect.
func (a *application) written(o *operation, success bool) {
	durable := o.request.Flags&client.FUA != 0
	written := o.completed
	if o.ended {
		written = a.restarted // it succeeded before
	}
	for i := range o.count {
		b := &a.blocks[o.first+i]
		if o.stamp == 0 {
			b.zeroed = o.completed
		}
		switch {
		case !success || o.request.Type == client.Trim:
			b.live = include(b.live, o.stamp)
			b.durable = include(b.durable, o.stamp)
		case durable:
			b.live, b.durable, b.volatile = []uint64{o.stamp}, []uint64{o.stamp}, false
		case o.crashed: // it succeeded before the crash, which may have undone it
			b.live, b.durable = include(b.live, o.stamp), include(b.durable, o.stamp)
			// Blocking methods may have repeated it since.
			b.lost, b.written = b.lost || !a.blocking, written
		default:
			b.live, b.durable = []uint64{o.stamp}, include(b.durable, o.stamp)
			b.volatile, b.written = true, written
		}
	}
}

// flushed notes that what the blocks held at the submission of a flush, or hold since, is durable.
func (a *application) flushed(o *operation) {
	if o.mustFail && slices.ContainsFunc(a.blocks, func(b block) bool { return b.lost }) {
		a.world.violate("%s: %v succeeded on queue %d although the target has restarted with "+
			"completed writes that were not flushed; the client knows of %d", a.name, o, o.queue,
			a.volume.Reconnections().LostWrites)
	}
	covers := o.submitted
	if a.blocking {
		covers = o.completed // the client submits a flush some time after the call
	}
	for i := range a.blocks {
		b := &a.blocks[i]
		if o.crashed { // it succeeded before the crash
			b.lost = b.lost && b.written > covers
			continue
		}
		if slices.Equal(b.live, o.live[i]) && !b.busy && b.written <= o.submitted {
			b.durable, b.volatile = slices.Clone(b.live), false // nothing has happened since
			continue
		}
		b.volatile = b.volatile && b.written > covers
		// Written since, or being written: one of the later contents or one of those then.
		later := slices.DeleteFunc(slices.Clone(b.durable), func(s uint64) bool {
			if w := a.stamps[s]; w != nil {
				return w.completed < o.submitted && w.completed != 0
			}
			return b.zeroed < o.submitted
		})
		b.durable = slices.Clone(o.live[i])
		for _, s := range append(later, b.live...) {
			b.durable = include(b.durable, s)
		}
	}
}

// hasLost reports whether completed writes may have been lost and no flush has said so. The caller
// holds world.mu.
func (a *application) hasLost() bool {
	return slices.ContainsFunc(a.blocks, func(b block) bool { return b.lost })
}

// checkClosed judges what closing the volume has returned. The session may have failed meanwhile:
// the consequences of a fault can come late. isLost is what hasLost returned before: what a crash
// has undone since may have been flushed by Close before the crash. The caller holds world.mu.
func (a *application) checkClosed(err error, isLost bool) {
	if a.failure != nil || a.process.dead {
		return
	}
	switch {
	case err == nil && isLost && a.hasLost():
		a.world.violate("%s: close succeeded although completed writes may have been lost and no "+
			"flush has said so", a.name)
	case errors.Is(err, client.ErrWritesLost) && a.restarted == 0:
		a.world.violate("%s: %v although the target has never ended", a.name, err)
	case err != nil && len(a.world.plan.Faults) == 0:
		a.world.violate("%s: %v although there were no faults", a.name, err)
	}
}

// targetEnded is called when the target's process has ended.
func (a *application) targetEnded() {
	a.restarted = a.sequence
	for _, o := range a.operation {
		o.ended = true
	}
}

// crashed is called when the target's machine has lost what was not durable.
func (a *application) crashed() {
	for _, o := range a.operation {
		o.crashed = true
	}
	for i := range a.blocks {
		b := &a.blocks[i]
		b.lost = b.lost || b.volatile
		for _, s := range b.durable {
			b.live = include(b.live, s)
		}
		b.durable, b.volatile = slices.Clone(b.live), false
	}
}

func include(stamps []uint64, stamp uint64) []uint64 {
	if slices.Contains(stamps, stamp) {
		return stamps
	}
	return append(slices.Clone(stamps), stamp)
}

// inspect is called before a block of the application is written to the disk.
func (a *application) inspect(index int, data []byte) {
	stamp, err := identify(data, index)
	if err != nil {
		a.world.violate("block %d of disk %s is about to be written with %v", index, a.disk.name, err)
		return
	}
	if stamp == 0 {
		if a.world.plan.Heirs > 0 {
			a.world.checkEnd(a.disk, index, stamp)
		}
		return
	}
	o := a.stamps[stamp]
	switch {
	case o == nil || index < a.first+o.first || index >= a.first+o.first+o.count:
		a.world.violate("block %d of disk %s is about to be written with stamp %d, "+
			"which was not submitted for it", index, a.disk.name, stamp)
	case o.completed != 0 && o.completed < a.fence:
		a.world.violate("ghost write: block %d of disk %s is about to be written by %v, "+
			"whose result was delivered before a later request succeeded", index, a.disk.name, o)
	case a.world.plan.Heirs > 0:
		a.world.checkEnd(a.disk, index, stamp)
	}
}

// poison fills a buffer whose result has been delivered: nobody may read or write it any more.
func (a *application) poison(slot int) {
	s := &a.slots[slot]
	a.world.stamp++
	s.poison, s.poisoned = poisonMark|a.world.stamp, true
	memory := a.memory(slot)
	for i := 0; i < len(memory); i += 8 {
		binary.LittleEndian.PutUint64(memory[i:], s.poison)
	}
}

func (a *application) checkPoison(slot int) {
	s := &a.slots[slot]
	if !s.poisoned || s.busy {
		return
	}
	memory := a.memory(slot)
	for i := 0; i < len(memory); i += 8 {
		if word := binary.LittleEndian.Uint64(memory[i:]); word != s.poison {
			a.world.violate("%s: byte %d of buffer %d changed from %#x to %#x after its result",
				a.name, i, slot, s.poison, word)
			return
		}
	}
}

func (o *operation) String() string {
	return fmt.Sprintf("#%d %v %d+%d flags %x stamp %d", o.tag, o.request.Type, o.request.Offset,
		o.request.Length, uint32(o.request.Flags), o.stamp)
}

// fill writes the content that identifies a stamp and a block. Stamp 0 is zeroes.
func fill(b []byte, stamp uint64, index int) {
	word := stamp
	for i := 0; i < blockSize; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word)
		word = word*6364136223846793005 + uint64(index) + 1
		if stamp == 0 {
			word = 0
		}
	}
}

// identify returns the stamp of a block's content, or an error that describes the content.
func identify(b []byte, index int) (uint64, error) {
	stamp := binary.LittleEndian.Uint64(b)
	if stamp&(1<<63) != 0 && stamp>>32 == poisonMark>>32 {
		return 0, fmt.Errorf("poison %#x: a buffer whose result had been delivered", stamp)
	}
	word := stamp
	for i := 0; i < blockSize; i += 8 {
		if got := binary.LittleEndian.Uint64(b[i:]); got != word {
			return 0, fmt.Errorf("content that nobody wrote there: word %d is %#x instead of %#x",
				i/8, got, word)
		}
		word = word*6364136223846793005 + uint64(index) + 1
		if stamp == 0 {
			word = 0
		}
	}
	return stamp, nil
}
