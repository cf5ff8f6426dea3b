// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// blockSize is the block size of all simulated disks. Blocks are written whole, even in a crash.
const blockSize = 512

// disk is a storage device with a volatile cache. It outlives the processes that open it.
type disk struct {
	name   string
	target int // that serves it
	uuid   volume.UUID
	random *rand.Rand // belongs to the scheduler
	// stalled is when the latest stall ends: no request completes before.
	stalled   time.Time
	slowUntil time.Time // slow requests complete only then
	// inspect is called for each block that is about to be written.
	inspect func(block int, data []byte)

	mu      sync.Mutex
	current []byte // what reads return
	// unsafe holds, for each block written since it was last durable, the contents that it may have
	// after a crash; the first is the durable one.
	unsafe  map[int][][]byte
	opened  *openDisk       // by the process that serves it
	errors  int             // how many of the next requests fail
	request *pendingRequest // that is being carried out
}

func newDisk(name string, blocks int, random *rand.Rand) *disk {
	d := &disk{
		name: name, random: random, current: make([]byte, blocks*blockSize),
		unsafe: make(map[int][][]byte),
	}
	for i := range d.uuid {
		d.uuid[i] = byte(random.Uint32())
	}
	hash := sha256.Sum256(append(d.uuid[:], name...)) // disks may have the same random numbers
	d.uuid = volume.NewUUID(hash[:])
	return d
}

// openDisk is a process's access to a disk. It implements volume.Volume.
type openDisk struct {
	disk    *disk
	queues  []*diskQueue
	pending []*pendingRequest // in the order of submission
	dead    bool              // it has been closed, or its process has died
}

type pendingRequest struct {
	queue   *diskQueue
	request *volume.Request
	since   time.Time
	slow    bool
}

// Ownership returns nil: the targets of the simulation do not take over from one another.
func (o *openDisk) Ownership() *volume.Ownership { return nil }

// CheckOwner returns nil: a dead process does nothing.
func (o *openDisk) CheckOwner(context.Context) error { return nil }

func (d *disk) open() *openDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened != nil {
		panic("simulation: two processes open one disk")
	}
	d.opened = &openDisk{disk: d}
	return d.opened
}

func (o *openDisk) Info() volume.Info {
	return volume.Info{
		Name: o.disk.name, UUID: o.disk.uuid, Size: uint64(len(o.disk.current)),
		BlockSize:    blockSize,
		Capabilities: volume.KnownCapabilities, Sole: "one machine",
	}
}

func (o *openDisk) Memory() *memory.Region { return nil }

func (o *openDisk) NewQueue(depth int) (volume.Queue, error) {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	q := &diskQueue{open: o, info: o.Info(), depth: depth}
	o.queues = append(o.queues, q)
	return q, nil
}

// Resize fails: simulated disks keep their size.
func (o *openDisk) Resize(uint64, bool) error { return status.NotSupported }

func (o *openDisk) Failures() []volume.Failure { return nil }
func (o *openDisk) Status() volume.Status      { return volume.Status{State: volume.Serving} }

// Close makes everything durable.
func (o *openDisk) Close(context.Context) error {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	if o.dead {
		return nil
	}
	if len(o.pending) > 0 {
		return status.Errorf(status.InUse, "close disk %s: requests are pending", o.disk.name)
	}
	clear(o.disk.unsafe)
	o.disk.opened, o.dead = nil, true
	return nil
}

// diskQueue implements volume.Queue.
type diskQueue struct {
	open      *openDisk
	info      volume.Info
	depth     int
	inFlight  int
	completed []*volume.Request
}

func (q *diskQueue) Descriptor() int { return progress.NoDescriptor }
func (q *diskQueue) Arm() bool       { return false }
func (q *diskQueue) Disarm()         {}
func (q *diskQueue) Clear()          {}

func (q *diskQueue) Submit(r *volume.Request) error {
	if err := q.info.Check(r); err != nil {
		return err
	}
	q.open.disk.mu.Lock()
	defer q.open.disk.mu.Unlock()
	if q.inFlight == q.depth {
		return status.Again
	}
	q.inFlight++
	if q.open.dead {
		r.Err = status.IOFailed
		q.completed = append(q.completed, r)
		return nil
	}
	q.open.pending = append(q.open.pending,
		&pendingRequest{queue: q, request: r, since: time.Now()})
	return nil
}

func (q *diskQueue) Poll(completed []*volume.Request) int {
	q.open.disk.mu.Lock()
	defer q.open.disk.mu.Unlock()
	n := copy(completed, q.completed)
	q.completed = append(q.completed[:0], q.completed[n:]...)
	q.inFlight -= n
	return n
}

func (q *diskQueue) Close() error {
	q.open.disk.mu.Lock()
	defer q.open.disk.mu.Unlock()
	if q.inFlight > 0 && !q.open.dead {
		return status.InUse
	}
	return nil
}

// The rest is for the scheduler.

func (d *disk) hasPending() bool {
	return d.opened != nil && slices.ContainsFunc(d.opened.pending, d.isDue)
}

// isDue reports whether a pending request may complete now.
func (d *disk) isDue(p *pendingRequest) bool { return !p.slow || !time.Now().Before(d.slowUntil) }

// delay makes some pending requests slow, and those that are slow already.
func (d *disk) delay(which func(r *volume.Request) bool, until time.Time) {
	d.slowUntil = until
	for _, p := range d.opened.pending {
		p.slow = p.slow || which(p.request)
	}
}

// choose returns the index of a pending request that is due.
func (d *disk) choose(random *rand.Rand) int {
	for {
		if n := random.IntN(len(d.opened.pending)); d.isDue(d.opened.pending[n]) {
			return n
		}
	}
}

func (d *disk) isStalled() bool { return time.Now().Before(d.stalled) }

// isHung reports whether the request that is being carried out was pending during a stall.
func (d *disk) isHung() bool { return d.request.since.Before(d.stalled) }

// complete carries out pending request i, completes it, and returns a copy of it.
func (d *disk) complete(i int) volume.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.opened
	p := o.pending[i]
	o.pending = append(o.pending[:i:i], o.pending[i+1:]...)
	d.request = p
	p.request.Err = d.carryOut(p.request)
	p.queue.completed = append(p.queue.completed, p.request)
	return *p.request
}

func (d *disk) carryOut(r *volume.Request) error {
	if d.errors > 0 {
		d.errors--
		return status.IOFailed
	}
	first, count := int(r.Offset/blockSize), int(r.Length/blockSize)
	switch r.Operation {
	case iomsg.OpRead:
		copy(r.Buffer, d.current[r.Offset:])
	case iomsg.OpWrite:
		for i := range count {
			d.write(first+i, r.Buffer[i*blockSize:][:blockSize], r.ForceUnitAccess)
		}
	case iomsg.OpWriteZeroes:
		for i := range count {
			d.write(first+i, make([]byte, blockSize), r.ForceUnitAccess)
		}
	case iomsg.OpTrim:
		for i := range count {
			if d.random.IntN(2) == 0 {
				d.write(first+i, make([]byte, blockSize), r.ForceUnitAccess)
			}
		}
	case iomsg.OpFlush:
		clear(d.unsafe)
	case iomsg.OpExtents:
		iomsg.EncodeExtents(r.Buffer, d.extents(first, count))
	}
	return nil
}

// extents describes each block by itself. Not all that hold zeroes are holes.
func (d *disk) extents(first, count int) []iomsg.Extent {
	all := make([]iomsg.Extent, count)
	for i := range all {
		all[i].Length = blockSize
		if isZero(d.current[(first+i)*blockSize:][:blockSize]) && d.random.IntN(4) > 0 {
			all[i].Flags = iomsg.Hole
		}
	}
	return all
}

func isZero(block []byte) bool { return bytes.Equal(block, make([]byte, len(block))) }

func (d *disk) write(block int, data []byte, durable bool) {
	d.inspect(block, data)
	at := d.current[block*blockSize:][:blockSize]
	if durable {
		delete(d.unsafe, block)
	} else {
		if d.unsafe[block] == nil {
			d.unsafe[block] = [][]byte{append([]byte(nil), at...)}
		}
		d.unsafe[block] = append(d.unsafe[block], append([]byte(nil), data...))
	}
	copy(at, data)
}

// crash ends the access of a process that has died. Requests in progress take effect in part, and
// each block that is not durable keeps any of its latest contents if the machine has lost power.
func (o *openDisk) crash(powerLoss bool) {
	d := o.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.dead || d.opened != o {
		return
	}
	for _, p := range o.pending {
		d.request = p
		if r := p.request; r.Operation == iomsg.OpWrite {
			for i := range int(r.Length / blockSize) {
				if d.random.IntN(2) == 0 {
					d.write(int(r.Offset/blockSize)+i, r.Buffer[i*blockSize:][:blockSize], false)
				}
			}
		}
	}
	for _, p := range o.pending {
		p.request.Err = status.IOFailed
		p.queue.completed = append(p.queue.completed, p.request)
	}
	o.pending, o.dead, d.opened = nil, true, nil
	if !powerLoss {
		return
	}
	for block := range len(d.current) / blockSize {
		if contents := d.unsafe[block]; contents != nil {
			copy(d.current[block*blockSize:], contents[d.random.IntN(len(contents))])
		}
	}
	clear(d.unsafe)
}
