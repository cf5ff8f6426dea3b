// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// memoryExport is an export whose content is in memory. It completes operations in random order.
type memoryExport struct {
	info     blockio.Info
	buffer   uint64 // longest operation that moves data, in bytes
	room     uint64 // of each session, in bytes
	sessions int
	barrier  func(ctx context.Context) error // nil: former sessions leave nothing

	mu      sync.Mutex // guards the fields below
	data    []byte
	fail    func(op *blockio.Operation) blockio.Errno // nil: nothing fails
	held    bool                                      // operations do not complete
	engines []*progress.Engine
	starved int // how often a session has had no room because of kept
	open    int
	// closedEarly is set when a disk was closed although the export had sessions.
	closedEarly bool
	polls       map[int]int      // by the numbers of the disks
	used        uint64           // bytes in buffers
	kept        uint64           // bytes of each session's room that cannot be used now
	extents     []blockio.Extent // of the whole disk
}

const testSize = 8 << 20

func newMemoryExport() *memoryExport {
	return &memoryExport{
		info: blockio.Info{Description: "a test", Size: testSize, PreferredBlock: 4096, CanTrim: true,
			CanWriteZeroes: true},
		buffer: 256 << 10, room: 1 << 20, sessions: 100, data: make([]byte, testSize),
		polls: make(map[int]int),
	}
}

// set changes the export while it is in use.
func (e *memoryExport) set(change func()) {
	e.mu.Lock()
	change()
	engines := e.engines
	e.mu.Unlock()
	for _, engine := range engines {
		engine.Wake()
	}
}

func (e *memoryExport) Barrier(ctx context.Context) error {
	if e.barrier == nil {
		return nil
	}
	return e.barrier(ctx)
}

func (e *memoryExport) Info() blockio.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info
}

func (e *memoryExport) Attach(i int, engine *progress.Engine) (blockio.Disk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.engines = append(e.engines, engine)
	return &memoryDisk{export: e, number: i, random: rand.New(rand.NewPCG(uint64(i), 7))}, nil
}

type memoryDisk struct {
	export  *memoryExport
	number  int
	random  *rand.Rand
	pending []pendingOperation
	starved []*memorySession // have found no room because of export.kept
}

type pendingOperation struct {
	session *memorySession
	op      *blockio.Operation
}

type memorySession struct {
	disk    *memoryDisk
	handler blockio.Handler
	used    uint64
	claimed map[*blockio.Operation]bool // true while in progress
}

func (d *memoryDisk) Open(handler blockio.Handler) (blockio.Session, error) {
	d.export.mu.Lock()
	defer d.export.mu.Unlock()
	if d.export.open == d.export.sessions {
		return nil, status.Full
	}
	d.export.open++
	return &memorySession{disk: d, handler: handler,
		claimed: make(map[*blockio.Operation]bool)}, nil
}

func (d *memoryDisk) Ring() {}

func (d *memoryDisk) Close() error {
	d.export.mu.Lock()
	defer d.export.mu.Unlock()
	d.export.closedEarly = d.export.closedEarly || d.export.open > 0
	return nil
}

func (d *memoryDisk) Poll() int {
	n := d.endStarvation()
	for len(d.pending) > 0 && n < 16 {
		i := d.random.IntN(len(d.pending))
		p := d.pending[i]
		d.export.mu.Lock()
		held := d.export.held
		if !held {
			d.export.apply(p.op)
		}
		d.export.mu.Unlock()
		if held {
			break
		}
		last := len(d.pending) - 1
		d.pending[i] = d.pending[last]
		d.pending = d.pending[:last]
		n++
		p.session.claimed[p.op] = false
		if p.session.handler == nil {
			p.session.Release(p.op)
		} else {
			p.session.handler.Completed(p.op)
		}
	}
	return n
}

// endStarvation tells sessions that there is room, and returns their number.
func (d *memoryDisk) endStarvation() int {
	d.export.mu.Lock()
	kept := d.export.kept
	d.export.polls[d.number]++
	d.export.mu.Unlock()
	if kept > 0 {
		return 0
	}
	starved := d.starved
	d.starved = nil
	for _, s := range starved {
		if s.handler != nil {
			s.handler.MadeRoom()
		}
	}
	return len(starved)
}

// apply carries out an operation. The caller holds e.mu.
func (e *memoryExport) apply(op *blockio.Operation) {
	op.Error = blockio.Success
	if e.fail != nil {
		if op.Error = e.fail(op); op.Error != blockio.Success {
			if op.Command == blockio.Read {
				fill(op.Data, 0xff) // anything
			}
			return
		}
	}
	switch op.Command {
	case blockio.Read:
		copy(op.Data, e.data[op.Offset:])
	case blockio.Write:
		copy(e.data[op.Offset:], op.Data)
	case blockio.Trim, blockio.WriteZeroes:
		clear(e.data[op.Offset:][:op.Length])
	case blockio.BlockStatus:
		position := uint64(0)
		for _, extent := range e.extents {
			end := min(position+extent.Length, op.Offset+op.Length)
			if begin := max(position, op.Offset); begin < end {
				op.Extents = append(op.Extents,
					blockio.Extent{Length: end - begin, Hole: extent.Hole})
			}
			position += extent.Length
		}
	}
}

func (s *memorySession) Claim(command blockio.Command, flags blockio.CommandFlags, offset,
	length uint64) *blockio.Operation {
	op := &blockio.Operation{Command: command, Flags: flags, Offset: offset, Length: length}
	if command == blockio.Read || command == blockio.Write {
		op.Length = min(length, s.disk.export.buffer)
		if s.used+op.Length > s.disk.export.room {
			return nil
		}
		if s.isStarved(op.Length) {
			s.disk.starved = append(s.disk.starved, s)
			return nil
		}
		s.use(int64(op.Length))
		op.Data = make([]byte, op.Length)
	}
	s.claimed[op] = false
	return op
}

func (s *memorySession) isStarved(length uint64) bool {
	e := s.disk.export
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.used+length+e.kept <= e.room {
		return false
	}
	e.starved++
	return true
}

func (s *memorySession) use(n int64) {
	s.used += uint64(n)
	s.disk.export.mu.Lock()
	defer s.disk.export.mu.Unlock()
	s.disk.export.used += uint64(n)
}

func (s *memorySession) Submit(op *blockio.Operation) {
	s.claimed[op] = true
	s.disk.pending = append(s.disk.pending, pendingOperation{s, op})
}

func (s *memorySession) Release(op *blockio.Operation) {
	delete(s.claimed, op)
	s.use(-int64(len(op.Data)))
}

func (s *memorySession) Close() {
	s.handler = nil
	for op, inProgress := range s.claimed {
		if !inProgress {
			s.Release(op)
		}
	}
	s.disk.export.mu.Lock()
	defer s.disk.export.mu.Unlock()
	s.disk.export.open--
}
