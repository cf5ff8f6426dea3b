package iwarp

const (
	// scratchBytes holds the headers, trailers and small payloads of a batch.
	scratchBytes = 16 << 10
	// inlineBytes is up to where copying a payload is cheaper than naming it
	// to the kernel as a piece of its own.
	inlineBytes = 256
	// batchBytes is where a batch is long enough: a system call costs little
	// beside the copying of so much, and while the next batch is made the peer
	// can work on this one.
	batchBytes = 64 << 10
	// smallBytes is up to how large a payload is added to a batch that is
	// long enough: the message that tells of the data before it should not
	// wait for the next system call.
	smallBytes = 2 << 10
	// stableBytes is the copy of sources that may change while they are summed
	// and sent. Only connections with CRCs have one.
	stableBytes = 2 * batchBytes
	// maxBatchRegions bounds the distinct memory regions of one system call.
	maxBatchRegions = 8
	// maxFrameBytes is the scratch that one FPDU may need.
	maxFrameBytes = maxHeaderBytes + inlineBytes + maxTrailer
)

// batch is a run of whole FPDUs that is being sent. It is composed when it is
// empty, and then sent to its last byte before the next is composed.
type batch struct {
	gather      gather
	used        int  // bytes of scratch
	joined      bool // the last piece is scratch, so that more of it can extend it
	stable      []byte
	copied      int // bytes of stable
	regions     [maxBatchRegions]*memoryRegion
	regionCount int // of regions
	// workEnd is how far the send queue will have been sent with this batch.
	workEnd uint32
	// torn: a part of the batch was sent, so that it cannot be dropped.
	partlySent bool
	scratch    [scratchBytes]byte
}

func (b *batch) empty() bool { return b.gather.bytes == 0 }

func (b *batch) reset() {
	b.gather.reset()
	b.used, b.joined, b.copied, b.partlySent = 0, false, 0, false
	clear(b.regions[:b.regionCount])
	b.regionCount = 0
}

// hasRoom tells whether one more FPDU fits in any case.
func (b *batch) hasRoom() bool {
	return b.gather.count <= maxVectors-3 && b.used <= scratchBytes-maxFrameBytes
}

// frame is empty scratch to append to.
func (b *batch) frame() []byte { return b.scratch[b.used:b.used] }

// addFrame adds what was appended to frame. Adjoining pieces become one.
func (b *batch) addFrame(frame []byte) {
	if b.joined {
		b.gather.extend(len(frame))
	} else {
		b.gather.add(frame)
		b.joined = true
	}
	b.used += len(frame)
}

// addPayload adds memory outside of the scratch.
func (b *batch) addPayload(payload []byte) {
	b.gather.add(payload)
	b.joined = false
}

// addRegion notes that the batch refers to the region's memory. False means
// that it refers to too many already.
func (b *batch) addRegion(r *memoryRegion) bool {
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

// acquireRegions begins the use of all memory that the batch refers to.
func (b *batch) acquireRegions() bool {
	for i := range b.regionCount {
		if !b.regions[i].uses.acquire() {
			b.releaseRegions(i)
			return false
		}
	}
	return true
}

func (b *batch) releaseRegions(count int) {
	for i := range count {
		b.regions[i].uses.release()
	}
}
