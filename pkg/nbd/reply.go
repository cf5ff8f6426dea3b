// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"encoding/binary"
	"fmt"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// reply is a message to the client: a header, then a payload or the data of an operation, if any.
type reply struct {
	header    [64]byte
	size      int                // of the header
	payload   []byte             // that follows
	operation *blockio.Operation // whose data follows; nil for none
	request   *request           // to release when the reply has been sent; nil if more will follow
}

func (r *reply) length() int { return r.size + len(r.body()) }

// body returns what follows the header.
func (r *reply) body() []byte {
	if r.operation == nil {
		return r.payload
	}
	return r.operation.Data
}

func (c *connection) hasReplies() bool { return c.nextReply < len(c.replies) }

// queue appends a reply, which the caller fills in.
func (c *connection) queue() *reply {
	if 2*c.nextReply >= len(c.replies) { // at least half of the list has been sent
		n := copy(c.replies, c.replies[c.nextReply:])
		c.replies, c.nextReply = c.replies[:n], 0
	}
	c.replies = append(c.replies, reply{})
	c.wake()
	return &c.replies[len(c.replies)-1]
}

// simple starts a simple reply (section "Simple reply message").
func (c *connection) simple(r *request, outcome blockio.Errno) *reply {
	p := c.queue()
	b := p.header[:0]
	b = binary.BigEndian.AppendUint32(b, magicSimpleReply)
	b = binary.BigEndian.AppendUint32(b, uint32(outcome))
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	p.size = len(b)
	return p
}

// chunk starts a chunk with the given length of payload (section "Structured reply chunk message",
// or the extended form).
func (c *connection) chunk(r *request, flags, kind uint16, length uint64) *reply {
	p := c.queue()
	b := p.header[:0]
	magic := magicStructuredReply
	if c.extended {
		magic = magicExtendedReply
	}
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	if c.extended {
		b = binary.BigEndian.AppendUint64(b, r.offset)
		b = binary.BigEndian.AppendUint64(b, length)
	} else {
		b = binary.BigEndian.AppendUint32(b, uint32(length))
	}
	p.size = len(b)
	return p
}

// append32 and append64 append to the header of a reply.
func (r *reply) append32(v uint32) {
	binary.BigEndian.PutUint32(r.header[r.size:], v)
	r.size += 4
}

func (r *reply) append64(v uint64) {
	binary.BigEndian.PutUint64(r.header[r.size:], v)
	r.size += 8
}

// endReply marks the last reply to a request, which is released when that has been sent.
func (c *connection) endReply(r *request, p *reply, outcome blockio.Errno) {
	r.done = true
	p.request = r
	c.counters.Count(r.kind, outcome, r.length)
}

// finish answers a request without data with success.
func (c *connection) finish(r *request) {
	if c.extended || (c.structured && r.kind == blockio.Read) {
		c.endReply(r, c.chunk(r, chunkDone, chunkNone, 0), blockio.Success)
		return
	}
	c.endReply(r, c.simple(r, blockio.Success), blockio.Success)
}

// errorChunkSize is the payload of an error chunk without a message: the error, and the message's
// length.
const errorChunkSize = 6

// fail answers a request with an error.
func (c *connection) fail(r *request, failure blockio.Errno) {
	if !c.structured {
		c.endReply(r, c.simple(r, failure), failure)
		return
	}
	p := c.chunk(r, chunkDone, chunkError, errorChunkSize)
	p.append32(uint32(failure))
	p.size += 2 // no message
	c.endReply(r, p, failure)
}

// replyData sends the data of one operation as a chunk of a read.
func (c *connection) replyData(r *request, op *blockio.Operation, last bool) {
	flags := uint16(0)
	if last {
		flags = chunkDone
	}
	p := c.chunk(r, flags, chunkOffsetData, 8+op.Length)
	p.append64(op.Offset)
	p.operation = op
	if last {
		c.endReply(r, p, blockio.Success)
	}
}

// replyPart sends the data that a read has collected as one piece: a simple reply or a part of it,
// or a chunk with everything.
func (c *connection) replyPart(r *request) {
	last := r.claimed == r.length
	c.inParts = !last
	for op := r.first; op != nil; op = op.Next {
		var p *reply
		switch {
		case r.headerSent:
			p = c.queue()
		case c.structured:
			p = c.chunk(r, chunkDone, chunkOffsetData, 8+r.length)
			p.append64(r.offset)
		default:
			p = c.simple(r, blockio.Success)
		}
		r.headerSent = true
		p.operation = op
		if last && op.Next == nil {
			c.endReply(r, p, blockio.Success)
		}
	}
	r.first, r.last = nil, nil
}

// replyBlockStatus answers NBD_CMD_BLOCK_STATUS with extents in the context base:allocation.
func (c *connection) replyBlockStatus(r *request, extents []blockio.Extent) {
	if r.flags&blockio.RequestOne != 0 {
		extents = extents[:1]
	}
	kind, b := chunkBlockStatus, []byte(nil)
	b = binary.BigEndian.AppendUint32(b, contextID)
	if c.extended {
		kind = chunkBlockStatusExt
		b = binary.BigEndian.AppendUint32(b, uint32(len(extents)))
	}
	for _, e := range extents {
		state := uint32(0)
		if e.Hole {
			state = stateHole | stateZero
		}
		if c.extended {
			b = binary.BigEndian.AppendUint64(b, e.Length)
			b = binary.BigEndian.AppendUint64(b, uint64(state))
		} else {
			b = binary.BigEndian.AppendUint32(b, uint32(e.Length))
			b = binary.BigEndian.AppendUint32(b, state)
		}
	}
	p := c.chunk(r, chunkDone, kind, uint64(len(b)))
	p.payload = b
	c.endReply(r, p, blockio.Success)
}

// send sends as many replies as the socket accepts.
func (c *connection) send() {
	for c.hasReplies() {
		g := &c.worker.out
		g.Reset()
		skip := c.sent
		for i := c.nextReply; i < len(c.replies) && g.Count()+2 <= linux.MaxVectors; i++ {
			p := &c.replies[i]
			if skip < p.size {
				g.Add(p.header[skip:p.size])
			}
			if body := p.body(); len(body) > 0 {
				g.Add(body[max(skip-p.size, 0):])
			}
			skip = 0
		}
		n, err := c.socket.send(g)
		if errAgain(err) {
			return
		}
		if err != 0 {
			c.close(fmt.Sprintf("send: %v", err))
			return
		}
		c.remove(n)
		if n < g.Bytes() {
			return
		}
	}
}

// remove removes the first n bytes of the replies, which have been sent.
func (c *connection) remove(n int) {
	c.sent += n
	for c.hasReplies() {
		p := &c.replies[c.nextReply]
		length := p.length()
		if c.sent < length {
			return
		}
		c.sent -= length
		if p.operation != nil {
			c.session.Release(p.operation)
		}
		if p.request != nil {
			c.release(p.request)
		}
		p.operation, p.payload, p.request = nil, nil, nil
		c.nextReply++
	}
}
