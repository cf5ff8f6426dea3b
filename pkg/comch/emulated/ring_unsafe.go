package emulated

import (
	"sync/atomic"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// ringHeader is what a ring has once. The consumer writes the first pair of
// lines, the producers the second: processors that fetch lines in pairs do
// not make them share either.
type ringHeader struct {
	// posted counts the receives that the consumer has made visible.
	posted atomic.Uint64
	_      [cacheLine - 8]byte
	// consumerSleeping is not 0 while the consumer wants its doorbell rung.
	consumerSleeping atomic.Uint32
	_                [cacheLine - 4]byte
	// producersWaiting is not 0 while a producer wants its doorbell rung.
	producersWaiting atomic.Uint32
	_                [2*cacheLine - 4]byte
}

// completion tells the consumer about one message. It fills a line, so that a
// poller looks at one line only, and publishes itself: there is no tail that
// all producers would have to share.
type completion struct {
	// published is the low half of the message's index plus one in its upper
	// half, and the message's length in its lower half. Storing it makes
	// everything else of the message visible.
	published atomic.Uint64
	// origin is the producer's id in the upper half and the length of the
	// immediate data in the lower half. It is written before published.
	origin    uint64
	immediate [comch.MaxImmediateLength]byte
	_         [cacheLine - 16 - comch.MaxImmediateLength]byte
}

// The wire format must not depend on how a compiler lays out structures.
var (
	_ [ringHeaderSize - unsafe.Sizeof(ringHeader{})]byte
	_ [unsafe.Sizeof(ringHeader{}) - ringHeaderSize]byte
	_ [completionSize - unsafe.Sizeof(completion{})]byte
	_ [unsafe.Sizeof(completion{}) - completionSize]byte
)

// sharedRing is one side's view of a ring's shared memory, all of which the
// peer can write at any time. Index i of posted belongs to completion slot i.
type sharedRing struct {
	header      *ringHeader
	completions []completion
	// posted holds the offset of a posted buffer in the upper half and its
	// length in the lower half.
	posted []uint64
	memory []byte
}

// viewRing interprets mapped memory of at least layout.total bytes. Mappings
// start at a page, so every part is aligned.
func viewRing(mapped []byte, layout ringLayout) sharedRing {
	mapped = mapped[:layout.total]
	return sharedRing{
		header:      (*ringHeader)(unsafe.Pointer(&mapped[0])),
		completions: unsafe.Slice((*completion)(unsafe.Pointer(&mapped[layout.completions])), layout.capacity),
		posted:      unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[layout.posted])), layout.capacity),
		memory:      mapped[layout.memory : layout.memory+layout.memorySize : layout.memory+layout.memorySize],
	}
}
