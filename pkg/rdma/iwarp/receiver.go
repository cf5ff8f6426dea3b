package iwarp

import "encoding/binary"

// stage is what a receiver expects next in the stream.
type stage uint8

const (
	stageHeader stage = iota
	stagePayload
	stageTrailer
)

// receiver is the receiving half of a connection: a state machine that is fed
// the stream in pieces of any size.
type receiver struct {
	stage  stage
	have   int // bytes of the header, or of the trailer, that are here
	need   int // bytes until the next step
	left   int // bytes of the payload that are missing
	prefix prefix
	crc    uint32
	// region and offset are where the payload goes; nil discards it.
	region *memoryRegion
	offset uint64
	// large counts down the small FPDUs since the last one that was received
	// directly.
	large int

	tagged       taggedMessage
	untagged     untaggedMessage
	sendSequence uint32 // MSN expected of the next Send
	readSequence uint32 // MSN expected of the next Read Request

	header  [maxHeaderBytes]byte
	trailer [maxTrailer]byte
}

// taggedMessage is the Write or Read Response of which segments are missing.
type taggedMessage struct {
	open     bool
	op       opcode
	stag     uint32
	offset   uint64 // TO expected of the next segment
	received uint64 // bytes of it so far
}

// untaggedMessage is the Send of which segments are missing.
type untaggedMessage struct {
	open   bool
	op     opcode
	offset uint32 // MO expected of the next segment
}

func newReceiver(e established) receiver {
	r := receiver{need: prefixBytes, sendSequence: 1, readSequence: 1}
	if !e.initiator && e.rtr == rtrRead {
		r.readSequence++
	}
	return r
}

// ahead is how much to read when the next FPDU's size is not known.
func (r *receiver) ahead() int {
	if r.large > 0 {
		return aheadBytes
	}
	return stagingBytes
}

// atBoundary tells whether the stream may end here.
func (r *receiver) atBoundary() bool {
	return r.stage == stageHeader && r.have == 0 && !r.tagged.open && !r.untagged.open
}

// revokedViolation is what is wrong if the payload's memory was deregistered:
// the peer's STag, or something of our own.
func (r *receiver) revokedViolation() *violation {
	if r.prefix.op == opWrite {
		return violationWriteSTag
	}
	return violationRevoked
}

func (r *receiver) placed(n int) {
	r.left -= n
	r.offset += uint64(n)
}

// consume processes all of input, which lies in memory that nobody else can
// change. The connection may have ended when it returns.
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
		if v != nil || !whole || c.phase == phaseEnded {
			return v
		}
	}
}

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
	if c.useCRC {
		r.crc = updateCRC(0, r.header[:r.need])
	}
	if r.left >= directBytes && !c.useCRC {
		r.large = largeMemory
	} else if r.large > 0 {
		r.large--
	}
	return input, true, c.openSegment()
}

func (c *connection) consumePayload(input []byte) (rest []byte, whole bool, v *violation) {
	r := &c.receiver
	n := min(r.left, len(input))
	if n > 0 && r.region != nil {
		if v := c.place(input[:n]); v != nil {
			return input, false, v
		}
	}
	if c.useCRC {
		r.crc = updateCRC(r.crc, input[:n])
	}
	r.placed(n)
	if r.left > 0 {
		return input[n:], false, nil
	}
	r.have, r.need, r.stage = 0, padLength(r.prefix.ulpdu)+crcBytes, stageTrailer
	return input[n:], true, nil
}

// place copies received bytes to where they belong.
func (c *connection) place(input []byte) *violation {
	r := &c.receiver
	if !c.queue.holds.hold(r.region) {
		return r.revokedViolation()
	}
	if !r.region.copyIn(r.offset, input) {
		return violationFault
	}
	return nil
}

func (c *connection) consumeTrailer(input []byte) (rest []byte, whole bool, v *violation) {
	r := &c.receiver
	n := copy(r.trailer[r.have:r.need], input)
	r.have += n
	input = input[n:]
	if r.have < r.need {
		return input, false, nil
	}
	if c.useCRC {
		pad := r.need - crcBytes
		if updateCRC(r.crc, r.trailer[:pad]) != binary.LittleEndian.Uint32(r.trailer[pad:]) {
			return input, false, violationCRC
		}
	}
	if v := c.closeSegment(); v != nil {
		return input, false, v
	}
	r.have, r.need, r.stage = 0, prefixBytes, stageHeader
	return input, true, nil
}
