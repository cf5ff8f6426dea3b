// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// testModel compares a volume with an array of bytes over random sequences of operations, with
// several in flight at a time.
func testModel(t *testing.T, v volume.Volume) {
	model := readAll(t, v)
	seedtest.Check(t, func(rt *rapid.T) {
		queue := NewQueue(t, v, modelDepth)
		defer CloseQueue(t, queue)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			step(rt, t, v.Info(), queue, model)
		}
		if got := readAll(t, v); !bytes.Equal(got, model) {
			rt.Fatalf("volume and model differ, first at byte %d", firstDifference(got, model))
		}
	})
}

const modelDepth = 4

// step runs one random request in each quarter of the first MinBlocks blocks, all four at the same
// time.
func step(rt *rapid.T, t *testing.T, info volume.Info, queue volume.Queue, model []byte) {
	block := uint64(info.BlockSize)
	const quarter = MinBlocks / modelDepth
	var requests [modelDepth]*volume.Request
	for i := range requests {
		first := rapid.Uint64Range(0, quarter-1).Draw(rt, "first")
		r := &volume.Request{
			Operation: rapid.SampledFrom(offered(info)).Draw(rt, "operation"),
			ForceUnitAccess: info.Capabilities.Has(volume.CanFUA) &&
				rapid.IntRange(0, 9).Draw(rt, "force") == 0,
			Offset: (uint64(i)*quarter + first) * block,
			Length: rapid.Uint64Range(1, quarter-first).Draw(rt, "blocks") * block,
		}
		if r.Buffer = pattern(r.Length, rapid.Byte().Draw(rt, "seed")); r.Operation == iomsg.OpExtents {
			r.Buffer = make([]byte, rapid.IntRange(1, 5).Draw(rt, "entries")*iomsg.ExtentSize)
		}
		requests[i] = r
	}
	Do(t, queue, requests[:]...)
	for _, r := range requests {
		if r.Err != nil {
			rt.Fatalf("%v of %d bytes at %d: %v", r.Operation, r.Length, r.Offset, r.Err)
		}
		apply(rt, t, queue, r, model[r.Offset:r.Offset+r.Length])
	}
}

// offered returns the operations that a volume supports.
func offered(info volume.Info) []iomsg.Operation {
	operations := []iomsg.Operation{iomsg.OpRead, iomsg.OpWrite, iomsg.OpWrite, iomsg.OpFlush}
	if info.Capabilities.Has(volume.CanTrim) {
		operations = append(operations, iomsg.OpTrim)
	}
	if info.Capabilities.Has(volume.CanWriteZeroes) {
		operations = append(operations, iomsg.OpWriteZeroes)
	}
	if info.Capabilities.Has(volume.CanReportExtents) {
		operations = append(operations, iomsg.OpExtents)
	}
	return operations
}

// apply checks what a request has read, or applies its change to the model.
func apply(rt *rapid.T, t *testing.T, queue volume.Queue, r *volume.Request, model []byte) {
	switch r.Operation {
	case iomsg.OpRead:
		if !bytes.Equal(r.Buffer, model) {
			rt.Fatalf("read at %d differs from the model, first at byte %d", r.Offset,
				firstDifference(r.Buffer, model))
		}
	case iomsg.OpExtents:
		extents, err := iomsg.DecodeExtents(nil, r.Buffer, r.Length)
		if err != nil {
			rt.Fatalf("extents of %d bytes at %d: %v", r.Length, r.Offset, err)
		}
		for _, e := range extents {
			if e.Flags&iomsg.Hole != 0 && !bytes.Equal(model[:e.Length], make([]byte, e.Length)) {
				rt.Fatalf("extents %v of %d bytes at %d: a hole has content", extents, r.Length,
					r.Offset)
			}
			model = model[e.Length:]
		}
	case iomsg.OpWrite:
		copy(model, r.Buffer)
	case iomsg.OpWriteZeroes:
		clear(model)
	case iomsg.OpTrim:
		now := volume.Request{Operation: iomsg.OpRead, Offset: r.Offset, Length: r.Length,
			Buffer: r.Buffer}
		Do(t, queue, &now)
		zeroes := make([]byte, len(model))
		if now.Err != nil || !bytes.Equal(r.Buffer, zeroes) && !bytes.Equal(r.Buffer, model) {
			rt.Fatalf("after a trim at %d: error %v, or neither zeroes nor the old content",
				r.Offset, now.Err)
		}
		copy(model, r.Buffer)
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// testConcurrency makes each of four queues own every fourth block and rewrite it over and over, so
// that neighbouring blocks belong to different threads.
func testConcurrency(t *testing.T, v volume.Volume) {
	const queues, rounds = 4, 20
	t.Run("queues", func(t *testing.T) { // returns when all its parallel tests have
		for own := range uint64(queues) {
			t.Run(fmt.Sprint(own), func(t *testing.T) {
				t.Parallel()
				queue := NewQueue(t, v, MinBlocks/queues)
				defer CloseQueue(t, queue)
				for round := range rounds {
					rewrite(t, v.Info(), queue, own, queues, byte(round))
				}
			})
		}
	})
}

// rewrite writes every block with number%queues == own, then reads it back.
func rewrite(t *testing.T, info volume.Info, queue volume.Queue, own, queues uint64, seed byte) {
	t.Helper()
	block := uint64(info.BlockSize)
	var writes, reads []*volume.Request
	for number := own; number < MinBlocks; number += queues {
		writes = append(writes, &volume.Request{
			Operation: iomsg.OpWrite, Offset: number * block, Length: block, Buffer: pattern(block,
				seed^byte(number)),
		})
		reads = append(reads, &volume.Request{
			Operation: iomsg.OpRead, Offset: number * block, Length: block, Buffer: make([]byte,
				block),
		})
	}
	Do(t, queue, writes...)
	Do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	Do(t, queue, reads...)
	for i := range writes {
		if writes[i].Err != nil || reads[i].Err != nil ||
			!bytes.Equal(writes[i].Buffer, reads[i].Buffer) {
			t.Fatalf("block at %d did not read back as written: write %v, read %v",
				writes[i].Offset, writes[i].Err, reads[i].Err)
		}
	}
}
