// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// The cost of a turn.
const (
	// turnBytes bounds the bytes that a connection copies in one direction per turn, so that others
	// have theirs.
	turnBytes = 256 << 10
	// recordCost is what a record costs in addition, in bytes.
	recordCost = 256
	// publishBytes is how much of a turn a connection spends before it publishes what it wrote:
	// little enough that both sides work at the same time, enough that it does not publish every
	// record.
	publishBytes = 16 << 10
)

// Flush starts the posted requests as far as the ring has room and one turn allows.
func (c *connection) Flush() {
	if c.HasArrived() { // still in the queue's inbox
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen && c.hasUnsent() { // a receive needs no start
		c.transmit()
		c.queue.held.ReleaseAll()
	}
}

// transmit writes responses to the peer's Reads and posted requests to the ring, for one turn. What
// remains waits for the next turn or, if the ring is full, for the peer.
func (c *connection) transmit() {
	usual := c.queue.Fairness.Allowance(&c.Sharing, softrdma.Transmitting, turnBytes)
	budget, hasRoom := usual, true
	publishAt := usual - publishBytes
	for hasRoom && budget > 0 && c.hasUnsent() {
		if c.responses.Len() > 0 {
			hasRoom = c.respond(&budget)
		} else {
			hasRoom = c.transmitPiece(&budget)
		}
		if c.Phase != softrdma.PhaseOpen {
			return
		}
		if budget <= publishAt && c.tail != c.published {
			c.publish()
			publishAt = budget - publishBytes
		}
	}
	if budget < usual {
		c.queue.Fairness.Count(&c.Sharing, softrdma.Transmitting, usual-budget)
	}
	c.blockedAt = c.peerConsumed // before completeSends, which may look again
	c.publish()
	c.completeSends()
	if c.Phase != softrdma.PhaseOpen {
		return
	}
	c.queue.watches.update(c)
	if hasRoom && c.hasUnsent() {
		c.Schedule()
	}
}

func (c *connection) hasUnsent() bool {
	return c.Sends.Next != c.Sends.Tail || c.responses.Len() > 0
}

// transmitPiece carries out a piece of the request at sends.Next, or puts it into the ring. It
// returns false if the ring has no room.
func (c *connection) transmitPiece(budget *int) bool {
	w := c.Sends.At(c.Sends.Next)
	if w.Region != nil && !c.queue.held.Acquire(w.Region) {
		c.fail(endingMemory, "the memory of a %v was deregistered before it was carried out",
			w.Opcode)
		return true
	}
	var piece uint32
	switch w.Opcode {
	case rdma.OpSend:
		piece = min(w.Length-c.sent, maxInline)
		r := record{kind: recordSend, length: piece, address: uint64(c.sent),
			last: c.sent+piece == w.Length}
		if !c.put(&r, w.Region, w.Local+uint64(c.sent)) {
			return false
		}
	case rdma.OpWrite:
		if w.Length == 0 {
			break
		}
		var ok bool
		if piece, ok = c.transmitWrite(w); !ok {
			return false
		}
	case rdma.OpRead:
		if !c.requestRead(w) {
			return false
		}
		piece = w.Length
	}
	*budget -= recordCost
	if w.Opcode != rdma.OpRead && !w.Extra.awaitsPeer {
		*budget -= int(piece)
	}
	if c.sent += piece; c.sent == w.Length {
		c.sent = 0
		c.Sends.Next++
	}
	return true
}

// transmitWrite returns how many bytes of a Write it has carried out or put into the ring. It
// returns false if the ring has no room.
func (c *connection) transmitWrite(w *sendWork) (piece uint32, ok bool) {
	done := uint64(c.sent)
	if sink := c.borrowedFor(w); sink != nil {
		piece = min(w.Length-c.sent, maxLentPiece)
		err := memory.Copy(sink, w.Remote+done, w.Region.Memory(), w.Local+done, uint64(piece))
		if err != nil {
			c.fail(endingMemory, "carry out a Write: %v", err)
		}
		return piece, true
	}
	if c.sent == 0 {
		w.Extra.lent = c.lentFor(w)
	}
	r := record{kind: recordWrite, lent: w.Extra.lent, key: w.Key, address: w.Remote + done}
	if w.Extra.lent == 0 {
		r.length = min(w.Length-c.sent, maxInline)
		return r.length, c.put(&r, w.Region, w.Local+done)
	}
	r.length, r.source = min(w.Length-c.sent, maxLentPiece), w.Local+done
	if !c.put(&r, nil, 0) {
		return 0, false
	}
	w.Extra.awaitsPeer, w.Extra.end = true, c.tail
	return r.length, true
}

// lentFor returns 1 plus the index of the lent memory where the peer finds the data of a Write, or
// puts that of a Read, or 0.
func (c *connection) lentFor(w *sendWork) (lent uint8) {
	for i := range c.lent {
		if l := &c.lent[i]; l.region == w.Region && (l.writable || w.Opcode == rdma.OpWrite) {
			lent = uint8(i + 1)
		}
	}
	return lent
}

// borrowedFor returns the peer's memory that a Write goes to, if this side may write to it. In all
// other cases the peer checks the Write.
func (c *connection) borrowedFor(w *sendWork) *memory.Region {
	for i := range c.borrowed {
		b := &c.borrowed[i]
		if b.offer.key == w.Key && b.offer.writable &&
			b.memory.CheckRange(w.Remote, uint64(w.Length)) == nil {
			return b.memory
		}
	}
	return nil
}

// requestRead asks the peer for a Read. It returns false if the ring has no room.
func (c *connection) requestRead(w *sendWork) bool {
	if w.Length == 0 {
		w.Done = true
		c.Reads--
		return true
	}
	w.Extra.lent = c.lentFor(w)
	r := record{kind: recordRead, lent: w.Extra.lent, length: w.Length, key: w.Key,
		address: w.Remote, source: w.Local}
	if !c.put(&r, nil, 0) {
		return false
	}
	*c.reads.Push() = c.Sends.Next // Reads is at most ReadLimit
	return true
}

// respond carries out a piece of the oldest Read of the peer. It returns false if the ring has no
// room.
func (c *connection) respond(budget *int) bool {
	read := c.responses.Front()
	if read.region != nil && !c.queue.held.Acquire(read.region) {
		c.fail(endingAccess, "memory was deregistered while the peer read it")
		return true
	}
	*budget -= recordCost
	source := read.source + uint64(read.done)
	r := record{kind: recordResponse, lent: read.lent}
	if read.lent == 0 {
		r.address, r.length = uint64(read.done), min(read.length-read.done, maxInline)
		r.last = read.done+r.length == read.length
		if !c.put(&r, read.region, source) {
			return false
		}
		read.done += r.length
		*budget -= int(r.length)
	} else {
		piece := min(read.length-read.done, maxLentPiece)
		err := memory.Copy(c.borrowed[read.lent-1].memory, read.sink+uint64(read.done),
			read.region.Memory(), source, uint64(piece))
		if err != nil {
			c.fail(endingMemory, "carry out a Read of the peer: %v", err)
			return true
		}
		read.done += piece
		*budget -= int(piece)
		if read.done < read.length {
			return true
		}
		r.length, r.last = read.length, true
		if !c.put(&r, nil, 0) {
			return false
		}
	}
	if r.last && c.Phase == softrdma.PhaseOpen {
		c.responses.Pop()
	}
	return true
}

// put writes a record with its payload, from memory that the caller has acquired, to the ring. It
// returns false if the ring has no room.
func (c *connection) put(r *record, source *registration.Region, offset uint64) bool {
	span := r.span()
	at := c.tail % ringBytes
	if at+span > ringBytes {
		if !c.hasRoom(ringBytes - at + span) {
			return false
		}
		c.own.write(at, &record{kind: recordSkip})
		c.tail += ringBytes - at
		at = 0
	} else if !c.hasRoom(span) {
		return false
	}
	if inline := r.inlineBytes(); inline > 0 {
		payload := c.own.ring[at+recordBytes:][:inline]
		if !source.CopyOut(payload, offset) {
			c.fail(endingMemory, "the owner of imported memory has taken it away")
			return true
		}
	}
	c.own.write(at, r)
	c.tail += span
	return true
}

// hasRoom reports whether the ring has room for that many more bytes.
func (c *connection) hasRoom(bytes uint64) bool {
	if c.tail-c.peerConsumed+bytes <= ringBytes {
		return true
	}
	return c.refreshConsumed() && c.tail-c.peerConsumed+bytes <= ringBytes
}

// refreshConsumed reads how much of the ring the peer has consumed. It returns false if the
// connection has ended, because the count is impossible.
func (c *connection) refreshConsumed() bool {
	consumed := c.peer.header.consumed.Load()
	if consumed < c.peerConsumed || consumed > c.tail {
		c.fail(endingProtocol, "the peer claims to have consumed %d bytes of %d, after %d",
			consumed, c.tail, c.peerConsumed)
		return false
	}
	c.peerConsumed = consumed
	return true
}

// publish makes what was written and consumed visible to the peer, and wakes it if it sleeps.
func (c *connection) publish() {
	wrote, consumed := c.tail != c.published, c.position != c.told
	if wrote {
		c.published = c.tail
		c.own.header.tail.Store(c.tail)
	}
	if consumed {
		c.told = c.position
		c.own.header.consumed.Store(c.position)
	}
	if wrote || consumed {
		c.wakePeer(wrote)
	}
}

// wakePeer wakes the peer if it sleeps and has not been woken from this sleep: for something in the
// ring, or, if it waits for that, for what was consumed.
func (c *connection) wakePeer(wrote bool) {
	sleep := c.peer.header.sleep.Load()
	if sleep&sleepBit == 0 || sleep == c.rungFor || !wrote && sleep&awaitsConsumption == 0 {
		return
	}
	c.rungFor = sleep
	c.bell.ring()
}

// completeSends completes the requests that have been carried out, in their order.
func (c *connection) completeSends() {
	for q := &c.Sends; c.Phase == softrdma.PhaseOpen && q.Head != q.Next; {
		w := q.At(q.Head)
		switch {
		case w.Opcode == rdma.OpRead && !w.Done:
			return
		case w.Extra.awaitsPeer && c.peerConsumed < w.Extra.end:
			if !c.refreshConsumed() || c.peerConsumed < w.Extra.end {
				return
			}
		}
		c.CompleteSend(w, rdma.StatusSuccess)
	}
}
