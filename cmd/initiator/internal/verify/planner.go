package verify

import (
	"math/bits"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// How often a request among the writes of a pass is something else, in 256.
const (
	readsAmongWrites   = 64
	flushesAmongWrites = 4
)

// step is what a pass is at: it writes every block, flushes, then reads every
// block.
type step uint8

const (
	writing step = iota
	flushing
	reading
)

// operation is a request on blocks of the slice.
type operation struct {
	kind  iomsg.Type
	first uint64
	count uint64
	cover uint64 // of a flush: how many writes it makes durable
}

// planner decides what a thread does next with its slice.
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
	pending   bool // candidate has not been dealt with
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

// done reports whether all passes have been made.
func (p *planner) done() bool { return p.passes > 0 && p.completed == p.passes }

// next returns the next operation and makes its blocks busy. False means that
// nothing can be started before something outstanding has completed; idle
// tells that nothing is.
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
	return p.visit(iomsg.Write, flushing, idle)
}

// stray draws whether something else comes between the writes.
func (p *planner) stray() (operation, bool) {
	switch draw := p.random.Uint64() % 256; {
	case draw < flushesAmongWrites:
		return operation{kind: iomsg.Flush}, true
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
	return operation{kind: iomsg.Read, first: first, count: count}, true
}

// nextFlush ends the writes of a pass.
func (p *planner) nextFlush(idle bool) (operation, bool) {
	if !idle {
		return operation{}, false
	}
	if !p.flushed {
		p.flushed = true
		return operation{kind: iomsg.Flush}, true
	}
	p.flushed = false
	p.begin(reading)
	return p.nextRead(idle)
}

func (p *planner) nextRead(idle bool) (operation, bool) {
	op, ok := p.visit(iomsg.Read, writing, idle)
	if ok || p.step == reading {
		return op, ok
	}
	p.completed++
	p.pass++
	return operation{}, false // the next turn goes on, unless this was all
}

// visit takes the next blocks of the step, or goes over to the step after it
// when all have been visited and nothing is outstanding.
func (p *planner) visit(kind iomsg.Type, after step, idle bool) (operation, bool) {
	for p.advance() {
		if p.ledger.visited(p.candidate, p.mark) {
			p.pending = false
			continue
		}
		count := p.ledger.free(p.candidate, p.size(), p.mark)
		if count == 0 {
			return operation{}, false // it is being read: later
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

// advance makes sure that there is a candidate; false if all have been.
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
