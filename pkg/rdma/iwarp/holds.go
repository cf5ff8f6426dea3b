package iwarp

// maxHolds is how many regions a batch of segments mostly uses: one for
// messages and one for data, of two sessions.
const maxHolds = 4

// holds are uses of memory regions that last for a batch of segments.
// Beginning and ending a use are atomic operations, which would cost more than
// all checks of a small segment.
type holds struct {
	regions [maxHolds]*memoryRegion
	count   int
}

// hold begins a use of the region unless there is one. It lasts until release
// or the next hold. False means that the region has been deregistered.
func (h *holds) hold(r *memoryRegion) bool {
	for i := range h.count {
		if h.regions[i] == r {
			return true
		}
	}
	if h.count == maxHolds {
		h.release()
	}
	if !r.uses.acquire() {
		return false
	}
	h.regions[h.count] = r
	h.count++
	return true
}

// release ends all uses.
func (h *holds) release() {
	for i := range h.count {
		h.regions[i].uses.release()
		h.regions[i] = nil
	}
	h.count = 0
}
