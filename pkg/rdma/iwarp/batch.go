// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

const (
	// scratchBytes is the space for headers, trailers, and small payloads of a batch.
	scratchBytes = 16 << 10
	// inlineBytes is the largest payload that is cheaper to copy than to pass to the kernel as a
	// separate vector.
	inlineBytes = 256
	// batchBytes is the length at which a batch is long enough: a system call costs little compared
	// with copying that much, and the peer can work on this batch while the next one is composed.
	batchBytes = 64 << 10
	// smallBytes is the largest payload that is still added to a batch that is long enough, so that
	// a message that announces the data before it does not wait for the next system call.
	smallBytes = 2 << 10
	// stableBytes is the space for copies of payloads that could change between computing the CRC
	// and sending, or that must not be sent in place. Only connections that need it have it.
	stableBytes = 2 * batchBytes
	// maxBatchRegions bounds the distinct memory regions of one system call.
	maxBatchRegions = 8
	// maxFrameBytes is the most scratch that one FPDU can need.
	maxFrameBytes = maxHeaderBytes + inlineBytes + maxTrailer
)

// batch is a run of whole FPDUs on its way to the socket. It is composed when it is empty, and sent
// to its last byte before the next one is composed.
type batch struct {
	gather      linux.Gather
	used        int  // bytes of scratch
	joined      bool // the last vector ends at used, so that more scratch can extend it
	stable      []byte
	copied      int // bytes of stable
	regions     [maxBatchRegions]*registration.Region
	regionCount int
	// workEnd becomes sendQueue.sent once the batch has been sent.
	workEnd    uint32
	partlySent bool // the batch can no longer be dropped
	untrusted  bool // it refers to memory that may fault
	scratch    [scratchBytes]byte
}

func (b *batch) empty() bool { return b.gather.Bytes() == 0 }

func (b *batch) reset() {
	b.gather.Reset()
	b.used, b.joined, b.copied, b.partlySent, b.untrusted = 0, false, 0, false, false
	clear(b.regions[:b.regionCount])
	b.regionCount = 0
}

// hasRoom reports whether one more FPDU is certain to fit.
func (b *batch) hasRoom() bool {
	return b.gather.Count() <= linux.MaxVectors-3 && b.used <= scratchBytes-maxFrameBytes
}

// frame returns an empty slice of the unused scratch, to append to and to pass to addFrame.
func (b *batch) frame() []byte { return b.scratch[b.used:b.used] }

// addFrame adds what was appended to frame. Adjacent pieces share a vector.
func (b *batch) addFrame(frame []byte) {
	if b.joined {
		b.gather.Extend(len(frame))
	} else {
		b.gather.Add(frame)
		b.joined = true
	}
	b.used += len(frame)
}

// addPayload adds memory outside the scratch.
func (b *batch) addPayload(payload []byte) {
	b.gather.Add(payload)
	b.joined = false
}

// addRegion records that the batch refers to the region's memory. It returns false if the batch
// already refers to too many regions.
func (b *batch) addRegion(r *registration.Region) bool {
	for i := range b.regionCount {
		if b.regions[i] == r {
			return true
		}
	}
	if b.regionCount == maxBatchRegions {
		return false
	}
	b.regions[b.regionCount] = r
	b.regionCount++
	return true
}

// acquireRegions acquires all regions that the batch refers to, for the duration of a system call.
// It returns false, and acquires none, if one of them has been deregistered.
func (b *batch) acquireRegions() bool {
	for i := range b.regionCount {
		if !b.regions[i].Acquire() {
			b.releaseRegions(i)
			return false
		}
	}
	return true
}

// releaseRegions releases the first count regions.
func (b *batch) releaseRegions(count int) {
	for i := range count {
		b.regions[i].Release()
	}
}
