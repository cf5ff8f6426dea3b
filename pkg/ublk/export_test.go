// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

const testBuffer = 32 << 10

// memoryExport is a disk in memory, whose sessions have room for few operations, and move the data
// of all of them whenever they may.
type memoryExport struct {
	info blockio.Info
	room int // operations of a session

	mu      sync.Mutex
	content []byte
	seen    []blockio.Operation // submitted, without data
	held    bool                // nothing completes
	fail    blockio.Errno       // of all operations
	short   bool                // claims are for less than was asked for
	open    int                 // disks
}

func newMemoryExport(size int) *memoryExport {
	return &memoryExport{content: make([]byte, size), room: 3,
		info: blockio.Info{Size: uint64(size), BlockSize: 4096, PreferredBlock: 4096,
			LargestAligned: testBuffer, LargestAny: testBuffer - 4*4096, CanTrim: true,
			CanWriteZeroes: true}}
}

func (e *memoryExport) Info() blockio.Info { return e.info }

func (e *memoryExport) Barrier(context.Context) error { return nil }

func (e *memoryExport) Attach(_ int, engine *progress.Engine) (blockio.Disk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open++
	return &memoryDisk{export: e, engine: engine}, nil
}

// set changes something under the lock.
func (e *memoryExport) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// operations returns what was submitted so far.
func (e *memoryExport) operations() []blockio.Operation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]blockio.Operation(nil), e.seen...)
}

type memoryDisk struct {
	export  *memoryExport
	engine  *progress.Engine
	handler blockio.Handler
	claimed map[*blockio.Operation]bool
	pending []*blockio.Operation
}

func (d *memoryDisk) Open(handler blockio.Handler) (blockio.Session, error) {
	d.handler, d.claimed = handler, make(map[*blockio.Operation]bool)
	return (*memorySession)(d), nil
}

func (d *memoryDisk) Ring() {}

func (d *memoryDisk) Close() error {
	d.export.mu.Lock()
	defer d.export.mu.Unlock()
	d.export.open--
	return nil
}

// move moves the data of all operations. What used to be there is overwritten, so that nobody gets
// away with using it.
func (d *memoryDisk) move() {
	for op := range d.claimed {
		if op.Data != nil {
			former := op.Data
			op.Data = append(make([]byte, 0, len(former)), former...)
			for i := range former {
				former[i] = 0xee
			}
		}
	}
}

// Poll completes what is pending, the last first.
func (d *memoryDisk) Poll() int {
	d.move()
	e := d.export
	e.mu.Lock()
	if e.held {
		e.mu.Unlock()
		return 0
	}
	done := d.pending
	d.pending = nil
	for _, op := range done {
		if op.Error = e.fail; e.fail == blockio.Success {
			e.carryOut(op)
		}
	}
	e.mu.Unlock()
	for i := range done {
		d.handler.Completed(done[len(done)-1-i])
	}
	return len(done)
}

func (e *memoryExport) carryOut(op *blockio.Operation) {
	switch op.Command {
	case blockio.Read:
		copy(op.Data, e.content[op.Offset:])
	case blockio.Write:
		copy(e.content[op.Offset:], op.Data)
	case blockio.Trim, blockio.WriteZeroes:
		clear(e.content[op.Offset:][:op.Length])
	}
}

type memorySession memoryDisk

func (s *memorySession) Claim(command blockio.Command, flags blockio.CommandFlags, offset,
	length uint64) *blockio.Operation {
	if len(s.claimed) >= s.export.room {
		return nil
	}
	op := &blockio.Operation{Command: command, Flags: flags, Offset: offset, Length: length}
	s.export.set(func() {
		if s.export.short {
			op.Length /= 2
		}
	})
	if command.MovesData() {
		op.Data = make([]byte, op.Length)
	}
	s.claimed[op] = true
	return op
}

func (s *memorySession) Submit(op *blockio.Operation) {
	d := (*memoryDisk)(s)
	d.move()
	s.export.set(func() {
		seen := *op
		seen.Data = nil
		s.export.seen = append(s.export.seen, seen)
	})
	s.pending = append(s.pending, op)
	if len(s.export.operations())%5 == 0 {
		d.Poll() // completes from within Submit
		return
	}
	// The engine sleeps only while sources have nothing to do, and this one cannot tell.
	d.engine.Do(func() {})
}

func (s *memorySession) Release(op *blockio.Operation) {
	if !s.claimed[op] {
		panic("an operation is released that was not claimed")
	}
	delete(s.claimed, op)
	op.Data = nil
}

func (s *memorySession) Close() {
	s.pending, s.claimed = nil, nil
}
