package shm

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/connections"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
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

// PostSend adds the requests to the send queue, all or none, and schedules the connection for
// transmission by the next Poll, unless Flush comes first.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	if c.phase == phaseDetached {
		return workqueue.ErrDetached
	}
	if uint32(len(requests)) > c.sends.Room() {
		return workqueue.ErrSendQueueFull
	}
	var reads uint32
	for i := range requests {
		w := c.sends.At(c.sends.Tail + uint32(i))
		if err := c.prepare(w, &requests[i]); err != nil {
			return err
		}
		if w.opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && c.phase == phaseOpen && c.reads.posted+reads > c.reads.limit {
		return workqueue.ErrReadDepth
	}
	c.reads.posted += reads
	c.sends.Tail += uint32(len(requests))
	if c.phase == phaseEnded {
		c.flushSends(rdma.StatusFlushed)
		return nil
	}
	c.queue.schedule(c)
	return nil
}

// prepare checks a request and translates it into w.
func (c *connection) prepare(w *sendWork, r *rdma.SendRequest) error {
	rights, err := workqueue.CheckSend(r, softrdma.MaxMessageSize)
	if err != nil {
		return err
	}
	region, err := c.resolve(r.Local, rights)
	if err != nil {
		return workqueue.PostError(r.Opcode.String(), r.ID, err)
	}
	*w = sendWork{
		id: r.ID, region: region, local: r.Local.Address, remote: r.RemoteAddress,
		length: r.Local.Length, key: r.RemoteKey, opcode: r.Opcode, silent: r.Silent,
	}
	if r.Opcode == rdma.OpSend {
		return nil
	}
	for i := range c.lent {
		if l := &c.lent[i]; l.region == region && (l.writable || r.Opcode == rdma.OpWrite) {
			w.lent = uint8(i + 1)
		}
	}
	return nil
}

// resolve returns the memory of a segment. After the end of the connection it returns nil, because
// the memory is no longer needed and may have been deregistered.
func (c *connection) resolve(
	local rdma.Segment, rights memory.Access,
) (*registration.Region, error) {
	if c.phase != phaseOpen {
		return nil, nil
	}
	return c.domain.Resolve(local, rights)
}

// Flush starts the posted requests as far as the ring has room and one turn allows.
func (c *connection) Flush() {
	if c.slot == connections.Unassigned { // still in the queue's inbox
		c.queue.processInbox()
	}
	if c.phase == phaseOpen {
		c.transmit()
		c.queue.held.ReleaseAll()
	}
}

// transmit writes responses to the peer's Reads and posted requests to the ring, for one turn. What
// remains waits for the next turn or, if the ring is full, for the peer.
func (c *connection) transmit() {
	usual := c.queue.fairness.Allowance(&c.sharing, connections.Transmitting, turnBytes)
	budget, hasRoom := usual, true
	publishAt := usual - publishBytes
	for hasRoom && budget > 0 && c.hasUnsent() {
		if c.responses.Len() > 0 {
			hasRoom = c.respond(&budget)
		} else {
			hasRoom = c.transmitPiece(&budget)
		}
		if c.phase != phaseOpen {
			return
		}
		if budget <= publishAt && c.tail != c.published {
			c.publish()
			publishAt = budget - publishBytes
		}
	}
	if budget < usual {
		c.queue.fairness.Count(&c.sharing, connections.Transmitting, usual-budget)
	}
	c.blockedAt = c.peerConsumed // before completeSends, which may look again
	c.publish()
	c.completeSends()
	if hasRoom && c.phase == phaseOpen && c.hasUnsent() {
		c.queue.schedule(c)
	}
}

func (c *connection) hasUnsent() bool {
	return c.sends.Next != c.sends.Tail || c.responses.Len() > 0
}

// transmitPiece carries out a piece of the request at sends.Next, or puts it into the ring. It
// returns false if the ring has no room.
func (c *connection) transmitPiece(budget *int) bool {
	w := c.sends.At(c.sends.Next)
	if w.region != nil && !c.queue.held.Acquire(w.region) {
		c.fail(endingMemory, "the memory of a %v was deregistered before it was carried out",
			w.opcode)
		return true
	}
	var piece uint32
	switch w.opcode {
	case rdma.OpSend:
		piece = min(w.length-c.sent, maxInline)
		r := record{kind: recordSend, length: piece, address: uint64(c.sent),
			last: c.sent+piece == w.length}
		if !c.put(&r, w.region, w.local+uint64(c.sent)) {
			return false
		}
	case rdma.OpWrite:
		if w.length == 0 {
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
		piece = w.length
	}
	*budget -= recordCost
	if w.opcode != rdma.OpRead && !w.awaitsPeer {
		*budget -= int(piece)
	}
	if c.sent += piece; c.sent == w.length {
		c.sent = 0
		c.sends.Next++
	}
	return true
}

// transmitWrite returns how many bytes of a Write it has carried out or put into the ring. It
// returns false if the ring has no room.
func (c *connection) transmitWrite(w *sendWork) (piece uint32, ok bool) {
	done := uint64(c.sent)
	if sink := c.borrowedFor(w); sink != nil {
		piece = min(w.length-c.sent, maxLentPiece)
		err := memory.Copy(sink, w.remote+done, w.region.Memory(), w.local+done, uint64(piece))
		if err != nil {
			c.fail(endingMemory, "carry out a Write: %v", err)
		}
		return piece, true
	}
	r := record{kind: recordWrite, lent: w.lent, key: w.key, address: w.remote + done}
	if w.lent == 0 {
		r.length = min(w.length-c.sent, maxInline)
		return r.length, c.put(&r, w.region, w.local+done)
	}
	r.length, r.source = min(w.length-c.sent, maxLentPiece), w.local+done
	if !c.put(&r, nil, 0) {
		return 0, false
	}
	w.awaitsPeer, w.end = true, c.tail
	return r.length, true
}

// borrowedFor returns the peer's memory that a Write goes to, if this side may write to it. In all
// other cases the peer checks the Write.
func (c *connection) borrowedFor(w *sendWork) *memory.Region {
	for i := range c.borrowed {
		b := &c.borrowed[i]
		if b.offer.key == w.key && b.offer.writable &&
			b.memory.CheckRange(w.remote, uint64(w.length)) == nil {
			return b.memory
		}
	}
	return nil
}

// requestRead asks the peer for a Read. It returns false if the ring has no room.
func (c *connection) requestRead(w *sendWork) bool {
	if w.length == 0 {
		w.done = true
		c.reads.posted--
		return true
	}
	r := record{kind: recordRead, lent: w.lent, length: w.length, key: w.key, address: w.remote,
		source: w.local}
	if !c.put(&r, nil, 0) {
		return false
	}
	*c.reads.outstanding.Push() = c.sends.Next // posted is at most limit
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
	if r.last && c.phase == phaseOpen {
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
	for q := &c.sends; c.phase == phaseOpen && q.Head != q.Next; {
		w := q.At(q.Head)
		switch {
		case w.opcode == rdma.OpRead && !w.done:
			return
		case w.awaitsPeer && c.peerConsumed < w.end:
			if !c.refreshConsumed() || c.peerConsumed < w.end {
				return
			}
		}
		c.completeSend(w, rdma.StatusSuccess)
	}
}
