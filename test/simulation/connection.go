// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

// connection is an NBD client with one connection to a gateway. The scheduler calls turn.
type connection struct {
	gateway    *nbdGateway
	process    *process // that it is connected to
	number     int
	name       string // as the gateway logs it
	visitor    *visitor
	descriptor int
	structured bool // asks for structured replies
	phase      phase
	input      []byte
	output     []byte
	idle       bool
	asksAt     time.Time // when it asks for the export again

	outstanding map[uint64]*nbdRequest
	cookie      uint64
	left        int // requests still to make, besides those of an heir
	heir        bool
	recovered   int // blocks that an heir has begun to read, and to write
	renewed     int
	flushed     bool
	// flushesFirst is set if the next request is a flush, which no GO has protected from orphans.
	flushesFirst bool

	// Times by the clock of the history, or 0.
	asked, begun, ended uint64
	askedAt             time.Time
	heirIsThere         bool // the heir is a connection that exists, rather than a new one
	hasHeir             bool
}

// phase is how far a connection is.
type phase int

const (
	greeted     phase = iota // waits for the server's greeting
	negotiating              // waits for the answers to its options
	refused                  // asks again later
	transmitting
	halfClosed // has ended, and only waits for the gateway to see that
	leaving    // has said that it leaves, and waits for answers
	over
)

// manner is how a client ends its connection.
type manner int

const (
	vanishes   manner = iota // it is killed
	halfCloses               // the server sees an end, and may read what was sent before
	leaves                   // it says so, and waits for the answers to its requests
)

var manners = []manner{vanishes, halfCloses, vanishes, leaves}

// Numbers of the protocol. The client has its own idea of them.
const (
	optionGo         = 7
	optionStructured = 8
	greetingBytes    = 18
	answerBytes      = 20
	answerAck        = 1
	answerErrors     = 1 << 31
	simpleBytes      = 16
	simpleMagic      = 0x67446698
	chunkBytes       = 20
	chunkMagic       = 0x668e33ef
	chunkOffsetData  = 1
	chunkError       = 1<<15 + 1
	chunkDone        = 1
	requestMagic     = 0x25609513
)

// connect adds a connection, which is the heir of another one unless that is nil.
func (g *nbdGateway) connect(former *connection) {
	w := g.world
	c := &connection{gateway: g, process: g.process, number: len(g.connections) + 1,
		outstanding: make(map[uint64]*nbdRequest), left: w.plan.Requests}
	c.name = fmt.Sprintf("client%d", c.number)
	c.descriptor, c.visitor = g.entrance.connect(c.name)
	c.structured = w.random.IntN(2) == 0
	if former != nil || g.runs > 1 {
		c.heir = true
	}
	g.connections = append(g.connections, c)
	w.trace("%s connects", c.name)
}

// takeOver makes a connection the heir of another one.
func (c *connection) takeOver() {
	c.heir, c.recovered, c.renewed, c.flushed, c.flushesFirst = true, 0, 0, false, true
}

// isOver reports whether nobody uses the connection any more.
func (c *connection) isOver() bool { return c.ended != 0 }

// hasTakenOver reports whether the connection, if it is an heir, has done what heirs do first.
func (c *connection) hasTakenOver() bool {
	return !c.heir || c.renewed == gatewayBlocks && c.flushed
}

func (c *connection) isFinished() bool {
	return c.phase == transmitting && len(c.outstanding) == 0 && c.left == 0 && c.hasTakenOver()
}

// mayTurn reports whether a turn could do something.
func (c *connection) mayTurn() bool {
	return !c.idle && c.phase != over && !c.process.dead && !c.process.frozen
}

// turn receives answers, and sends requests. It returns how much it did.
func (c *connection) turn() int {
	done := c.receive()
	for c.understand() {
		done++
	}
	switch {
	case c.phase == refused && !time.Now().Before(c.asksAt):
		c.ask()
	case c.phase == transmitting:
		for range c.gateway.world.random.IntN(8) {
			if !c.request() {
				break
			}
		}
	}
	if c.left == 0 && c.phase == transmitting && c.gateway.expectsFaults() {
		c.left = 10 // so that every fault meets requests
	}
	return done + c.send()
}

func (c *connection) receive() int {
	if c.phase == over {
		return 0
	}
	var b [16 << 10]byte
	n, isOver := tryReceive(c.descriptor, b[:])
	c.input = append(c.input, b[:n]...)
	if !isOver {
		return n
	}
	w := c.gateway.world
	switch {
	case c.phase == transmitting:
		if !w.ending {
			w.violate("the gateway has ended the connection of %s, with %d requests in progress",
				c.name, len(c.outstanding))
		}
	case c.phase != halfClosed:
		// If it leaves, an heir has waited for too long.
		w.trace("%s is turned away, with %d requests in progress", c.name, len(c.outstanding))
	}
	c.vanish()
	return 1
}

func (c *connection) send() int {
	if c.phase == over || c.phase == halfClosed {
		return 0
	}
	n, gone := trySend(c.descriptor, c.output)
	c.output = c.output[n:]
	if gone {
		return n // what the gateway has sent before it ended the connection is still there
	}
	if n > 0 {
		c.visitor.wake()
	}
	return n
}

// end ends the connection.
func (c *connection) end(m manner) {
	w := c.gateway.world
	w.trace("%s ends, manner %d, with %d requests in flight", c.name, m, len(c.outstanding))
	switch {
	case c.phase != transmitting || m == vanishes:
		c.vanish()
	case m == halfCloses:
		c.ended = c.gateway.history.now()
		c.phase = halfClosed
		endWriting(c.descriptor)
		c.visitor.wake()
	case m == leaves:
		c.phase = leaving
		c.left = 0
		c.output = append(c.output, encodeRequest(&nbdRequest{command: nbd.Disconnect})...)
		c.send()
	}
}

// vanish closes the connection at once.
func (c *connection) vanish() {
	if c.ended == 0 {
		c.ended = c.gateway.history.now()
	}
	c.phase = over
	closeDescriptor(c.descriptor)
	c.descriptor = -1
	c.visitor.wake()
}

// ask asks for the export.
func (c *connection) ask() {
	if c.structured {
		c.output = append(c.output, encodeOption(optionStructured, nil)...)
	}
	data := binary.BigEndian.AppendUint32(nil, uint32(len(exportName)))
	data = append(append(data, exportName...), 0, 0)
	c.output = append(c.output, encodeOption(optionGo, data)...)
	c.phase, c.asked, c.askedAt = negotiating, c.gateway.history.now(), time.Now()
	c.gateway.world.trace("%s asks for the export", c.name)
}

func encodeOption(option uint32, data []byte) []byte {
	b := append([]byte(nil), "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// take removes the first n bytes of the input. It returns nil if there are fewer.
func (c *connection) take(n int) []byte {
	if len(c.input) < n {
		return nil
	}
	taken := c.input[:n:n]
	c.input = c.input[n:]
	return taken
}

// understand handles the next part of what the server has sent. It returns false if it is not
// complete.
func (c *connection) understand() bool {
	switch c.phase {
	case greeted:
		if c.take(greetingBytes) == nil {
			return false
		}
		c.output = binary.BigEndian.AppendUint32(c.output, 3)
		c.ask()
		return true
	case negotiating:
		return c.understandAnswer()
	case transmitting, leaving:
		if len(c.input) < 4 {
			return false
		}
		switch magic := binary.BigEndian.Uint32(c.input); magic {
		case simpleMagic:
			return c.understandSimple()
		case chunkMagic:
			return c.understandChunk()
		default:
			c.gateway.world.violate("%s receives a reply with magic %#x", c.name, magic)
		}
	}
	return false
}

func (c *connection) understandAnswer() bool {
	if len(c.input) < answerBytes {
		return false
	}
	option := binary.BigEndian.Uint32(c.input[8:])
	kind := binary.BigEndian.Uint32(c.input[12:])
	answer := c.take(answerBytes + int(binary.BigEndian.Uint32(c.input[16:])))
	if answer == nil {
		return false
	}
	w := c.gateway.world
	switch {
	case option != optionGo:
	case kind == answerAck:
		c.phase, c.begun = transmitting, c.gateway.history.now()
		w.trace("%s is let in", c.name)
	case kind >= answerErrors:
		reason := string(answer[answerBytes:])
		w.trace("%s is refused: %s", c.name, reason)
		c.phase, c.asksAt = refused, time.Now().Add(100*time.Millisecond)
		// A client that has waited for another one to leave has less time left.
		if strings.Contains(reason, "could overwrite what comes now") &&
			c.askedAt.After(c.gateway.quietFrom) &&
			c.gateway.noticedAt.Before(c.askedAt.Add(orphanPatience/2)) {
			w.violate("%s is refused although nothing has gone wrong for long: %s", c.name, reason)
		}
	}
	return true
}

// answered handles the end of the reply to a request.
func (c *connection) answered(r *nbdRequest) {
	delete(c.outstanding, r.cookie)
	if tracing {
		c.gateway.world.trace("%s gets %v for %v", c.name, r.failure, r)
	}
	c.gateway.history.complete(r)
}

func (c *connection) find(cookie uint64) *nbdRequest {
	r := c.outstanding[cookie]
	if r == nil {
		c.gateway.world.violate("%s receives a reply to request %d, which is not outstanding",
			c.name, cookie)
	}
	return r
}

func (c *connection) understandSimple() bool {
	if len(c.input) < simpleBytes {
		return false
	}
	r := c.find(binary.BigEndian.Uint64(c.input[8:]))
	if r == nil {
		return false
	}
	failure, length := blockio.Errno(binary.BigEndian.Uint32(c.input[4:])), 0
	if r.command == blockio.Read && failure == blockio.Success {
		length = r.count * blockSize
	}
	reply := c.take(simpleBytes + length)
	if reply == nil {
		return false
	}
	copy(r.data, reply[simpleBytes:])
	r.failure = failure
	c.answered(r)
	return true
}

func (c *connection) understandChunk() bool {
	if len(c.input) < chunkBytes {
		return false
	}
	flags, kind := binary.BigEndian.Uint16(c.input[4:]), binary.BigEndian.Uint16(c.input[6:])
	r := c.find(binary.BigEndian.Uint64(c.input[8:]))
	if r == nil {
		return false
	}
	chunk := c.take(chunkBytes + int(binary.BigEndian.Uint32(c.input[16:])))
	if chunk == nil {
		return false
	}
	switch payload := chunk[chunkBytes:]; kind {
	case chunkOffsetData:
		offset := binary.BigEndian.Uint64(payload) - uint64(r.first)*blockSize
		if offset+uint64(len(payload)-8) > uint64(len(r.data)) {
			c.gateway.world.violate("%v returns %d bytes at %d", r, len(payload)-8, offset)
			return false
		}
		copy(r.data[offset:], payload[8:])
	case chunkError:
		r.failure = blockio.Errno(binary.BigEndian.Uint32(payload))
	}
	if flags&chunkDone != 0 {
		c.answered(r)
	}
	return true
}

// commandMix has each command as often as clients send it.
var commandMix = []blockio.Command{
	blockio.Read, blockio.Read, blockio.Read, blockio.Read, blockio.Write, blockio.Write,
	blockio.Write, blockio.Write, blockio.Write,
	blockio.Flush, blockio.Trim, blockio.WriteZeroes, blockio.Cache,
}

// longestNBDRequest is more than two buffers of the gateway, in blocks.
const longestNBDRequest = 20

// request sends another request, if the client has one.
func (c *connection) request() bool {
	w := c.gateway.world
	if len(c.outstanding) >= w.plan.InFlight || c.left == 0 && c.hasTakenOver() {
		return false
	}
	r := c.next(w.random)
	if r == nil {
		return false
	}
	c.cookie++
	r.connection, r.cookie = c, c.cookie
	c.outstanding[r.cookie] = r
	c.gateway.history.submit(r)
	if tracing {
		w.trace("%s sends %v", c.name, r)
	}
	c.output = append(c.output, encodeRequest(r)...)
	switch r.command {
	case blockio.Write:
		for i := range r.count {
			var block [blockSize]byte
			fill(block[:], r.stamp, r.first+i)
			c.output = append(c.output, block[:]...)
		}
	case blockio.Read:
		r.data = make([]byte, r.count*blockSize)
	}
	return true
}

// next returns what the client requests next. An heir reads all blocks, then writes all of them,
// and flushes once they are written.
func (c *connection) next(random *rand.Rand) *nbdRequest {
	r := &nbdRequest{count: 1 + random.IntN(longestNBDRequest)}
	if random.IntN(2) == 0 {
		r.count = 1 + random.IntN(3)
	}
	r.first = random.IntN(gatewayBlocks - r.count + 1)
	switch {
	case c.flushesFirst:
		r.command, c.flushesFirst = blockio.Flush, false
	case c.hasTakenOver():
		r.command = commandMix[random.IntN(len(commandMix))]
		if r.command != blockio.Read && r.command != blockio.Cache && random.IntN(5) == 0 {
			r.flags = blockio.FUA
		}
		c.left--
	case c.recovered < gatewayBlocks:
		r.command, r.first = blockio.Read, c.recovered
		r.count = min(r.count, gatewayBlocks-r.first)
		c.recovered += r.count
	case c.renewed < gatewayBlocks:
		r.command, r.first = blockio.Write, c.renewed
		r.count = min(r.count, gatewayBlocks-r.first)
		c.renewed += r.count
	case len(c.outstanding) > 0:
		return nil
	default:
		r.command, c.flushed = blockio.Flush, true
	}
	switch r.command {
	case blockio.Write:
		w := c.gateway.world
		w.stamp++
		r.stamp = w.stamp
	case blockio.Flush:
		r.first, r.count, r.flags = 0, 0, 0
	}
	return r
}

func encodeRequest(r *nbdRequest) []byte {
	b := binary.BigEndian.AppendUint32(nil, requestMagic)
	b = binary.BigEndian.AppendUint16(b, uint16(r.flags))
	b = binary.BigEndian.AppendUint16(b, uint16(r.command))
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(r.first)*blockSize)
	return binary.BigEndian.AppendUint32(b, uint32(r.count)*blockSize)
}
