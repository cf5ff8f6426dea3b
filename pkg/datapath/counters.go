package datapath

import (
	"math/bits"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// BackPressure is why a request or an answer had to wait.
type BackPressure uint8

// The causes of back pressure. NoClientReceive is the relay's, the others are
// the target's.
const (
	// NoClientReceive counts answers for which the client had posted no
	// receive. Until it does, nothing more is taken from it.
	NoClientReceive BackPressure = iota
	// NoAnswerRoom counts requests that came while the answers to earlier ones
	// were still being sent.
	NoAnswerRoom
	// NoReadCredit counts writes whose RDMA Read was one more than the
	// connection's read depth.
	NoReadCredit
	BackPressureCount
)

// String returns the cause's label in metrics.
func (b BackPressure) String() string {
	switch b {
	case NoClientReceive:
		return "client_receive"
	case NoAnswerRoom:
		return "answer_room"
	case NoReadCredit:
		return "rdma_read"
	}
	return "invalid"
}

// Counters counts the IOs of one queue on one worker since their start. The
// worker counts in plain memory what it can and publishes it once a batch,
// because an atomic store costs more than everything else here; anyone may
// read what is published; nobody resets.
type Counters struct {
	pending    [iomsg.OperationCount]tally
	operations uint32 // a bit for each operation in pending
	taken      int64  // requests that have not been answered

	io           [iomsg.OperationCount][status.CodeCount]atomic.Uint64
	bytes        [iomsg.OperationCount]atomic.Uint64
	latencySumNs [iomsg.OperationCount]atomic.Uint64
	latency      [iomsg.OperationCount][LatencyBuckets]atomic.Uint64
	backPressure [BackPressureCount]atomic.Uint64
	inFlight     atomic.Int64
}

// tally is what the IOs of one operation and batch add up to.
type tally struct{ successes, bytes, latencyNs uint64 }

// increase adds to a count of which the calling thread is the only writer:
// that needs no atomic addition.
func increase(count *atomic.Uint64, n uint64) {
	if n > 0 {
		count.Store(count.Load() + n)
	}
}

// take counts a request that will be answered.
func (c *Counters) take() { c.taken++ }

// giveUp ends what take began for n requests that are not answered.
func (c *Counters) giveUp(n int) { c.taken -= int64(n) }

// answer counts one IO that was taken, and its outcome: see refuse.
func (c *Counters) answer(t iomsg.Type, code status.Code, size uint32, latencyNs int64) {
	c.taken--
	c.refuse(t, code, size, latencyNs)
}

// refuse counts one IO that is answered without having been taken. size is
// what it moved in bytes if it succeeded.
func (c *Counters) refuse(t iomsg.Type, code status.Code, size uint32, latencyNs int64) {
	operation := t.Operation()
	if !code.Known() {
		code = status.Unknown
	}
	ns := uint64(max(latencyNs, 0))
	increase(&c.latency[operation][latencyBucket(ns)], 1)
	pending := &c.pending[operation]
	c.operations |= 1 << operation
	pending.latencyNs += ns
	if code != status.Success {
		increase(&c.io[operation][code], 1)
		return
	}
	pending.successes++
	if t.MovesData() {
		pending.bytes += uint64(size)
	}
}

// pressed counts one wait.
func (c *Counters) pressed(cause BackPressure) { increase(&c.backPressure[cause], 1) }

// publish makes everything counted so far visible to readers.
func (c *Counters) publish() {
	for ; c.operations != 0; c.operations &= c.operations - 1 {
		operation := bits.TrailingZeros32(c.operations)
		pending := &c.pending[operation]
		increase(&c.io[operation][status.Success], pending.successes)
		increase(&c.bytes[operation], pending.bytes)
		increase(&c.latencySumNs[operation], pending.latencyNs)
		*pending = tally{}
	}
	if c.taken != c.inFlight.Load() {
		c.inFlight.Store(c.taken)
	}
}
