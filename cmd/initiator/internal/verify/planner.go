// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"math/bits"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// The share of other requests among the writes of a pass, in 256ths.
const (
	readsAmongWrites   = 64
	flushesAmongWrites = 4
)

// step is a step of a pass: it writes every block, flushes, then reads every block.
type step uint8

const (
	writing step = iota
	flushing
	reading
)

// operation is a request on blocks of the slice.
type operation struct {
	kind  client.RequestType
	first uint64
	count uint64
	cover uint64 // of a flush: number of writes that it makes durable
}

// planner decides the next operation of a thread on its slice.
type planner struct {
	ledger    ledger
	random    *rand.PCG
	maxBlocks uint64
	passes    uint32 // 0 if only time bounds the run

	pass      uint32 // from 1: the generation that is written
	step      step
	mark      uint32
	order     permutation
	candidate uint64
	pending   bool // candidate has not been used
	flushed   bool // in the step flushing
	completed uint32
}

func newPlanner(blocks, maxBlocks uint64, passes uint32, random *rand.PCG) planner {
	p := planner{
		ledger: make(ledger, blocks), random: random, maxBlocks: maxBlocks, passes: passes,
		pass: 1, mark: markBit,
	}
	p.order = newPermutation(blocks, random.Uint64())
	return p
}

// done reports whether all passes are complete.
func (p *planner) done() bool { return p.passes > 0 && p.completed == p.passes }

// next returns the next operation and marks its blocks as busy. It returns false if an outstanding
// operation has to complete first; idle means that there is none.
func (p *planner) next(idle bool) (operation, bool) {
	switch p.step {
	case writing:
		return p.nextWhileWriting(idle)
	case flushing:
		return p.nextFlush(idle)
	}
	return p.nextRead(idle)
}

func (p *planner) nextWhileWriting(idle bool) (operation, bool) {
	if p.advance() {
		if op, ok := p.stray(); ok {
			return op, true
		}
	}
	return p.visit(client.Write, flushing, idle)
}

// stray draws whether another request comes between the writes.
func (p *planner) stray() (operation, bool) {
	switch draw := p.random.Uint64() % 256; {
	case draw < flushesAmongWrites:
		return operation{kind: client.Flush}, true
	case draw < flushesAmongWrites+readsAmongWrites:
		return p.strayRead()
	}
	return operation{}, false
}

// strayRead reads blocks of any pass while others are being written.
func (p *planner) strayRead() (operation, bool) {
	first := p.below(uint64(len(p.ledger)))
	count := p.ledger.free(first, p.size(), noMark)
	if count == 0 {
		return operation{}, false
	}
	p.ledger.borrow(first, count)
	return operation{kind: client.Read, first: first, count: count}, true
}

// nextFlush flushes the writes of a pass, once all have completed.
func (p *planner) nextFlush(idle bool) (operation, bool) {
	if !idle {
		return operation{}, false
	}
	if !p.flushed {
		p.flushed = true
		return operation{kind: client.Flush}, true
	}
	p.flushed = false
	p.begin(reading)
	return p.nextRead(idle)
}

func (p *planner) nextRead(idle bool) (operation, bool) {
	op, ok := p.visit(client.Read, writing, idle)
	if ok || p.step == reading {
		return op, ok
	}
	p.completed++
	p.pass++
	return operation{}, false // the next turn continues, unless this was the last pass
}

// visit claims the next blocks of the step. When all have been visited and nothing is outstanding,
// it starts the step after.
func (p *planner) visit(kind client.RequestType, after step, idle bool) (operation, bool) {
	for p.advance() {
		if p.ledger.visited(p.candidate, p.mark) {
			p.pending = false
			continue
		}
		count := p.ledger.free(p.candidate, p.size(), p.mark)
		if count == 0 {
			return operation{}, false // a stray read is in flight: later
		}
		p.ledger.claim(p.candidate, count, p.mark)
		p.pending = false
		return operation{kind: kind, first: p.candidate, count: count}, true
	}
	if idle {
		p.begin(after)
	}
	return operation{}, false
}

// advance makes sure that there is a candidate. It returns false if all blocks have been one.
func (p *planner) advance() bool {
	if !p.pending {
		p.candidate, p.pending = p.order.value()
	}
	return p.pending
}

func (p *planner) begin(next step) {
	p.step = next
	if next != flushing {
		p.mark ^= markBit
		p.order = newPermutation(uint64(len(p.ledger)), p.random.Uint64())
	}
}

// size draws the length of a request in blocks.
func (p *planner) size() uint64 { return 1 + p.below(p.maxBlocks) }

// below draws a number less than n.
func (p *planner) below(n uint64) uint64 {
	high, _ := bits.Mul64(p.random.Uint64(), n)
	return high
}

// permutation visits the numbers below n once each in a scattered order, without recording which it
// has visited: it permutes the next larger power of two by invertible steps, and skips numbers that
// are not below n.
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

// value returns the next number, or false when all have been visited.
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

// at is a bijection on the numbers up to mask: addition, multiplication by an odd number, and
// folding the upper half into the lower half are all invertible.
func (p *permutation) at(x uint64) uint64 {
	x = (x + p.key) & p.mask
	for _, odd := range [...]uint64{p.key | 1, weyl, p.key>>32 | 1} {
		x = x * odd & p.mask
		x ^= x >> p.shift
	}
	return x
}
