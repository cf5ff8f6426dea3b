// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"fmt"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// Bounds of a connection.
const (
	// maxRequests is the number of requests in progress. Beyond it the server reads no more, and
	// the client's socket fills up.
	maxRequests = 256
	// inputSize is the size of the buffer for headers and small writes, in bytes.
	inputSize = 32 << 10
	// mixedInput is how much of it is used while there are large writes among other requests: the
	// data of a large write should not go through the buffer.
	mixedInput = 4 << 10
	// smallWrite is the longest write that goes through that buffer, in bytes: copying the data of
	// several costs less than a system call for each.
	smallWrite = 8 << 10
	// receivesPerTurn bounds what one connection may do before the others get their turn.
	receivesPerTurn = 16
	// maxRejected is the longest write that is read and thrown away to reject it, in bytes. A
	// longer one ends the connection.
	maxRejected = 2 * MaxPayload
)

// connection is a client in the transmission phase (section "Transmission"). The worker's thread
// owns it.
type connection struct {
	agreement
	worker  *worker
	socket  socket
	slot    int32 // in the worker's poller
	client  string
	counted []*counterSet // that include the counters
	carrier syscall.Conn  // of the TLS whose plain text is at the socket; nil without TLS
	session blockio.Session
	left    func()        // called when the connection has ended
	gone    chan struct{} // closed then

	counters   counters
	input      [inputSize]byte
	inputStart int // what has been received and not used
	inputEnd   int
	headerSize int      // of requests
	discard    uint64   // bytes of a rejected write that are still to come
	rejected   *request // that write, which is answered then
	lastWrites bool     // the last request was a write, so the next one probably is, too
	largeWrite bool     // the last write was longer than smallWrite
	table      []request
	free       []uint32
	current    *request           // some of whose range has not been claimed
	filling    *blockio.Operation // of current: its data is being received
	filled     uint64             // bytes of filling's data that have been received

	replies   []reply // from firstReply on, in order
	nextReply int
	sent      int // bytes of the first reply that have been sent

	isReady  bool // in the worker's list
	inParts  bool // a simple reply is sent in parts: no other may come between them
	blocked  bool // waits for a free request or room in the session
	draining bool // takes no more requests than have been received
	closed   bool
	reading  bool // what the poller watches
	writing  bool
}

// request is a request of the client in progress.
type request struct {
	header
	index   uint32
	claimed uint64 // bytes of the range that operations cover
	pending int    // operations that have not completed
	failure blockio.Errno
	// collect keeps the data of a read until all of it can be sent as one piece: that of a simple
	// reply, which cannot report an error later, or of a chunk that must not be fragmented.
	collect     bool
	first, last *blockio.Operation // completed or not, in order, if collect is set
	headerSent  bool               // of a simple reply that is sent in several parts
	done        bool               // the last reply is queued
}

// newConnection returns a connection that negotiates.
func newConnection(w *worker, e *export) *connection {
	c := &connection{agreement: agreement{export: e}, worker: w, gone: make(chan struct{}),
		headerSize: requestSize, reading: true, table: make([]request, maxRequests),
		free: make([]uint32, maxRequests)}
	for i := range c.free {
		c.free[i] = uint32(maxRequests - 1 - i)
	}
	return c
}

// start begins the transmission with what the negotiation has agreed.
func (c *connection) start(agreed *agreement, s socket, client string) {
	c.agreement, c.socket, c.client = *agreed, s, client
	c.counters.client, c.counters.since = client, time.Now()
	if c.extended {
		c.headerSize = extendedRequestSize
	}
}

// serve handles what the poller reports.
func (c *connection) serve(event *event) {
	switch {
	case lost(event):
		c.vanish()
		return
	case readable(event):
		c.receive()
	}
	if writable(event) || c.hasReplies() {
		c.wake()
	}
}

// wake makes the worker call advance in this turn.
func (c *connection) wake() {
	if !c.isReady {
		c.isReady = true
		c.worker.ready = append(c.worker.ready, c)
	}
}

// advance sends replies, and goes on with requests that waited for room.
func (c *connection) advance() {
	if c.closed {
		return
	}
	c.send()
	if c.blocked && !c.closed {
		c.blocked = !c.process()
	}
	if !c.closed {
		c.finishDraining()
		c.watch()
	}
}

// watch makes the poller report what the connection waits for.
func (c *connection) watch() {
	reading, writing := !c.blocked && c.wantsInput(), c.hasReplies()
	if c.closed || (reading == c.reading && writing == c.writing) {
		return
	}
	c.reading, c.writing = reading, writing
	if err := c.worker.poller.watch(c.socket, c.slot, reading, writing); err != nil {
		c.close(err.Error())
	}
}

// wantsInput reports whether anything more is to be received: new requests, or the rest of one.
func (c *connection) wantsInput() bool {
	return !c.draining || c.filling != nil || c.discard > 0
}

// receive reads from the socket and handles what has arrived.
func (c *connection) receive() {
	for range receivesPerTurn {
		if c.closed || !c.wantsInput() {
			return
		}
		target, tail := c.space()
		n, err := c.socket.receive(target, tail)
		switch {
		case errAgain(err):
			return
		case err != 0:
			c.close(fmt.Sprintf("receive: %v", err))
			return
		case n == 0:
			c.endOfInput()
			return
		}
		c.accept(n, len(target))
		if !c.process() {
			c.blocked = true // until there is room
			c.watch()
			return
		}
		if n < len(target)+len(tail) {
			return // nothing is left: whatever arrives later makes the socket ready again
		}
	}
}

// space returns where to receive: first into the data of a write, then into the input.
func (c *connection) space() (target, tail []byte) {
	if c.inputStart == c.inputEnd {
		c.inputStart, c.inputEnd = 0, 0
	} else if len(c.input)-c.inputEnd < c.headerSize {
		c.inputEnd = copy(c.input[:], c.input[c.inputStart:c.inputEnd])
		c.inputStart = 0
	}
	tail = c.input[c.inputEnd:]
	switch {
	case c.draining:
		// What follows stays in the socket. Without filling, there is something to discard.
		tail = tail[:min(uint64(len(tail)), c.discard)]
	case c.discard > 0:
	case c.largeWrite && c.lastWrites:
		// Leave the data of the next one in the socket, from where it goes straight to its place.
		tail = tail[:c.headerSize-(c.inputEnd-c.inputStart)%c.headerSize]
	case c.largeWrite:
		tail = tail[:min(len(tail), mixedInput)]
	}
	if c.filling != nil {
		return c.filling.Data[c.filled:], tail
	}
	return tail, nil
}

// accept notes that n bytes have been received, into a target of the given length and behind it.
func (c *connection) accept(n, target int) {
	if c.filling != nil {
		direct := min(n, target)
		c.filled += uint64(direct)
		n -= direct
	}
	c.inputEnd += n
}

// endOfInput handles the end of what the client sends, without a request to disconnect. What is in
// progress has lost its client: nothing more of it may happen.
func (c *connection) endOfInput() {
	switch {
	case c.hasPart():
		c.close("the client closed the connection within a request")
	case !c.isIdle():
		c.close("the client closed the connection with requests in progress")
	default:
		c.close("")
	}
}

// hasPart reports whether a part of a request has been received, but not all of it.
func (c *connection) hasPart() bool {
	return c.current != nil || c.inputStart != c.inputEnd || c.discard > 0
}

// isIdle reports whether no request is in progress.
func (c *connection) isIdle() bool { return len(c.free) == maxRequests }

// vanish handles the loss of the connection. Requests that have arrived and were not read are
// nobody's any more, but a client may request to disconnect and then not wait for the server.
func (c *connection) vanish() {
	if c.isIdle() && !c.hasPart() && !c.draining {
		n, err := c.socket.receive(c.input[:], nil)
		if n == c.headerSize {
			if h := decodeHeader(c.input[:], c.extended); h.kind == Disconnect {
				n = 0
			}
		}
		if err == 0 && n == 0 {
			c.close("")
			return
		}
	}
	c.close("the connection was lost")
}

// isLeaving reports whether the client will send nothing more. If the connection is lost, isLeaving
// ends it instead.
func (c *connection) isLeaving() bool {
	isHalf, isLost := c.socket.peerState()
	if c.carrier != nil && !isLost {
		// The plain text may be stuck behind requests that wait.
		isHalf, isLost = peerStateOf(c.carrier)
	}
	if isLost {
		c.vanish()
		return false
	}
	return c.draining || isHalf
}

// process handles what is in the input. It returns false if it has to wait for a free request or
// for room in the session.
func (c *connection) process() bool {
	for !c.closed {
		switch {
		case c.discard > 0:
			n := min(uint64(c.inputEnd-c.inputStart), c.discard)
			c.inputStart += int(n)
			if c.discard -= n; c.discard > 0 {
				return true
			}
			c.fail(c.rejected, c.rejected.failure)
		case c.current != nil:
			if goOn, ok := c.extend(); !ok || !goOn {
				return ok
			}
		case c.inputEnd-c.inputStart < c.headerSize:
			return true
		case len(c.free) == 0 || c.inParts:
			return false
		default:
			h := decodeHeader(c.input[c.inputStart:], c.extended)
			c.inputStart += c.headerSize
			c.begin(&h)
		}
	}
	return true
}

// begin starts a request whose header has arrived.
func (c *connection) begin(h *header) {
	magic := magicRequest
	if c.extended {
		magic = magicExtendedRequest
	}
	if h.magic != magic {
		c.close(fmt.Sprintf("request magic is %#x", h.magic))
		return
	}
	if c.lastWrites = h.kind == blockio.Write; c.lastWrites {
		c.largeWrite = h.length > smallWrite
	}
	if h.kind == Disconnect {
		c.inputStart = c.inputEnd // the client may not send anything else
		c.drain()
		return
	}
	failure, fatal := c.check(h)
	if fatal != "" {
		c.close(fatal)
		return
	}
	index := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.counters.Begin()
	r := &c.table[index]
	*r = request{header: *h, index: index}
	r.collect = h.kind == blockio.Read && (!c.structured || h.flags&dontFragment != 0)
	if failure != blockio.Success {
		if h.kind == blockio.Write && h.length > 0 {
			// A client may not expect an answer before it has sent everything.
			c.discard, c.rejected, r.failure = h.length, r, failure
			return
		}
		c.fail(r, failure)
		return
	}
	switch {
	case h.kind == blockio.BlockStatus && !c.info.CanReportExtents:
		c.replyBlockStatus(r, []blockio.Extent{{Length: r.length}})
	case h.length == 0 && h.kind != blockio.Flush:
		// The specification leaves requests without a range open.
		c.finish(r)
	default:
		c.current = r
	}
}

// check checks the request against the specification and the export. A fatal violation ends the
// connection, because the server cannot tell where the next request begins.
func (c *connection) check(h *header) (failure blockio.Errno, fatal string) {
	if h.kind == blockio.Write && h.length > maxRejected {
		return blockio.Invalid, fmt.Sprintf("a write of %d bytes exceeds the maximum of %d", h.length,
			MaxPayload)
	}
	if c.extended {
		// Section "Command flags": in the extended form this flag says that there is a payload.
		if hasPayload := h.flags&payloadLength != 0; hasPayload != (h.kind == blockio.Write) {
			return blockio.Invalid, fmt.Sprintf("%v with flags %#x: the payload length is unknown", h.kind,
				uint16(h.flags))
		}
	} else if h.flags&payloadLength != 0 {
		return blockio.Invalid, ""
	}
	if h.kind >= blockio.CommandCount || h.flags&^allowedFlags[h.kind] != 0 {
		return blockio.Invalid, ""
	}
	changes := h.kind == blockio.Write || h.kind == blockio.Trim || h.kind == blockio.WriteZeroes
	switch {
	case changes && c.info.ReadOnly:
		return blockio.NotPermitted, ""
	case h.kind == blockio.Trim && !c.info.CanTrim,
		h.kind == blockio.WriteZeroes && !c.info.CanWriteZeroes,
		h.kind == blockio.BlockStatus && !c.context, h.kind.MovesData() && h.length > MaxPayload:
		return blockio.Invalid, ""
	case h.kind == blockio.BlockStatus && h.length == 0:
		return blockio.Invalid, ""
	case h.kind == blockio.Flush:
		h.offset, h.length = 0, 0 // reserved
	case h.length > c.info.Size || h.offset > c.info.Size-h.length:
		if h.kind == blockio.Write || h.kind == blockio.WriteZeroes {
			return blockio.NoSpace, ""
		}
		return blockio.Invalid, ""
	}
	return blockio.Success, ""
}

// extend claims operations for the current request, and receives the data of a write. It returns
// false for goOn if it needs more input, and for ok if it needs room.
func (c *connection) extend() (goOn, ok bool) {
	r := c.current
	for c.current == r && !c.closed {
		if c.filling == nil {
			op := c.session.Claim(r.kind, r.flags&sessionFlags, r.offset+r.claimed,
				r.length-r.claimed)
			if op == nil {
				ended := !c.waitForRoom(r) // then go on with the next request
				return ended, ended
			}
			op.Request, op.Next = r.index, nil
			if r.kind == blockio.Write {
				c.filling, c.filled = op, 0
			} else {
				c.submit(r, op)
				continue
			}
		}
		n := copy(c.filling.Data[c.filled:], c.input[c.inputStart:c.inputEnd])
		c.inputStart += n
		if c.filled += uint64(n); c.filled < c.filling.Length {
			return false, true
		}
		op := c.filling
		c.filling = nil
		c.submit(r, op)
	}
	return true, true
}

// submit starts an operation of the current request.
func (c *connection) submit(r *request, op *blockio.Operation) {
	r.claimed += op.Length
	r.pending++
	if r.collect {
		if r.first == nil {
			r.first = op
		} else {
			r.last.Next = op
		}
		r.last = op
	}
	if r.claimed == r.length {
		c.current = nil
	}
	c.session.Submit(op)
}

// waitForRoom is called when there is no room for the rest of the current request. It returns false
// if the request has ended instead.
func (c *connection) waitForRoom(r *request) bool {
	if r.pending > 0 || r.first == nil || (!c.structured && len(c.free) < maxRequests-1) {
		// What is in progress will make room. A simple reply in several parts has to wait until
		// there is no other reply that could come between them.
		return true
	}
	// The request itself fills the session.
	switch {
	case r.failure != blockio.Success && !r.headerSent, c.structured:
		failure := r.failure
		if failure == blockio.Success {
			failure = blockio.Overflow // it cannot be sent without fragmentation
		}
		r.claimed, c.current = r.length, nil
		c.releaseCollected(r)
		c.fail(r, failure)
		return false
	case r.failure != blockio.Success:
		c.close("an error after the header of a simple reply was sent")
		return false
	}
	c.replyPart(r)
	return true
}

// Completed handles the outcome of an operation (Handler).
func (c *connection) Completed(op *blockio.Operation) {
	r := &c.table[op.Request]
	r.pending--
	if op.Error != blockio.Success && r.failure == blockio.Success {
		r.failure = op.Error
	}
	complete := r.pending == 0 && r.claimed == r.length && c.current != r
	switch {
	case r.collect:
	case r.kind == blockio.Read && op.Error == blockio.Success:
		c.replyData(r, op, complete && r.failure == blockio.Success)
	case r.kind == blockio.BlockStatus && op.Error == blockio.Success:
		c.replyBlockStatus(r, op.Extents)
		c.session.Release(op)
	default:
		c.session.Release(op)
	}
	if complete && !r.done {
		c.complete(r)
	}
	c.wake()
}

// MadeRoom goes on with a request that waits for room (Handler).
func (c *connection) MadeRoom() {
	if c.blocked {
		c.wake()
	}
}

// complete answers a request all of whose operations have completed.
func (c *connection) complete(r *request) {
	switch {
	case r.collect && r.failure == blockio.Success:
		c.replyPart(r)
	case r.collect && r.headerSent:
		c.close("an error after the header of a simple reply was sent")
	case r.failure != blockio.Success:
		c.releaseCollected(r)
		c.fail(r, r.failure)
	default:
		c.finish(r)
	}
}

func (c *connection) releaseCollected(r *request) {
	for op := r.first; op != nil; {
		next := op.Next
		c.session.Release(op)
		op = next
	}
	r.first, r.last = nil, nil
}

// release frees a request whose last reply has been sent.
func (c *connection) release(r *request) {
	c.counters.End()
	c.free = append(c.free, r.index)
}

// drain makes the connection end after the requests that have been received.
func (c *connection) drain() {
	c.draining = true
	c.wake()
}

// finishDraining closes a connection that drains and has nothing left to do.
func (c *connection) finishDraining() {
	switch {
	case !c.draining || c.closed:
	case c.current == nil && c.isIdle():
		c.close("")
	case c.isStarved():
		c.close("the export ends without room for the client's request")
	}
}

// isStarved reports whether a request waits for room that nothing in progress will make.
func (c *connection) isStarved() bool {
	return c.blocked && c.current != nil && c.current.pending == 0 &&
		len(c.free) == maxRequests-1 && !c.hasReplies()
}

// close ends the connection at once. A reason means that the end is not regular.
func (c *connection) close(reason string) {
	if c.closed {
		return
	}
	c.closed = true
	c.worker.poller.remove(c.socket)
	if reason == "" {
		c.socket.closeGently()
	} else {
		c.socket.close()
	}
	c.session.Close()
	for _, set := range c.counted {
		set.retire(&c.counters)
	}
	c.left()
	close(c.gone)
	c.worker.slots[c.slot] = nil
	c.worker.connections.Add(-1)
	c.worker.checkEmpty()
	log := c.worker.log.With(zap.String("client", c.client), zap.String("export", c.export.name))
	if reason == "" {
		log.Info("NBD client disconnected")
	} else {
		log.Warn("NBD client disconnected", zap.String("reason", reason))
	}
}
