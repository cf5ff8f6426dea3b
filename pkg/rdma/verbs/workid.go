//go:build verbs

package verbs

// A work id names a request towards the device: bit 63 says which ring it is
// in, 31 bits of which connection it is, and 32 bits are its index. The token
// of a connection is its slot in the completion queue and a generation, so
// that what a device reports after a connection is gone is recognised.
const (
	slotBits       = 16
	maxSlots       = 1 << slotBits
	maxGeneration  = 1<<15 - 1
	tokenShift     = 32
	receiveWorkBit = 1 << 63
)

func newToken(slot int, generation uint32) uint32 {
	return uint32(slot) | (generation&maxGeneration)<<slotBits
}

func slotOf(token uint32) int { return int(token & (maxSlots - 1)) }

func sendWorkID(token, index uint32) uint64 { return uint64(token)<<tokenShift | uint64(index) }

func receiveWorkID(token, index uint32) uint64 { return receiveWorkBit | sendWorkID(token, index) }

func splitWorkID(id uint64) (token, index uint32, receive bool) {
	return uint32(id&^receiveWorkBit>>tokenShift) & (1<<31 - 1), uint32(id), id&receiveWorkBit != 0
}
