package iwarp

import "github.com/zc-relay/zc-relay/pkg/rdma"

// outgoing is the message that is being turned into FPDUs.
type outgoing struct {
	open   bool
	op     opcode
	region *memoryRegion
	source uint64 // offset in region of the next byte
	left   uint32 // bytes that no FPDU has yet
	stag   uint32 // of a tagged message
	// offset is the tagged offset, or the message offset, of the next byte.
	offset   uint64
	sequence uint32 // of an untagged message
}

// appendHeader writes the header of the next segment, which carries payload
// bytes, and moves on.
func (m *outgoing) appendHeader(frame []byte, payload int) []byte {
	last := m.left == uint32(payload)
	if m.op.tagged() {
		frame = taggedHeader{op: m.op, last: last, stag: m.stag, offset: m.offset}.append(frame, payload)
	} else {
		frame = untaggedHeader{
			op: m.op, last: last, queue: queueSend, sequence: m.sequence, offset: uint32(m.offset),
		}.append(frame, payload)
	}
	m.offset += uint64(payload)
	m.source += uint64(payload)
	m.left -= uint32(payload)
	m.open = !last
	return frame
}

// nextMessage begins the next message: a posted request, or the response to a
// Read of the peer. They take turns, but nothing comes between requests that
// were posted together.
func (c *connection) nextMessage() bool {
	t := &c.transmitter
	work, response := c.sends.pending(), c.responder.pending()
	switch {
	case work && (t.inChain || !response || !t.responseTurn):
		c.openWork()
	case response:
		c.openResponse()
	default:
		return false
	}
	return true
}

func (c *connection) openWork() {
	t := &c.transmitter
	w := c.sends.at(c.sends.next)
	m := &t.message
	*m = outgoing{open: true, region: w.region, source: w.local, left: w.length}
	switch w.opcode {
	case rdma.OpSend:
		m.op, m.sequence = opSend, t.sendSequence
		t.sendSequence++
	case rdma.OpWrite:
		m.op, m.stag, m.offset = opWrite, w.stag, w.remote
	case rdma.OpRead:
		m.op = opReadRequest
	}
	t.inChain, t.responseTurn = w.chained, !w.chained
	t.fromQueue = true
}

func (c *connection) openResponse() {
	t := &c.transmitter
	r := c.responder.at(c.responder.head)
	t.message = outgoing{
		open: true, op: opReadResponse, region: r.region, source: r.source,
		left: r.length, stag: r.stag, offset: r.sink,
	}
	// The peer may ask again only when it has this response, so the slot is
	// free already.
	r.region = nil
	c.responder.head++
	t.responseTurn, t.fromQueue = false, false
}
