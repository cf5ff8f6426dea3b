package verify

import "math/bits"

// permutation visits the numbers below n once each in a scattered order,
// without remembering which it has visited: it permutes the next larger power
// of two by invertible steps, and skips what is not below n.
type permutation struct {
	n     uint64
	mask  uint64
	shift uint
	key   uint64
	next  uint64 // argument
}

func newPermutation(n, key uint64) permutation {
	width := bits.Len64(max(n-1, 1))
	return permutation{n: n, mask: 1<<width - 1, shift: uint(width+1) / 2, key: key}
}

// value returns the next number; false when all have been visited.
func (p *permutation) value() (uint64, bool) {
	for p.next <= p.mask {
		x := p.at(p.next)
		p.next++
		if x < p.n {
			return x, true
		}
	}
	return 0, false
}

// at is a bijection on the numbers up to mask: adding, multiplying by an odd
// number and folding the upper half into the lower can all be undone.
func (p *permutation) at(x uint64) uint64 {
	x = (x + p.key) & p.mask
	for _, odd := range [...]uint64{p.key | 1, weyl, p.key>>32 | 1} {
		x = x * odd & p.mask
		x ^= x >> p.shift
	}
	return x
}
