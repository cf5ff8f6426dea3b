// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"math"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// longestRange is the most bytes that a request without data covers. It fits the 32-bit length of
// requests and is a multiple of every block size.
const longestRange = 1 << 30

// longestStatus is the most bytes that a request for extents describes, so that none takes long.
const longestStatus = 64 << 30

// extentsAtOnce is how many extents a request asks for at most, unless the client wants only one.
const extentsAtOnce = 256

// operation is an operation of a session. It takes one request to the volume, or several in a row:
//
//	read, flush, block status
//	                 one
//	write            one; before it one for each block of which only a part is written, which
//	                 reads the block
//	write zeroes     one for each 1 GiB of whole blocks, and a read and a write for each part of
//	                 a block
//	trim, cache      one for each 1 GiB, or buffer, of whole blocks
//
// The buffer of a read or write holds whole blocks, with Data in the middle. Behind them a write
// has scratch space for two blocks, if it needs any. That of a block status receives a table of
// extents.
type operation struct {
	blockio.Operation
	session *session
	request client.Request // current or next

	buffer, bufferSize uint64 // in the data memory; no buffer if the size is 0
	quarantined        bool

	start, end uint64 // the whole blocks that contain the range
	position   uint64 // write zeroes, trim, cache: what is before has been done
	stage      stage  // write: what was done last
	modifying  bool   // write zeroes: the block at position has been read

	state   state
	locked  rangelock.Range // for changes, from locking to the end
	granted func()          // goes on, on the disk's thread, once the range is locked
	sentIn  uint64          // the session of the volume that has got the request
	repeats retry.Repeats
	// isRepeated is set while the request waits to be sent again: until the session after sentIn
	// begins, it may still take effect.
	isRepeated bool
}

// state is how far an operation is.
type state uint8

const (
	free    state = iota
	claimed       // by the connection, before it is submitted or after it has completed
	locking       // waits for its range
	queued        // waits for room in the queue
	sent          // the queue has its request
	lost          // ended with its session: its request may take effect until the next one begins
)

// stage is what a write has done.
type stage uint8

const (
	nothing stage = iota
	headRead
	tailRead
	written
)

// prepare begins an operation with the part of the range that one buffer can take.
func (op *operation) prepare(s *session, command blockio.Command, flags blockio.CommandFlags,
	offset, length uint64) {
	info := &s.disk.export.info
	block, limit := uint64(info.BlockSize), uint64(info.BufferSize)
	op.session, op.repeats, op.isRepeated, op.quarantined = s, retry.Repeats{}, false, false
	op.Command, op.Flags, op.Offset, op.Length, op.Error = command, flags, offset, length,
		blockio.Success
	op.start, op.end = offset&^(block-1), (offset+length+block-1)&^(block-1)
	op.position, op.stage, op.modifying = offset, nothing, false
	op.bufferSize = 0
	switch command {
	case blockio.Read, blockio.Write:
		scratch := uint64(0)
		if command == blockio.Write && op.isPartial() {
			scratch = 2 * block
		}
		if op.end-op.start > limit-scratch {
			op.end = op.start + (limit - scratch)
			op.Length = op.end - offset
		}
		op.bufferSize = op.end - op.start + scratch
	case blockio.WriteZeroes:
		if op.isPartial() {
			op.bufferSize = block
		}
	case blockio.Trim: // only whole blocks
		op.position = (offset + block - 1) &^ (block - 1)
		op.end = max((offset+length)&^(block-1), op.position)
		op.start = op.position
	case blockio.Cache:
		op.position = op.start
		op.bufferSize = min(op.end-op.start, limit)
	case blockio.BlockStatus:
		op.bufferSize = min(extentsAtOnce*iomsg.ExtentSize, limit)
		if flags&blockio.RequestOne != 0 {
			op.bufferSize = iomsg.ExtentSize
		}
	}
}

// isPartial reports whether the range begins or ends within a block.
func (op *operation) isPartial() bool {
	return op.start != op.Offset || op.end != op.Offset+op.Length
}

// prepareRange prepares the range that the operation locks.
func (op *operation) prepareRange() {
	op.locked = rangelock.Range{Start: op.start, End: op.end, Granted: op.granted}
	switch op.Command {
	case blockio.Flush:
		op.locked.End = math.MaxUint64
		op.locked.IsRead = true
	case blockio.Read, blockio.Cache, blockio.BlockStatus:
		op.locked.IsRead = true
	}
}

// hasDonePart reports whether the operation is done with a part of its range, before position, for
// which others need not wait any more. A long trim may have thousands of parts.
func (op *operation) hasDonePart() bool {
	return (op.Command == blockio.Trim || op.Command == blockio.WriteZeroes) && !op.modifying &&
		op.position > op.locked.Start && op.position < op.locked.End
}

// setData sets Data to the operation's place in the current memory.
func (op *operation) setData() {
	if op.bufferSize > 0 && (op.Command == blockio.Read || op.Command == blockio.Write) {
		op.Data = op.bytes(op.Offset-op.start, op.Length)
	}
}

// bytes returns a part of the buffer.
func (op *operation) bytes(offset, length uint64) []byte {
	return op.session.disk.memory[op.buffer+offset:][:length:length]
}

// next sets the next request. It returns false if there is none.
func (op *operation) next() bool {
	op.request = client.Request{Type: requestTypes[op.Command], Flusher: op.session.user}
	if op.Flags&blockio.FUA != 0 && op.Command != blockio.Read && op.Command != blockio.Cache &&
		op.Command != blockio.Flush {
		op.request.Flags = client.FUA
	}
	if op.Command == blockio.WriteZeroes && op.Flags&blockio.NoHole == 0 {
		op.request.Flags |= client.Deallocate
	}
	switch op.Command {
	case blockio.Write:
		return op.nextOfWrite()
	case blockio.WriteZeroes:
		return op.nextOfZeroes()
	case blockio.Trim, blockio.Cache:
		return op.nextRange()
	}
	if op.stage == written {
		return false
	}
	op.stage = written
	switch op.Command {
	case blockio.Read:
		op.setRange(op.start, op.end-op.start, 0)
	case blockio.BlockStatus:
		op.setRange(op.start, op.bufferSize, 0)
		op.request.Range = min(op.end-op.start, longestStatus)
	}
	return true
}

// setRange sets the request's range of the volume, and where its data is in the buffer.
func (op *operation) setRange(offset, length, memory uint64) {
	op.request.Offset, op.request.Length = offset, uint32(length)
	op.request.Memory = op.buffer + memory
}

// nextOfWrite reads the first and the last block if only a part of them is written, and completes
// the data with what they hold. Then it writes whole blocks.
func (op *operation) nextOfWrite() bool {
	block := uint64(op.session.disk.export.info.BlockSize)
	span := op.end - op.start
	head, tail := op.Offset-op.start, op.end-op.Offset-op.Length // not written, of these blocks
	switch op.stage {
	case nothing:
		if head > 0 {
			op.stage = headRead
			op.readInto(op.start, block, span)
			return true
		}
		fallthrough
	case headRead:
		if op.stage == headRead {
			copy(op.bytes(0, head), op.bytes(span, head))
			if span == block {
				copy(op.bytes(span-tail, tail), op.bytes(span+block-tail, tail))
				tail = 0
			}
		}
		if tail > 0 {
			op.stage = tailRead
			op.readInto(op.end-block, block, span+block)
			return true
		}
	case tailRead:
		copy(op.bytes(span-tail, tail), op.bytes(span+2*block-tail, tail))
	case written:
		return false
	}
	op.stage = written
	op.setRange(op.start, span, 0)
	return true
}

// readInto makes the request read blocks into the buffer.
func (op *operation) readInto(offset, length, memory uint64) {
	op.request.Type, op.request.Flags = client.Read, 0
	op.setRange(offset, length, memory)
}

// nextOfZeroes clears whole blocks, and parts of blocks by changing them.
func (op *operation) nextOfZeroes() bool {
	block := uint64(op.session.disk.export.info.BlockSize)
	end := op.Offset + op.Length
	start := op.position &^ (block - 1)
	if op.modifying {
		stop := min(end, start+block)
		clear(op.bytes(op.position-start, stop-op.position))
		op.modifying = false
		op.position = stop
		op.request.Type = client.Write
		op.request.Flags &^= client.Deallocate
		op.setRange(start, block, 0)
		return true
	}
	if op.position >= end {
		return false
	}
	if whole := (end - op.position) &^ (block - 1); start == op.position && whole > 0 {
		n := min(whole, longestRange)
		op.setRange(start, n, 0)
		op.position += n
		return true
	}
	op.modifying = true
	op.readInto(start, block, 0)
	return true
}

// nextRange goes on with the next part of a trim, or of what is read to fill a cache.
func (op *operation) nextRange() bool {
	if op.position >= op.end {
		return false
	}
	n := min(op.end-op.position, longestRange)
	if op.Command == blockio.Cache {
		n = min(n, op.bufferSize)
	}
	op.setRange(op.position, n, 0)
	op.position += n
	return true
}

// takeExtents makes the table in the buffer the outcome of a block status, without what is in the
// first and the last block but not in the range.
func (op *operation) takeExtents() blockio.Errno {
	found, err := iomsg.DecodeExtents(nil, op.bytes(0, op.bufferSize), op.request.Range)
	if err != nil {
		return blockio.IOError // the target does not keep to the protocol
	}
	before, rest := op.Offset-op.start, op.Length
	for _, e := range found {
		skipped := min(before, e.Length)
		length := min(e.Length-skipped, rest)
		before, rest = before-skipped, rest-length
		if length > 0 {
			op.Extents = append(op.Extents,
				blockio.Extent{Length: length, Hole: e.IsHole()})
		}
	}
	if len(op.Extents) == 0 {
		return blockio.IOError
	}
	return blockio.Success
}
