// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"encoding/binary"
	"syscall"

	"github.com/zc-relay/zc-relay/internal/prefetch"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

const (
	// transmitBudget bounds the bytes that a connection sends per turn, so that others get theirs.
	transmitBudget = 512 << 10
	// measureBatches is the number of batches after which TCP's segment size is read again. It can
	// shrink when the network path changes.
	measureBatches = 256
	// prefetchBytes is the largest payload that is prefetched. In a longer one the hardware
	// prefetcher takes over by itself.
	prefetchBytes = 16 << 10
)

// transmitter is the sending half of a connection.
type transmitter struct {
	message  outgoing
	maxULPDU int
	batches  int // until the segment size is measured again

	sendSequence uint32 // MSN of the next Send
	readSequence uint32 // MSN of the next Read Request

	// accepted is the index of the first posted request that TCP has not accepted completely:
	// Sends.Head ≤ accepted ≤ Sends.Next.
	accepted uint32

	responseTurn bool // a waiting Read Response precedes the next chain
	fromQueue    bool // message is a posted request, not a Read Response
	// awaitingPeer is set on a responder until the initiator's first frame arrives. A responder
	// must not send before that (RFC 5044 section 7.1.2).
	awaitingPeer bool
	blocked      bool // the socket's send buffer is full

	batch batch
}

func newTransmitter(e handshakeResult) transmitter {
	t := transmitter{
		sendSequence: 1, readSequence: 1, awaitingPeer: e.awaitsPeer,
	}
	if e.sentRead {
		t.readSequence++
	}
	return t
}

// measure derives maxULPDU from TCP's current segment size.
func (t *transmitter) measure(s *socket) {
	t.batches = measureBatches
	if n := s.segmentBytes(); n > 0 {
		t.maxULPDU = maxULPDUFor(n)
	} else if t.maxULPDU == 0 {
		t.maxULPDU = minULPDU
	}
}

// Flush sends as much of the posted requests as the socket accepts and one turn allows.
func (c *connection) Flush() {
	if c.HasArrived() { // still in the queue's inbox
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen {
		c.transmit()
	}
}

// transmit sends until nothing is left, the socket is full, or the turn is over.
func (c *connection) transmit() {
	t := &c.transmitter
	if t.awaitingPeer || t.blocked {
		return
	}
	f := &c.queue.Fairness
	for sent := 0; f.Allowance(&c.Sharing, softrdma.Transmitting, transmitBudget-sent) > 0; {
		if t.batch.empty() && !c.socket.holdsBack() {
			v := c.compose()
			c.queue.regions.ReleaseAll()
			if v != nil {
				c.fail(v)
				return
			}
			if t.batch.empty() {
				c.socket.paused()
				return
			}
		}
		n, done := c.sendBatch()
		if !done {
			return
		}
		sent += n
	}
	c.Schedule()
}

// compose fills the empty batch with FPDUs.
func (c *connection) compose() *violation {
	t := &c.transmitter
	if t.batches--; t.batches <= 0 {
		t.measure(&c.socket)
	}
	b, m := &t.batch, &t.message
	b.workEnd = c.Sends.Next
	for b.hasRoom() {
		if !m.open && !c.nextMessage() {
			return nil
		}
		if m.op == opReadRequest {
			c.addReadRequest()
		} else if added, v := c.addSegment(); v != nil {
			return v
		} else if !added {
			return nil
		}
		if !m.open && t.fromQueue {
			c.Sends.Next++
			b.workEnd = c.Sends.Next
		}
	}
	return nil
}

// outgoing is the message that is being cut into FPDUs.
type outgoing struct {
	open   bool // segments remain
	op     opcode
	region *registration.Region
	source uint64 // offset of the next byte in region
	left   uint32 // bytes not yet in an FPDU
	stag   uint32 // of a tagged message
	// offset is the tagged offset or the message offset of the next byte.
	offset   uint64
	sequence uint32 // of an untagged message
}

// nextMessage starts the next message: a posted request, or the response to a Read by the peer. It
// returns false if there is neither. The two kinds alternate, but nothing is sent between requests
// that were posted together.
func (c *connection) nextMessage() bool {
	t := &c.transmitter
	hasWork, hasResponse := c.Sends.Next != c.Sends.Tail, c.responses.Len() > 0
	switch {
	case hasWork && (!hasResponse || !t.responseTurn):
		w := c.Sends.At(c.Sends.Next)
		m := &t.message
		*m = outgoing{open: true, region: w.Region, source: w.Local, left: w.Length}
		switch w.Opcode {
		case rdma.OpSend:
			m.op, m.sequence = opSend, t.sendSequence
			t.sendSequence++
		case rdma.OpWrite:
			m.op, m.stag, m.offset = opWrite, w.Key, w.Remote
		case rdma.OpRead:
			m.op = opReadRequest
		}
		t.responseTurn, t.fromQueue = !w.Chained, true
	case hasResponse:
		// The slot is free at once: the peer may issue another Read only after it has this
		// response.
		r := c.responses.Pop()
		t.message = outgoing{
			open: true, op: opReadResponse, region: r.region, source: r.source,
			left: r.length, stag: r.stag, offset: r.sink,
		}
		t.responseTurn, t.fromQueue = false, false
	default:
		return false
	}
	return true
}

// addReadRequest adds the current message, a Read Request, which is a single FPDU.
func (c *connection) addReadRequest() {
	t := &c.transmitter
	w := c.Sends.At(c.Sends.Next)
	request := readRequest{
		sinkSTag: c.reads.begin(c.Sends.Next), length: w.Length,
		sourceSTag: w.Key, sourceOffset: w.Remote,
	}
	frame := request.append(t.batch.frame(), t.readSequence)
	t.readSequence++
	t.batch.addFrame(appendTrailer(frame, c.useCRC))
	t.message.open = false
}

// addSegment adds the next FPDU of the current message. It returns false if the batch is full.
func (c *connection) addSegment() (bool, *violation) {
	t := &c.transmitter
	b, m := &t.batch, &t.message
	// Payloads are cut to multiples of four, so that only the last FPDU of a message needs padding.
	limit := (t.maxULPDU + lengthBytes - int(headerBytes[m.op])) &^ 3
	payload := min(int(m.left), limit)
	if payload <= inlineBytes {
		return true, c.addInline(payload)
	}
	if b.gather.Bytes() >= batchBytes && payload > smallBytes {
		return false, nil
	}
	copied := c.copyTrusted
	if m.region.Untrusted() {
		copied = c.copyUntrusted
	}
	if copied {
		if b.copied+payload > len(b.stable) {
			return false, nil
		}
	} else if !b.addRegion(m.region) {
		return false, nil
	} else if m.region.Untrusted() {
		b.untrusted = true
	}
	if !c.queue.regions.Acquire(m.region) {
		return false, violationRevoked
	}
	source := m.region.Bytes()[m.source : m.source+uint64(payload)]
	if copied {
		stable := b.stable[b.copied : b.copied+payload]
		if !m.region.CopyOut(stable, m.source) {
			return false, violationFault
		}
		source = stable
		b.copied += payload
	} else if payload <= prefetchBytes {
		prefetch.Memory(source)
	}
	header := m.appendHeader(b.frame(), payload)
	b.addFrame(header)
	b.addPayload(source)
	pad := padLength(len(header) - lengthBytes + payload)
	trailer := append(b.frame(), zeroTrailer[:pad]...)
	var crc uint32
	if c.useCRC {
		crc = updateCRC(updateCRC(updateCRC(0, header), source), trailer)
	}
	b.addFrame(binary.LittleEndian.AppendUint32(trailer, crc))
	return true, nil
}

// addInline adds the next FPDU of the current message with its payload copied into the scratch.
func (c *connection) addInline(payload int) *violation {
	b, m := &c.transmitter.batch, &c.transmitter.message
	region, source := m.region, m.source
	frame := m.appendHeader(b.frame(), payload)
	if payload > 0 {
		if !c.queue.regions.Acquire(region) {
			return violationRevoked
		}
		at := len(frame)
		frame = frame[:at+payload]
		if !region.CopyOut(frame[at:], source) {
			return violationFault
		}
	}
	b.addFrame(appendTrailer(frame, c.useCRC))
	return nil
}

// appendHeader appends the header of the next segment, which carries payload bytes, and advances
// the message past it.
func (m *outgoing) appendHeader(frame []byte, payload int) []byte {
	last := m.left == uint32(payload)
	if m.op.tagged() {
		frame = taggedHeader{
			op: m.op, last: last, stag: m.stag, offset: m.offset,
		}.append(frame, payload)
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

// sendBatch makes one system call or, with TLS, one for each few records. It returns the number of
// bytes sent, and false if sending has to stop for now.
func (c *connection) sendBatch() (sent int, done bool) {
	t := &c.transmitter
	b := &t.batch
	if !b.acquireRegions() {
		c.fail(violationRevoked)
		return 0, false
	}
	n, err := c.socket.send(&b.gather, b.untrusted)
	b.releaseRegions(b.regionCount)
	if n > 0 {
		c.queue.Fairness.Count(&c.Sharing, softrdma.Transmitting, n)
		b.partlySent = true
	}
	switch err {
	case 0, syscall.EAGAIN:
	case syscall.EINTR, syscall.ENOBUFS, syscall.ENOMEM:
		c.Schedule() // another turn
		return 0, false
	case syscall.EFAULT:
		c.fail(violationFault)
		return 0, false
	default:
		c.tcpFailed(err)
		return 0, false
	}
	if !b.empty() || c.socket.holdsBack() {
		c.setBlocked(true)
		return 0, false
	}
	b.reset()
	t.accepted = b.workEnd
	c.completeSends()
	return n, true
}

// setBlocked records whether the socket's send buffer is full. While it is, the poller reports when
// the socket becomes writable.
func (c *connection) setBlocked(blocked bool) {
	c.transmitter.blocked = blocked
	if err := c.queue.poller.watchWritable(&c.socket, c.Slot, blocked); err != nil {
		c.end(err, rdma.StatusFatal)
	}
}

// completeSends completes the finished requests at the head of the send queue: Sends and Writes
// once TCP has accepted them, Reads once their data has arrived.
func (c *connection) completeSends() {
	q := &c.Sends
	for q.Head != c.transmitter.accepted {
		w := q.At(q.Head)
		if w.Opcode == rdma.OpRead && !w.Done {
			return
		}
		c.CompleteSend(w, rdma.StatusSuccess)
	}
}
