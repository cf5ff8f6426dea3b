package emulated

import (
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// lastReading is how long the server leaves the ring of a client's consumer
// alone after the end of the connection: the client may be about to copy a
// message, which must not turn into zeroes under its hands.
const lastReading = 5 * time.Second

// maxLeftBytes bounds the ring memory that this process leaves to clients of
// ended connections. Beyond it, rings are freed without delay: only clients
// that come and go in masses get there.
const maxLeftBytes = 64 << 20

var leftBytes atomic.Int64

// freeRing closes a ring. On the server, which pays for the memory, its pages
// go first: the client can keep the file, but what it touches from then on is
// its own expense.
func freeRing(role role, region *memory.Region) {
	if role == serverRole {
		freePages(region)
	}
	_ = region.Close() // unmapping our own mapping does not fail
}

// freeRingLater frees a ring after lastReading, or at once if too much is
// left already.
func freeRingLater(region *memory.Region) {
	size := int64(region.Len())
	if leftBytes.Add(size) > maxLeftBytes {
		leftBytes.Add(-size)
		freeRing(serverRole, region)
		return
	}
	time.AfterFunc(lastReading, func() {
		freeRing(serverRole, region)
		leftBytes.Add(-size)
	})
}
