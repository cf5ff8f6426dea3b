// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// On a connection with CRCs, the state machine of receive.go sees only whole FPDUs whose CRC is
// correct. So nothing that the network has damaged places a byte, advances a message, or starts a
// Read. An FPDU that arrives whole is checked where it is, in the queue's staging buffer. One that
// arrives in parts is collected in memory of the connection, and the kernel writes the rest of a
// large one straight there. Payloads are copied to their destination afterwards, from memory that
// nobody else can change.

// verifiedBulkBytes is the smallest payload that makes a stream with CRCs count as one of large
// FPDUs. Several smaller FPDUs fit into staging, where one system call delivers them whole, and
// only the last of them may have to be collected.
const verifiedBulkBytes = stagingBytes / 2

// consumeVerified cuts input into FPDUs, and consumes each of them after checking its CRC.
func (c *connection) consumeVerified(input []byte) *violation {
	p := &c.receiver.partial
	for c.Phase == softrdma.PhaseOpen {
		var frame []byte
		if p.have == 0 && len(input) >= lengthBytes && len(input) >= fpduBytes(input) {
			n := fpduBytes(input)
			frame, input = input[:n], input[n:]
		} else if frame, input = p.collect(input); frame == nil {
			return nil
		}
		if !validCRC(frame) {
			return violationCRC
		}
		if v := c.consume(frame); v != nil {
			return v
		}
	}
	return nil
}

// receivePartial has the kernel write the rest of the partial FPDU to its buffer, and the input
// that follows it to staging.
func (c *connection) receivePartial(staging []byte) (n, wanted int, err errno) {
	p := &c.receiver.partial
	target := p.bytes[p.have:p.need]
	if n, err = c.socket.receiveInto(target, staging); n > 0 {
		c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, n)
		collected := min(n, len(target))
		p.have += collected
		c.process(staging[:n-collected])
	}
	return n, len(target) + len(staging), err
}

// partialFrame collects an FPDU that arrives in parts.
type partialFrame struct {
	bytes []byte // has room for the largest FPDU
	have  int    // bytes that have arrived
	need  int    // length of the FPDU, or lengthBytes while that is unknown
}

func newPartialFrame() partialFrame {
	return partialFrame{bytes: make([]byte, maxFPDUBytes), need: lengthBytes}
}

// missing returns how many bytes collect needs for its next step.
func (p *partialFrame) missing() int { return p.need - p.have }

// collect adds input to the FPDU. It returns the FPDU once it is whole, valid until the next call,
// and the input that follows it.
func (p *partialFrame) collect(input []byte) (frame, rest []byte) {
	for {
		n := copy(p.bytes[p.have:p.need], input)
		p.have += n
		input = input[n:]
		if p.have < p.need {
			return nil, nil
		}
		if p.need != lengthBytes {
			break
		}
		p.need = fpduBytes(p.bytes)
	}
	frame = p.bytes[:p.need]
	p.have, p.need = 0, lengthBytes
	return frame, input
}
