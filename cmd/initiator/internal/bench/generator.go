// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/bits"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// span is a part of the volume, in blocks of the run's block size.
type span struct {
	start  uint64 // offset in the volume, in bytes
	blocks uint64
}

// spanOf returns part i of n of the range in use. The sizes of parts differ by at most one block.
func (p *Parameters) spanOf(i, n uint64) span {
	blocks := p.Length / uint64(p.BlockSize)
	first, end := share(blocks, i, n), share(blocks, i+1, n)
	return span{start: p.Offset + first*uint64(p.BlockSize), blocks: end - first}
}

// share returns blocks*i/n without overflow.
func share(blocks, i, n uint64) uint64 {
	high, low := bits.Mul64(blocks, i)
	quotient, _ := bits.Div64(high, low, n)
	return quotient
}

// generator decides the requests of one queue.
type generator struct {
	random      *rand.PCG
	span        span
	sequential  bool
	inPlace     bool   // each slot has a block, see Parameters.InPlace
	next        uint64 // next block, if sequential
	blockSize   uint64
	readPercent uint64
}

// newGenerator returns the generator of a queue, counted over all sessions.
func newGenerator(p *Parameters, queue int) generator {
	g := generator{
		random: rand.NewPCG(p.Seed, uint64(queue)), sequential: !p.Pattern.Random(),
		inPlace:   p.InPlace,
		blockSize: uint64(p.BlockSize), readPercent: uint64(p.ReadPercent),
	}
	if g.sequential {
		g.span = p.spanOf(uint64(queue), uint64(p.allQueues()))
	} else {
		g.span = p.spanOf(0, 1)
	}
	return g
}

// kind draws the operation of the next request: read or write.
func (g *generator) kind() client.RequestType {
	switch g.readPercent {
	case 100:
		return client.Read
	case 0:
		return client.Write
	}
	if below(g.random, 100) < g.readPercent {
		return client.Read
	}
	return client.Write
}

// offset returns the offset of the next request in the volume, which will use the given slot.
func (g *generator) offset(slot uint32) uint64 {
	if g.inPlace {
		return g.span.start + uint64(slot)*g.blockSize
	}
	if !g.sequential {
		return g.span.start + below(g.random, g.span.blocks)*g.blockSize
	}
	block := g.next
	if g.next++; g.next == g.span.blocks {
		g.next = 0
	}
	return g.span.start + block*g.blockSize
}

// below draws a number less than n without a division. The high half of the product favours some
// numbers by at most n in 2^64, which no run can detect.
func below(random *rand.PCG, n uint64) uint64 {
	high, _ := bits.Mul64(random.Uint64(), n)
	return high
}
