// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
)

func TestAPermutationVisitsEveryNumberOnce(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 5000).Draw(t, "n")
		p := newPermutation(n, rapid.Uint64().Draw(t, "key"))
		seen := make([]bool, n)
		count := uint64(0)
		for x, ok := p.value(); ok; x, ok = p.value() {
			if x >= n || seen[x] {
				t.Fatalf("%d came twice or is not below %d", x, n)
			}
			seen[x] = true
			count++
		}
		if count != n {
			t.Fatalf("%d of %d numbers came", count, n)
		}
	})
}

func TestPlannedOperationsNeverOverlapAndCoverEveryPass(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		blocks := rapid.Uint64Range(1, 300).Draw(t, "blocks")
		depth := rapid.IntRange(1, 40).Draw(t, "depth")
		passes := rapid.Uint32Range(1, 3).Draw(t, "passes")
		random := rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)
		p := newPlanner(blocks, rapid.Uint64Range(1, 9).Draw(t, "maximum"), passes, random)
		m := &plannerModel{busy: make([]bool, blocks), writes: make([]uint32, blocks),
			reads: make([]uint32, blocks)}
		for !p.done() {
			op, ok := p.next(len(m.outstanding) == 0)
			if ok {
				m.start(t, &p, op)
			}
			for len(m.outstanding) > 0 && (!ok || len(m.outstanding) == depth) {
				m.finish(&p, int(random.Uint64()%uint64(len(m.outstanding))))
				ok = true
			}
		}
		for block := range blocks {
			if m.writes[block] != passes || m.reads[block] != passes {
				t.Fatalf("block %d was written %d and read %d times in %d passes", block,
					m.writes[block], m.reads[block], passes)
			}
		}
	})
}

// plannerModel tracks the effects of a planner's operations.
type plannerModel struct {
	outstanding   []operation
	busy          []bool
	writes, reads []uint32 // of each block, not those among the writes
}

func (m *plannerModel) start(t *rapid.T, p *planner, op operation) {
	for block := op.first; block < op.first+op.count; block++ {
		if m.busy[block] {
			t.Fatalf("%v of block %d overlaps another operation", op.kind, block)
		}
		m.busy[block] = true
		switch {
		case op.kind == client.Write:
			m.writes[block]++
		case p.step == reading:
			m.reads[block]++
		}
	}
	if op.kind == client.Flush && p.step == flushing && len(m.outstanding) > 0 {
		t.Fatal("the last flush of a pass does not follow all writes")
	}
	m.outstanding = append(m.outstanding, op)
}

func (m *plannerModel) finish(p *planner, i int) {
	op := m.outstanding[i]
	m.outstanding = append(m.outstanding[:i], m.outstanding[i+1:]...)
	p.ledger.release(op.first, op.count)
	for block := op.first; block < op.first+op.count; block++ {
		m.busy[block] = false
	}
}
