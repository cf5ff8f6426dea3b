package verify

// ledger knows of each block of a slice, in four bytes, what it must hold and
// whether a request is under way to it.
type ledger []uint32

const (
	busyBit      = 1 << 31
	markBit      = 1 << 30 // flips with every step that has visited the block
	doubtBit     = 1 << 29 // the target may have lost the last write
	generationOf = doubtBit - 1
)

// unknown is the generation of a block whose content nobody knows: it was not
// written yet, or a write to it has failed.
const unknown = 0

func (l ledger) generation(block uint64) uint32 { return l[block] & generationOf }

func (l ledger) busy(block uint64) bool { return l[block]&busyBit != 0 }

// visited reports whether the step with this mark has visited the block.
func (l ledger) visited(block uint64, mark uint32) bool { return l[block]&markBit == mark }

// claim makes blocks busy, so that no other request touches them, and visited
// by the step with this mark.
func (l ledger) claim(first, count uint64, mark uint32) {
	for i := first; i < first+count; i++ {
		l[i] = l[i]&(generationOf|doubtBit) | busyBit | mark
	}
}

// borrow makes blocks busy without visiting them.
func (l ledger) borrow(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] |= busyBit
	}
}

// release ends what claim or borrow began.
func (l ledger) release(first, count uint64) {
	for i := first; i < first+count; i++ {
		l[i] &^= busyBit
	}
}

// set notes what a block holds.
func (l ledger) set(block uint64, generation uint32) {
	l[block] = l[block]&^uint32(generationOf|doubtBit) | generation
}

// doubt notes that the last write to a block may be lost.
func (l ledger) doubt(block uint64) { l[block] |= doubtBit }

func (l ledger) doubtful(block uint64) bool { return l[block]&doubtBit != 0 }

// free counts the blocks from first on, at most limit, that are not busy and,
// unless mark is noMark, not visited.
func (l ledger) free(first, limit uint64, mark uint32) uint64 {
	count := uint64(0)
	for count < limit && first+count < uint64(len(l)) {
		block := first + count
		if l.busy(block) || (mark != noMark && l.visited(block, mark)) {
			break
		}
		count++
	}
	return count
}

// noMark is the mark of no step.
const noMark = ^uint32(0)
