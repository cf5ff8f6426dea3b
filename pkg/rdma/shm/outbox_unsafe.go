// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// Sizes in bytes.
const (
	// ringBytes is the size of a ring: enough for the messages of thousands of requests, little
	// enough to stay in a core's cache with its neighbours.
	ringBytes = 128 << 10
	// headerBytes is where the ring begins.
	headerBytes = 512
	outboxBytes = headerBytes + ringBytes
	// recordBytes is the size of a record without its payload. Records start at multiples of it.
	recordBytes = 32
	// maxInline is the largest payload of one record. A longer transfer takes several, so that the
	// receiver can begin while the sender still copies.
	maxInline = 16 << 10
	// maxLentPiece is the most that one record makes the receiver copy from or to lent memory.
	maxLentPiece = 128 << 10
)

// outboxHeader is the beginning of an outbox. Its writer's peer reads each part at a different
// rate, so the parts lie in different pairs of cache lines.
type outboxHeader struct {
	// tail counts the bytes of records that have been written to the ring.
	tail atomic.Uint64
	// ended is not 0 once the writer has ended the connection: an ending.
	ended atomic.Uint64
	_     [112]byte
	// consumed counts the bytes of the peer's ring that the writer needs no longer.
	consumed atomic.Uint64
	_        [120]byte
	// sleep is odd while the writer sleeps and wants to be woken: it counts the beginnings and ends
	// of its sleeps, so that the peer wakes it once per sleep.
	sleep atomic.Uint64
	_     [headerBytes - 264]byte
}

// ending says how the writer of an outbox has ended the connection.
type ending uint64

const (
	endingNone     ending = iota
	endingOrderly         // Close
	endingAborted         // Abort
	endingProtocol        // the peer violated the protocol of this package
	endingAccess          // the peer may not access the memory that it named
	endingReceive         // no receive was posted, or it was too small
	endingMemory          // memory was taken away by its owner, or deregistered while in use
)

// recordKind says what a record is.
type recordKind uint8

const (
	recordSend     recordKind = iota + 1 // a piece of a message; the last one completes a receive
	recordWrite                          // a piece of a Write
	recordRead                           // a Read, to be carried out
	recordResponse                       // a piece of a Read's data, or word that it was copied
	recordSkip                           // fills the end of the ring
)

// record is the fixed part of a record. Fields that a kind does not mention are 0.
type record struct {
	kind recordKind
	last bool // Send, Response: nothing follows
	// lent is 1 plus the index of the lent memory that holds the data of a Write, or that a Read or
	// a Response refers to. If it is 0, the payload follows the record.
	lent   uint8
	length uint32 // of this piece; of the whole Read
	key    uint32 // Write, Read: of the receiver's memory
	// address is an address in the receiver's memory for Write and Read, and the offset of the
	// piece for Send and Response.
	address uint64
	source  uint64 // offset in the lent memory
}

// wireRecord is a record in shared memory.
type wireRecord struct {
	// word holds the kind in bits 0 to 7, last in bit 8, lent in bits 16 to 23, and the length in
	// the upper half.
	word    uint64
	key     uint64
	address uint64
	source  uint64
}

// The format in shared memory must not depend on how a compiler lays out structures.
var (
	_ [headerBytes - unsafe.Sizeof(outboxHeader{})]byte
	_ [unsafe.Sizeof(outboxHeader{}) - headerBytes]byte
	_ [recordBytes - unsafe.Sizeof(wireRecord{})]byte
	_ [unsafe.Sizeof(wireRecord{}) - recordBytes]byte
)

// outbox is a view of an outbox: of this side's own, or of the peer's, which cannot be written to.
type outbox struct {
	region *memory.Region
	header *outboxHeader
	ring   []byte
}

// viewOutbox returns the view of at least outboxBytes of memory, which begin at a page.
func viewOutbox(region *memory.Region) outbox {
	mapped := region.Bytes()
	return outbox{
		region: region, header: (*outboxHeader)(unsafe.Pointer(&mapped[0])),
		ring: mapped[headerBytes:outboxBytes:outboxBytes],
	}
}

// inlineBytes returns how many bytes of the ring follow a record.
func (r *record) inlineBytes() uint64 {
	if r.lent != 0 || r.kind == recordRead {
		return 0
	}
	return uint64(r.length)
}

// span returns the bytes of the ring that a record with its payload takes.
func (r *record) span() uint64 {
	return recordBytes + (r.inlineBytes()+recordBytes-1)&^(recordBytes-1)
}

// write writes a record to the ring at an offset, a multiple of recordBytes.
func (o *outbox) write(offset uint64, r *record) {
	word := uint64(r.kind) | uint64(r.lent)<<16 | uint64(r.length)<<32
	if r.last {
		word |= 1 << 8
	}
	*(*wireRecord)(unsafe.Pointer(&o.ring[offset])) = wireRecord{
		word: word, key: uint64(r.key), address: r.address, source: r.source,
	}
}

// read reads a record. It reads each word once, because the peer can change it at any time.
func (o *outbox) read(offset uint64) record {
	w := (*wireRecord)(unsafe.Pointer(&o.ring[offset]))
	word := atomic.LoadUint64(&w.word)
	return record{
		kind: recordKind(word), last: word&(1<<8) != 0, lent: uint8(word >> 16),
		length: uint32(word >> 32), key: uint32(atomic.LoadUint64(&w.key)),
		address: atomic.LoadUint64(&w.address), source: atomic.LoadUint64(&w.source),
	}
}
