// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// turn receives what the peer has sent, for one turn, completes what the peer has carried out, and
// notices the peer's end.
func (c *connection) turn() {
	if c.Sends.Head != c.Sends.Next {
		c.completeSends()
		if c.Phase != softrdma.PhaseOpen {
			return
		}
	}
	// The peer publishes its last records before its end, and its end before it closes the socket.
	hungUp := c.hungUp
	ended := ending(c.peer.header.ended.Load())
	tail := c.peer.header.tail.Load()
	if tail != c.position {
		c.receive(tail)
		if c.Phase != softrdma.PhaseOpen {
			return
		}
	}
	if c.position == tail && (hungUp || ended != endingNone) {
		c.peerEnded(ended)
		return
	}
	if c.hasUnsent() && c.peer.header.consumed.Load() != c.blockedAt {
		c.Schedule()
	}
}

// receive handles the records up to tail, for one turn.
func (c *connection) receive(tail uint64) {
	if tail-c.position > ringBytes {
		c.fail(endingProtocol, "the peer claims to have written %d bytes after %d were read",
			tail, c.position)
		return
	}
	usual := c.queue.Fairness.Allowance(&c.Sharing, softrdma.Receiving, turnBytes)
	if usual == 0 {
		return
	}
	budget := usual
	r := c.peer.read(c.position % ringBytes)
	for budget > 0 && c.position != tail {
		at := c.position % ringBytes
		span := r.span()
		if r.kind == recordSkip {
			span = ringBytes - at
		}
		if span > tail-c.position || at+span > ringBytes {
			c.fail(endingProtocol, "a record of %d bytes is longer than what was written", span)
			return
		}
		var next record
		c.ahead = nil
		if end := c.position + span; end != tail {
			next = c.peer.read(end % ringBytes)
			c.lookAhead(&next, end, tail)
		}
		c.handle(&r, c.peer.ring[at+recordBytes:at+recordBytes+r.inlineWithin(span)])
		if c.Phase != softrdma.PhaseOpen {
			return
		}
		c.position += span
		budget -= recordCost + r.copied()
		r = next
	}
	c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, usual-budget)
	c.publish()
}

// inlineWithin returns the length of the payload of a record that spans that many bytes.
func (r *record) inlineWithin(span uint64) uint64 {
	if r.kind == recordSkip {
		return 0
	}
	return min(r.inlineBytes(), span-recordBytes)
}

// copied returns how many bytes handling the record copies, at most turnBytes.
func (r *record) copied() int {
	if r.kind == recordRead || r.kind == recordResponse && r.lent != 0 {
		return 0
	}
	return int(min(r.length, turnBytes))
}

// lookAhead finds the data of the Write that is carried out next, usually a block that no cache
// holds: that of the record at position, or of the one behind it if that is a message.
func (c *connection) lookAhead(r *record, position, tail uint64) {
	if r.kind == recordSend {
		position += r.span()
		if tail-position > ringBytes || position == tail {
			return // the record is longer than what was written, or the last
		}
		behind := c.peer.read(position % ringBytes)
		r = &behind
	}
	if r.kind != recordWrite || r.lent == 0 {
		return
	}
	if b := c.borrowedAt(r.lent, r.source, r.length); b != nil {
		c.ahead = b.memory.Bytes()[r.source:][:r.length]
	}
}

// handle handles one record. Nothing in it can be trusted.
func (c *connection) handle(r *record, payload []byte) {
	switch r.kind {
	case recordSend:
		c.handleSend(r, payload)
	case recordWrite:
		c.handleWrite(r, payload)
	case recordRead:
		c.handleRead(r)
	case recordResponse:
		c.handleResponse(r, payload)
	case recordSkip:
	default:
		c.fail(endingProtocol, "a record is of unknown kind %d", r.kind)
	}
}

// handleSend places a piece of a message into the oldest receive.
func (c *connection) handleSend(r *record, payload []byte) {
	q := &c.Receives
	if q.Head == q.Tail {
		c.fail(endingReceive, "the peer sent a message, and no receive is posted")
		return
	}
	w := q.At(q.Head)
	switch {
	case r.lent != 0 || r.address != uint64(c.received) || len(payload) == 0 && !r.last:
		c.fail(endingProtocol, "a piece of a message is at offset %d instead of %d", r.address,
			c.received)
		return
	case uint64(r.length) > uint64(w.Length-c.received):
		c.tooLong(w)
		return
	}
	if len(payload) > 0 {
		if !c.queue.held.Acquire(w.Region) {
			c.fail(endingMemory, "the memory of a receive was deregistered")
			return
		}
		if !w.Region.CopyIn(w.Local+uint64(c.received), payload) {
			c.fail(endingMemory, "the owner of imported memory has taken it away")
			return
		}
	}
	c.received += r.length
	if r.last {
		length := c.received
		c.received = 0
		c.CompleteReceive(w, length, rdma.StatusSuccess)
	}
}

// tooLong ends the connection because of a message that is longer than its receive.
func (c *connection) tooLong(w *softrdma.Receive) {
	c.CompleteReceive(w, 0, rdma.StatusLocalLength)
	c.fail(endingReceive, "the peer sent a message of more than the %d bytes of its receive",
		w.Length)
}

// handleWrite carries out a piece of a Write.
func (c *connection) handleWrite(r *record, payload []byte) {
	if r.length == 0 || r.length > maxLentPiece {
		c.fail(endingProtocol, "a Write has a piece of %d bytes", r.length)
		return
	}
	sink := c.reach(r, memory.RemoteWrite)
	if sink == nil {
		return
	}
	if r.lent == 0 {
		if !sink.CopyIn(r.address, payload) {
			c.fail(endingMemory, "the owner of imported memory has taken it away")
		}
		return
	}
	source := c.borrowedAt(r.lent, r.source, r.length)
	if source == nil {
		c.fail(endingProtocol, "a Write of %d bytes at offset %d is not in lent memory %d",
			r.length, r.source, r.lent)
		return
	}
	err := memory.CopyAhead(sink.Memory(), r.address, source.memory, r.source, uint64(r.length),
		c.ahead)
	if err != nil {
		c.fail(endingMemory, "carry out a Write of the peer: %v", err)
	}
}

// borrowedAt returns the lent memory that a record names, or nil if there is none or the range is
// outside.
func (c *connection) borrowedAt(lent uint8, offset uint64, length uint32) *borrowedMemory {
	if int(lent) > len(c.borrowed) {
		return nil
	}
	b := &c.borrowed[lent-1]
	if b.memory.CheckRange(offset, uint64(length)) != nil {
		return nil
	}
	return b
}

// reach returns, acquired, the memory that the peer names in a Write or Read, after it has checked
// key, domain, rights, bounds, and state. If the peer may not reach it, the connection ends.
func (c *connection) reach(r *record, rights memory.Access) *registration.Region {
	region, refusal := c.Domain.Find(r.key, r.address, r.length, rights)
	switch {
	case refusal == registration.UnknownKey || refusal == registration.OtherDomain:
		c.fail(endingAccess, "key %#x is not registered in the connection's domain", r.key)
	case refusal == registration.MissingRights:
		c.fail(endingAccess, "key %#x does not have the right %#x", r.key, uint32(rights))
	case refusal != registration.Granted:
		c.fail(endingAccess, "%d bytes at %#x are outside of the %d bytes of key %#x", r.length,
			r.address, c.Domain.LengthOf(r.key), r.key)
	case !c.queue.held.Acquire(region):
		c.fail(endingAccess, "key %#x is being deregistered", r.key)
	default:
		return region
	}
	return nil
}

// handleRead queues a Read of the peer.
func (c *connection) handleRead(r *record) {
	switch {
	case r.length == 0 || r.length > softrdma.MaxMessageSize:
		c.fail(endingProtocol, "a Read has %d bytes", r.length)
		return
	case c.responses.Room() == 0:
		c.fail(endingProtocol, "the peer has more Reads outstanding than the agreed %d",
			c.Agreed.InboundReads)
		return
	}
	if r.lent != 0 {
		sink := c.borrowedAt(r.lent, r.source, r.length)
		if sink == nil || !sink.offer.writable {
			c.fail(endingProtocol, "a Read of %d bytes to offset %d is not into lent memory %d",
				r.length, r.source, r.lent)
			return
		}
	}
	source := c.reach(r, memory.RemoteRead)
	if source == nil {
		return
	}
	*c.responses.Push() = readResponse{region: source, source: r.address, sink: r.source,
		length: r.length, lent: r.lent}
	c.Schedule()
}

// handleResponse places a piece of the data of the oldest outstanding Read.
func (c *connection) handleResponse(r *record, payload []byte) {
	if c.reads.Len() == 0 {
		c.fail(endingProtocol, "the peer responded to a Read, and none is outstanding")
		return
	}
	w := c.Sends.At(*c.reads.Front())
	received := &c.readReceived
	if r.lent != 0 {
		if r.lent != w.Extra.lent || r.length != w.Length || *received != 0 || !r.last {
			c.fail(endingProtocol, "a Read of %d bytes is answered with %d in lent memory %d",
				w.Length, r.length, r.lent)
			return
		}
	} else {
		if r.address != uint64(*received) || r.length == 0 || r.length > w.Length-*received ||
			r.last != (*received+r.length == w.Length) {
			c.fail(endingProtocol, "a Read of %d bytes is answered with %d at offset %d",
				w.Length, r.length, r.address)
			return
		}
		if !c.queue.held.Acquire(w.Region) {
			c.fail(endingMemory, "the memory of a Read was deregistered")
			return
		}
		if !w.Region.CopyIn(w.Local+uint64(*received), payload) {
			c.fail(endingMemory, "the owner of imported memory has taken it away")
			return
		}
		*received += r.length
	}
	if r.last {
		*received = 0
		w.Done = true
		c.reads.Pop()
		c.Reads--
		c.completeSends()
	}
}
