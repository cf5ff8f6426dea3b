// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/benchsuite"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// drawParameters draws parameters that fit a volume.
func drawParameters(t *rapid.T, info *client.Info) Parameters {
	p := Parameters{
		Pattern:     rapid.SampledFrom(benchsuite.Patterns()).Draw(t, "pattern"),
		ReadPercent: rapid.IntRange(0, 100).Draw(t, "share of reads"),
		BlockSize:   info.BlockSize * rapid.Uint32Range(1, 4).Draw(t, "blocks per request"),
		QueueDepth:  1, Queues: rapid.IntRange(1, 5).Draw(t, "queues"), Sessions: rapid.IntRange(1,
			3).Draw(t, "sessions"),
		OperationLimit: rapid.Uint64Range(1, 1000).Draw(t, "operations"),
		Offset: uint64(info.BlockSize) * rapid.Uint64Range(0, 50).Draw(t,
			"offset in blocks"),
		Seed: rapid.Uint64().Draw(t, "seed"), Poll: "adaptive", DrainTimeout: time.Second,
	}
	p.Length = info.Size - p.Offset - rapid.Uint64Range(0, 50).Draw(t,
		"blocks less")*uint64(info.BlockSize)
	return p
}

func TestRequestsStayAlignedAndInTheirRange(t *testing.T) {
	info := client.Info{Size: 200 * 512, BlockSize: 512}
	seedtest.Check(t, func(t *rapid.T) {
		p := drawParameters(t, &info)
		if err := p.Resolve(&info); err != nil {
			t.Fatal(err)
		}
		g := newGenerator(&p, rapid.IntRange(0, p.allQueues()-1).Draw(t, "queue"))
		for range 300 {
			offset := g.offset(0)
			if offset < p.Offset || offset+uint64(p.BlockSize) > p.Offset+p.Length ||
				(offset-p.Offset)%uint64(p.BlockSize) != 0 {
				t.Fatalf("a request of %d bytes goes to %d, the range is %d bytes at %d",
					p.BlockSize, offset, p.Length, p.Offset)
			}
		}
	})
}

func TestSequentialThreadsCoverTheRangeOnceEach(t *testing.T) {
	info := client.Info{Size: 200 * 512, BlockSize: 512}
	seedtest.Check(t, func(t *rapid.T) {
		p := drawParameters(t, &info)
		p.Pattern = benchsuite.Read
		if err := p.Resolve(&info); err != nil {
			t.Fatal(err)
		}
		seen := map[uint64]bool{}
		for queue := range p.allQueues() {
			g := newGenerator(&p, queue)
			for range g.span.blocks {
				offset := g.offset(0)
				if seen[offset] {
					t.Fatalf("offset %d comes twice", offset)
				}
				seen[offset] = true
			}
			if first := g.offset(0); first != g.span.start {
				t.Fatalf("a new round begins at %d instead of %d", first, g.span.start)
			}
		}
		if want := p.Length / uint64(p.BlockSize); uint64(len(seen)) != want {
			t.Fatalf("%d of %d blocks were visited", len(seen), want)
		}
	})
}

func TestTheSameSeedGivesTheSameRequests(t *testing.T) {
	p := testParameters(benchsuite.RandomMixed)
	p.Length = testVolumeSize
	a, b, other := newGenerator(&p, 0), newGenerator(&p, 0), newGenerator(&p, 1)
	same := 0
	for range 100 {
		offset := a.offset(0)
		if offset != b.offset(0) || a.kind() != b.kind() {
			t.Fatal("two generators with one seed differ")
		}
		if offset == other.offset(0) {
			same++
		}
		other.kind()
	}
	if same == 100 {
		t.Error("two threads send the same requests")
	}
}

func TestRandomOffsetsReachEveryBlockAboutAsOften(t *testing.T) {
	p := testParameters(benchsuite.RandomRead)
	p.Length = 16 * 4096
	g := newGenerator(&p, 0)
	hits := make([]int, 16)
	const draws = 16_000
	for range draws {
		hits[g.offset(0)/4096]++
	}
	for block, n := range hits {
		if n < draws/16*8/10 || n > draws/16*12/10 {
			t.Errorf("block %d was drawn %d times of %d", block, n, draws)
		}
	}
}

func TestOperationsAreSharedOutCompletely(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		p := Parameters{Queues: rapid.IntRange(1, 64).Draw(t, "queues"), Sessions: rapid.IntRange(1,
			8).Draw(t, "sessions"), OperationLimit: rapid.Uint64Range(1, 1<<40).Draw(t,
			"operations")}
		sum := uint64(0)
		for i := range p.allQueues() {
			sum += p.operationLimit(i)
		}
		if sum != p.OperationLimit {
			t.Fatalf("the shares add up to %d of %d", sum, p.OperationLimit)
		}
	})
}
