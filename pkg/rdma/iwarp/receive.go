// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

const (
	// stagingBytes is how much one system call reads from a stream of small FPDUs.
	stagingBytes = 64 << 10
	// directBytes is the smallest remainder of a payload that is read straight into its memory, or
	// of an FPDU with a CRC that is read straight into its buffer. Copying less than that is
	// cheaper than another system call.
	directBytes = 8 << 10
	// aheadBytes is how much is read into staging between large FPDUs. It has room for trailers,
	// headers, and the small messages between them, but takes in little of the next large payload,
	// which would have to be copied.
	aheadBytes = 512
	// bulkFrames is the number of small FPDUs in a row after which a stream no longer counts as one
	// of large FPDUs.
	bulkFrames = 8
	// receiveBudget bounds the bytes that a connection reads per turn, so that others get theirs.
	receiveBudget = 256 << 10
)

// stage is the part of an FPDU that a receiver expects next.
type stage uint8

const (
	stageHeader stage = iota
	stagePayload
	stageTrailer
)

// receiver is the receiving half of a connection: a state machine that consumes the stream in
// pieces of any size.
type receiver struct {
	stage  stage
	have   int // bytes of the header or trailer that have been consumed
	need   int // bytes of the header or trailer that the next step needs
	left   int // bytes of the payload that have not arrived
	prefix prefix
	// region and offset say where the payload goes. It is discarded if region is nil.
	region *registration.Region
	offset uint64
	// bulk is set to bulkFrames by a payload of at least bulkBytes, and counts down with each
	// smaller one.
	bulk      int
	bulkBytes int
	partial   partialFrame // with CRCs only

	tagged       taggedMessage
	untagged     untaggedMessage
	sendSequence uint32 // expected MSN of the next Send
	readSequence uint32 // expected MSN of the next Read Request

	header [maxHeaderBytes]byte
}

// taggedMessage is a Write or Read Response whose segments are arriving.
type taggedMessage struct {
	open     bool // segments are missing
	op       opcode
	stag     uint32
	offset   uint64 // expected TO of the next segment
	received uint64 // bytes so far
}

// untaggedMessage is a Send whose segments are arriving.
type untaggedMessage struct {
	open   bool // segments are missing
	op     opcode
	offset uint32 // expected MO of the next segment
}

func newReceiver(e handshakeResult) receiver {
	r := receiver{
		need: prefixBytes, bulkBytes: directBytes, sendSequence: 1, readSequence: 1,
	}
	if e.useCRC {
		r.bulkBytes, r.partial = verifiedBulkBytes, newPartialFrame()
	}
	if e.receivedRead {
		r.readSequence++
	}
	return r
}

// stagingSize returns how much to read while the size of the next FPDU is unknown.
func (r *receiver) stagingSize() int {
	if r.bulk > 0 {
		return aheadBytes
	}
	return stagingBytes
}

// atBoundary reports whether the stream is between messages, so that the peer may close it.
func (r *receiver) atBoundary() bool {
	return r.stage == stageHeader && r.have == 0 && r.partial.have == 0 &&
		!r.tagged.open && !r.untagged.open
}

// revokedViolation returns the violation to report if the payload's memory has been deregistered.
// For a Write, the peer used an invalid STag. Otherwise this side deregistered memory that it still
// needed.
func (r *receiver) revokedViolation() *violation {
	if r.prefix.op == opWrite {
		return violationWriteSTag
	}
	return violationRevoked
}

// advance moves past n bytes of the payload.
func (r *receiver) advance(n int) {
	r.left -= n
	r.offset += uint64(n)
}

// receive reads and processes input until none is left or the turn is over. Unread input keeps the
// socket readable.
func (c *connection) receive() {
	f := &c.queue.Fairness
	for done := 0; ; {
		left := f.Allowance(&c.Sharing, softrdma.Receiving, receiveBudget-done)
		if left == 0 {
			return
		}
		n, wanted, err := c.receiveOnce(left)
		if c.Phase != softrdma.PhaseOpen {
			return
		}
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
			return
		case err == syscall.EFAULT:
			c.fail(violationFault)
			return
		case err != 0:
			c.tcpFailed(err)
			return
		case n == 0:
			c.peerClosed()
			return
		}
		if n < wanted {
			return
		}
		done += n
	}
}

// receiveOnce makes one system call and processes the input. It reads at most left bytes, except of
// a payload that goes straight to its memory. It returns how many bytes were read and how many
// could have been. The connection may have ended when it returns.
func (c *connection) receiveOnce(left int) (n, wanted int, err errno) {
	if c.socket.tls != nil {
		return c.receiveRecords(left)
	}
	r := &c.receiver
	staging := c.queue.staging[:min(left, r.stagingSize())]
	switch {
	case r.stage == stagePayload && r.left >= directBytes && r.region != nil:
		return c.receiveDirect(staging)
	case r.partial.missing() >= directBytes:
		return c.receivePartial(staging)
	}
	return c.receiveStaged(staging)
}

// receiveStaged reads into staging only.
func (c *connection) receiveStaged(staging []byte) (n, wanted int, err errno) {
	if n, err = c.socket.receive(staging); n > 0 {
		c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, n)
		c.process(staging[:n])
	}
	return n, len(staging), err
}

// receiveDirect has the kernel write the rest of the payload straight to its memory, and the input
// that follows it to staging.
func (c *connection) receiveDirect(staging []byte) (n, wanted int, err errno) {
	r := &c.receiver
	region := r.region
	if c.socket.stream != nil && region.Untrusted() {
		return c.receiveStaged(staging) // only system calls can write to it in place
	}
	if !region.Acquire() {
		c.fail(r.revokedViolation())
		return 0, 0, 0
	}
	target := region.Bytes()[r.offset : r.offset+uint64(r.left)]
	n, err = c.socket.receiveInto(target, staging)
	region.Release()
	if n == 0 {
		return 0, 1, err
	}
	c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, n)
	placed := min(n, len(target))
	r.advance(placed)
	c.process(staging[:n-placed])
	return n, len(target) + len(staging), 0
}

// process consumes input, and fails the connection if the input breaks the protocol.
func (c *connection) process(input []byte) {
	var v *violation
	if c.useCRC {
		v = c.consumeVerified(input)
	} else {
		v = c.consume(input)
	}
	c.queue.regions.ReleaseAll()
	if v != nil {
		c.fail(v)
	}
}

// consume runs the state machine over all of input, which must be in memory that nobody else can
// change. With CRCs, input is one FPDU whose CRC is correct. The connection may have ended when
// consume returns.
func (c *connection) consume(input []byte) *violation {
	r := &c.receiver
	for {
		var v *violation
		var whole bool
		switch r.stage {
		case stageHeader:
			input, whole, v = c.consumeHeader(input)
		case stagePayload:
			input, whole, v = c.consumePayload(input)
		case stageTrailer:
			input, whole, v = c.consumeTrailer(input)
		}
		if v != nil || !whole || c.Phase == softrdma.PhaseEnded {
			return v
		}
	}
}

// consumeHeader collects a header, in two steps, because the prefix determines its length. Like its
// siblings, it returns the input it did not use, and whether its stage is complete.
func (c *connection) consumeHeader(input []byte) (rest []byte, whole bool, v *violation) {
	r := &c.receiver
	for {
		n := copy(r.header[r.have:r.need], input)
		r.have += n
		input = input[n:]
		if r.have < r.need {
			return input, false, nil
		}
		if r.need != prefixBytes {
			break
		}
		if r.prefix, v = parsePrefix(r.header[:]); v != nil {
			return input, false, v
		}
		r.need = int(headerBytes[r.prefix.op])
	}
	r.left, r.region, r.stage = r.prefix.payload(), nil, stagePayload
	if r.left >= r.bulkBytes {
		r.bulk = bulkFrames
	} else if r.bulk > 0 {
		r.bulk--
	}
	return input, true, c.beginSegment()
}

// beginSegment checks a segment once its header is complete, before any of its payload is placed,
// and determines where the payload goes.
func (c *connection) beginSegment() *violation {
	r := &c.receiver
	switch op := r.prefix.op; op {
	case opWrite, opReadResponse:
		h := parseTagged(r.prefix, r.header[:])
		if r.tagged.open && r.tagged.op != op {
			return violationOpcode
		}
		if op == opWrite {
			return c.beginWrite(h)
		}
		return c.beginReadResponse(h)
	case opReadRequest:
		return c.beginReadRequest()
	case opTerminate:
		if parseUntagged(r.prefix, r.header[:]).queue != queueTerminate {
			return violationQueue
		}
		return nil
	default:
		return c.beginSend(parseUntagged(r.prefix, r.header[:]))
	}
}

func (c *connection) beginWrite(h taggedHeader) *violation {
	r := &c.receiver
	if r.tagged.open {
		if h.stag != r.tagged.stag {
			return violationWriteSTag
		}
		if h.offset != r.tagged.offset {
			return violationWriteBounds
		}
	}
	// The STag of a zero-length Write is not checked (RFC 5041 section 5.2).
	region, refusal := c.Domain.Find(h.stag, h.offset, uint32(r.left), memory.RemoteWrite)
	if refusal != registration.Granted {
		return writeRefusals[refusal]
	}
	r.region, r.offset = region, h.offset
	r.tagged = taggedMessage{
		open: true, op: h.op, stag: h.stag, offset: h.offset + uint64(r.left),
	}
	return nil
}

// beginReadResponse accepts only the next segment of the response to the oldest Read.
func (c *connection) beginReadResponse(h taggedHeader) *violation {
	r := &c.receiver
	read := c.reads.oldest()
	if read == nil {
		return violationNoRead
	}
	if h.stag != read.stag {
		return violationResponseSTag
	}
	if !r.tagged.open {
		r.tagged = taggedMessage{open: true, op: h.op, stag: h.stag}
	}
	w := c.Sends.At(read.work)
	received := r.tagged.received + uint64(r.left)
	if h.offset != r.tagged.offset || received > uint64(w.Length) ||
		h.last != (received == uint64(w.Length)) {
		return violationResponseBounds
	}
	r.region, r.offset = w.Region, w.Local+h.offset
	r.tagged.offset, r.tagged.received = received, received
	return nil
}

func (c *connection) beginSend(h untaggedHeader) *violation {
	r := &c.receiver
	switch {
	case h.queue != queueSend:
		return violationQueue
	case h.op.hasInvalidate() && c.queue.device.Table.Lookup(h.invalidate) == nil:
		return violationInvalidSTag
	case h.op.hasInvalidate():
		// Only its owner may deregister memory, not the peer.
		return violationInvalidate
	case r.untagged.open && h.op != r.untagged.op:
		return violationOpcode
	case h.sequence != r.sendSequence:
		return violationSequence
	case h.offset != r.untagged.offset:
		return violationOffset
	case c.Receives.Head == c.Receives.Tail:
		return violationNoReceive
	}
	w := c.Receives.At(c.Receives.Head)
	if uint64(h.offset)+uint64(r.left) > uint64(w.Length) {
		return violationTooLong
	}
	r.region, r.offset = w.Region, w.Local+uint64(h.offset)
	r.untagged = untaggedMessage{open: true, op: h.op, offset: h.offset + uint32(r.left)}
	return nil
}

func (c *connection) beginReadRequest() *violation {
	r := &c.receiver
	h := parseUntagged(r.prefix, r.header[:])
	switch {
	case r.left != 0 || !h.last:
		return violationLength
	case h.queue != queueReadRequest:
		return violationQueue
	case h.sequence != r.readSequence:
		return violationSequence
	case h.offset != 0:
		return violationOffset
	case c.responses.Room() == 0:
		return violationReadCount
	}
	_, v := c.checkRead(parseReadRequest(r.header[:]))
	return v
}

// checkRead returns the memory that a Read Request by the peer refers to, nil if its length is 0.
func (c *connection) checkRead(request readRequest) (*registration.Region, *violation) {
	region, refusal := c.Domain.Find(
		request.sourceSTag, request.sourceOffset, request.length, memory.RemoteRead)
	return region, readRefusals[refusal]
}

// consumePayload places the payload, as far as it has arrived.
func (c *connection) consumePayload(input []byte) (rest []byte, whole bool, v *violation) {
	r := &c.receiver
	n := min(r.left, len(input))
	if n > 0 && r.region != nil {
		if !c.queue.regions.Acquire(r.region) {
			return input, false, r.revokedViolation()
		}
		if !r.region.CopyIn(r.offset, input[:n]) {
			return input, false, violationFault
		}
	}
	r.advance(n)
	if r.left > 0 {
		return input[n:], false, nil
	}
	r.have, r.need, r.stage = 0, padLength(r.prefix.ulpdu)+crcBytes, stageTrailer
	return input[n:], true, nil
}

// consumeTrailer skips the padding and the CRC field, and finishes the segment.
func (c *connection) consumeTrailer(input []byte) (rest []byte, whole bool, v *violation) {
	r := &c.receiver
	n := min(r.need-r.have, len(input))
	r.have += n
	input = input[n:]
	if r.have < r.need {
		return input, false, nil
	}
	if v := c.finishSegment(); v != nil {
		return input, false, v
	}
	r.have, r.need, r.stage = 0, prefixBytes, stageHeader
	return input, true, nil
}

// finishSegment acts on a segment that has arrived completely. Nothing completes before that.
func (c *connection) finishSegment() *violation {
	r := &c.receiver
	if c.transmitter.awaitingPeer {
		c.transmitter.awaitingPeer = false
		c.Schedule()
	}
	switch op := r.prefix.op; {
	case op == opTerminate:
		c.peerTerminated(parseTerminate(r.header[:]))
	case op == opReadRequest:
		return c.finishReadRequest()
	case !r.prefix.last:
	case op == opWrite:
		r.tagged = taggedMessage{}
	case op == opReadResponse:
		c.Sends.At(c.reads.oldest().work).Done = true
		c.reads.outstanding.Pop()
		c.Reads--
		r.tagged = taggedMessage{}
		c.completeSends()
	default:
		length := r.untagged.offset
		r.untagged = untaggedMessage{}
		r.sendSequence++
		c.CompleteReceive(c.Receives.At(c.Receives.Head), length, rdma.StatusSuccess)
	}
	return nil
}

// finishReadRequest queues the response to a Read Request by the peer.
func (c *connection) finishReadRequest() *violation {
	r := &c.receiver
	request := parseReadRequest(r.header[:])
	// Check again: the memory may have been deregistered before the trailer arrived.
	region, v := c.checkRead(request)
	if v != nil {
		return v
	}
	r.readSequence++
	*c.responses.Push() = readResponse{
		region: region, source: request.sourceOffset,
		sink: request.sinkOffset, stag: request.sinkSTag, length: request.length,
	}
	c.Schedule()
	return nil
}
