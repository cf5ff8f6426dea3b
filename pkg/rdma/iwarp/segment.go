package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// openSegment checks a segment whose header is complete, before a byte of its
// payload is placed, and finds out where the payload goes.
func (c *connection) openSegment() *violation {
	r := &c.receiver
	switch op := r.prefix.op; op {
	case opWrite, opReadResponse:
		h := parseTagged(r.prefix, r.header[:])
		if r.tagged.open && r.tagged.op != op {
			return violationOpcode
		}
		if op == opWrite {
			return c.openWrite(h)
		}
		return c.openReadResponse(h)
	case opReadRequest:
		return c.openReadRequest()
	case opTerminate:
		if parseUntagged(r.prefix, r.header[:]).queue != queueTerminate {
			return violationQueue
		}
		return nil
	default:
		return c.openSend(parseUntagged(r.prefix, r.header[:]))
	}
}

func (c *connection) openWrite(h taggedHeader) *violation {
	r := &c.receiver
	if r.tagged.open {
		if h.stag != r.tagged.stag {
			return violationWriteSTag
		}
		if h.offset != r.tagged.offset {
			return violationWriteBounds
		}
	}
	// A Write without bytes names no memory (RFC 5041 section 5.2).
	if r.left > 0 {
		region, v := c.checkWrite(h)
		if v != nil {
			return v
		}
		r.region, r.offset = region, h.offset
	}
	r.tagged = taggedMessage{open: true, op: h.op, stag: h.stag, offset: h.offset + uint64(r.left)}
	return nil
}

// checkWrite finds the memory that a Write of the peer goes to.
func (c *connection) checkWrite(h taggedHeader) (*memoryRegion, *violation) {
	length := uint64(c.receiver.left)
	region := c.queue.device.table.lookup(h.stag)
	switch {
	case region == nil:
		return nil, violationWriteSTag
	case region.domain != c.domain:
		return nil, violationWriteStream
	case !region.access.Has(memory.RemoteWrite):
		return nil, violationWriteRights
	case h.offset+length < h.offset:
		return nil, violationWriteWrap
	case !region.contains(h.offset, length):
		return nil, violationWriteBounds
	}
	return region, nil
}

// openReadResponse accepts only what continues the answer to the oldest Read.
func (c *connection) openReadResponse(h taggedHeader) *violation {
	r := &c.receiver
	read := c.reads.oldest()
	if read == nil {
		return violationNoReadPending
	}
	if h.stag != read.stag {
		return violationResponseSTag
	}
	if !r.tagged.open {
		r.tagged = taggedMessage{open: true, op: h.op, stag: h.stag}
	}
	w := c.sends.at(read.work)
	received := r.tagged.received + uint64(r.left)
	if h.offset != r.tagged.offset || received > uint64(w.length) || h.last != (received == uint64(w.length)) {
		return violationResponseBounds
	}
	r.region, r.offset = w.region, w.local+h.offset
	r.tagged.offset, r.tagged.received = received, received
	return nil
}

func (c *connection) openSend(h untaggedHeader) *violation {
	r := &c.receiver
	switch {
	case h.queue != queueSend:
		return violationQueue
	case h.op.invalidates() && c.queue.device.table.lookup(h.invalidate) == nil:
		return violationInvalidSTag
	case h.op.invalidates():
		// Registered memory is its owner's to deregister, not the peer's.
		return violationInvalidate
	case r.untagged.open && h.op != r.untagged.op:
		return violationOpcode
	case h.sequence != r.sendSequence:
		return violationSequence
	case h.offset != r.untagged.offset:
		return violationOffset
	case c.receives.head == c.receives.tail:
		return violationNoReceive
	}
	w := c.receives.at(c.receives.head)
	if uint64(h.offset)+uint64(r.left) > uint64(w.length) {
		return violationTooLong
	}
	r.region, r.offset = w.region, w.local+uint64(h.offset)
	r.untagged = untaggedMessage{open: true, op: h.op, offset: h.offset + uint32(r.left)}
	return nil
}

func (c *connection) openReadRequest() *violation {
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
	case c.responder.full():
		return violationReadCount
	}
	_, v := c.checkRead(parseReadRequest(r.header[:]))
	return v
}

// checkRead finds the memory that a Read of the peer asks for.
func (c *connection) checkRead(request readRequest) (*memoryRegion, *violation) {
	if request.length == 0 {
		return nil, nil
	}
	length := uint64(request.length)
	region := c.queue.device.table.lookup(request.sourceSTag)
	switch {
	case region == nil:
		return nil, violationReadSTag
	case region.domain != c.domain:
		return nil, violationReadStream
	case !region.access.Has(memory.RemoteRead):
		return nil, violationReadRights
	case request.sourceOffset+length < request.sourceOffset:
		return nil, violationReadWrap
	case !region.contains(request.sourceOffset, length):
		return nil, violationReadBounds
	}
	return region, nil
}

// closeSegment acts on a segment that has arrived as a whole, its CRC
// included. Only now does anything become visible as done.
func (c *connection) closeSegment() *violation {
	r := &c.receiver
	if c.transmitter.held {
		c.transmitter.held = false
		c.queue.list(c)
	}
	switch op := r.prefix.op; {
	case op == opTerminate:
		c.terminated(parseTerminate(r.header[:]))
	case op == opReadRequest:
		return c.finishReadRequest()
	case !r.prefix.last:
	case op == opWrite:
		r.tagged = taggedMessage{}
	case op == opReadResponse:
		c.finishRead()
	default:
		c.finishSend()
	}
	return nil
}

func (c *connection) finishSend() {
	r := &c.receiver
	w := c.receives.at(c.receives.head)
	length := r.untagged.offset
	r.untagged = untaggedMessage{}
	r.sendSequence++
	c.completeReceive(w, length, rdma.StatusSuccess)
}

// completeReceive takes the receive at the head off the receive queue.
func (c *connection) completeReceive(w *receiveWork, length uint32, outcome rdma.CompletionStatus) {
	c.receives.head++
	w.region = nil
	c.queue.completions.push(completionEntry{
		completion: rdma.Completion{ID: w.id, Context: c.context, Length: length, Opcode: rdma.OpReceive, Status: outcome},
		connection: c, slots: 1,
	})
}

func (c *connection) finishRead() {
	read := c.reads.oldest()
	c.sends.at(read.work).done = true
	c.reads.finish()
	c.receiver.tagged = taggedMessage{}
	c.retire()
}

func (c *connection) finishReadRequest() *violation {
	r := &c.receiver
	request := parseReadRequest(r.header[:])
	// Checked a second time: with the trailer outstanding, the memory may
	// have been deregistered in between.
	region, v := c.checkRead(request)
	if v != nil {
		return v
	}
	r.readSequence++
	*c.responder.at(c.responder.tail) = readResponse{
		region: region, source: request.sourceOffset,
		sink: request.sinkOffset, stag: request.sinkSTag, length: request.length,
	}
	c.responder.tail++
	c.queue.list(c)
	return nil
}
