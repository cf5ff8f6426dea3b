// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// BounceConfig makes the data of a relay lane pass through memory of the relay: a bounce buffer of
// the lane's buffer size for each slot. The target can then reach these buffers, and never the
// client's memory. A DMA engine copies a write's data from the client before the request is
// forwarded, and a read's data to the client before the response is.
type BounceConfig struct {
	// Engine copies. The lane owns it, and there must be room for a copy per slot.
	Engine dma.Engine
	// Client is the client's memory, and Buffers that of the bounce buffers, which
	// RelayLaneConfig.Export names to the target.
	Client, Buffers dma.Registration
	// Offset is where the lane's buffers begin in Buffers, in bytes.
	Offset uint64
}

// bounce copies the data of a lane's requests. It belongs to the worker's thread. Each copy is one
// of a slot in flight, and the slot is neither completed nor used again before the copy has ended.
type bounce struct {
	BounceConfig
	size   uint64 // of a buffer
	copies []slotCopy
	done   [comchBatch]*dma.Copy
	writes int // copies in progress whose requests have not been forwarded yet
	armed  bool
}

// slotCopy is the copy of a slot, with its only source.
type slotCopy struct {
	dma.Copy
	source [1]dma.Segment
}

func newBounce(config *BounceConfig, depth int, size uint32) *bounce {
	if config == nil {
		return nil
	}
	b := &bounce{BounceConfig: *config, size: uint64(size), copies: make([]slotCopy, depth)}
	for i := range b.copies {
		c := &b.copies[i]
		c.Slot, c.Sources = i, c.source[:]
	}
	return b
}

// buffer returns the offset of a slot's bounce buffer from the start of the registered memory.
func (b *bounce) buffer(slot uint32) uint64 { return b.Offset + uint64(slot)*b.size }

// startCopy copies a write's data from the client, or a read's data to it.
func (l *RelayLane) startCopy(index uint32) {
	s, b := &l.slots.slots[index], l.bounce
	client := dma.Segment{Memory: b.Client, Offset: iomsg.RequesterOffset(s.request[:]),
		Length: uint64(s.ioSize)}
	buffer := dma.Segment{Memory: b.Buffers, Offset: b.buffer(index), Length: uint64(s.ioSize)}
	c := &b.copies[index]
	if s.operation == iomsg.OpWrite {
		c.source[0], c.Destination = client, buffer
		b.writes++
	} else {
		c.source[0], c.Destination = buffer, client
	}
	c.Err = nil
	s.copying = true
	l.submitted++
	if err := b.Engine.Submit(&c.Copy); err != nil {
		c.Err = err
		l.endCopy(&c.Copy)
	}
}

// pollCopies continues the requests whose copies have ended, and returns their number.
func (l *RelayLane) pollCopies() int {
	b := l.bounce
	if l.submitted == 0 {
		return 0
	}
	n := b.Engine.Poll(b.done[:])
	if n == 0 {
		return 0
	}
	l.nowNs = nanotime()
	for _, c := range b.done[:n] {
		l.endCopy(c)
	}
	l.flushRequests()
	l.flushResponses()
	l.checkQuiesced()
	return n
}

// endCopy completes a read, and forwards a write. A write whose lane has failed stays in flight
// until FailRequests; after that, its copy was the last thing it waited for.
func (l *RelayLane) endCopy(c *dma.Copy) {
	index := uint32(c.Slot)
	s := &l.slots.slots[index]
	s.copying = false
	l.submitted--
	if s.operation == iomsg.OpWrite {
		l.bounce.writes--
	}
	switch {
	case c.Err != nil:
		l.complete(index, s, status.IOFailed)
	case s.operation.FillsMemory():
		l.complete(index, s, status.Success)
	case l.state == laneRejecting:
		l.complete(index, s, l.rejectCode)
	case l.state == laneRunning:
		l.request = s.request
		l.forward(index, s, &l.request)
	}
}

// close closes the engine. No copy may be in progress.
func (b *bounce) close() error {
	if b == nil {
		return nil
	}
	return b.Engine.Close()
}

// relayCopyWaiter lets the worker sleep until a copy has ended.
type relayCopyWaiter struct{ *RelayLane }

func (w relayCopyWaiter) Descriptor() int { return w.bounce.Engine.Descriptor() }

func (w relayCopyWaiter) Arm() bool {
	if w.submitted == 0 {
		return true
	}
	w.bounce.armed = w.bounce.Engine.Arm()
	return w.bounce.armed
}

func (w relayCopyWaiter) Disarm() {
	if w.bounce.armed {
		w.bounce.armed = false
		w.bounce.Engine.Disarm()
	}
}

func (w relayCopyWaiter) Clear() { w.bounce.Engine.Clear() }
