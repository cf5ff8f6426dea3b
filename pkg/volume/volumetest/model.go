package volumetest

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/pkg/volume"
)

// testModel compares a volume with an array of bytes over random sequences of
// operations, several of which run at a time.
func testModel(t *testing.T, v volume.Volume) {
	model := readAll(t, v)
	rapid.Check(t, func(rt *rapid.T) {
		lane := newLane(t, v, modelDepth)
		defer closeLane(t, lane)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			step(rt, t, v.Info(), lane, model)
		}
		if got := readAll(t, v); !bytes.Equal(got, model) {
			rt.Fatalf("volume and model differ from byte %d on", firstDifference(got, model))
		}
	})
}

const modelDepth = 4

// step runs one request in each quarter of the range that the suite uses, all
// at the same time.
func step(rt *rapid.T, t *testing.T, info volume.Info, lane volume.Lane, model []byte) {
	block := uint64(info.BlockSize)
	const quarter = MinBlocks / modelDepth
	var requests [modelDepth]*volume.Request
	for i := range requests {
		first := rapid.Uint64Range(0, quarter-1).Draw(rt, "first")
		r := &volume.Request{
			Operation:       rapid.SampledFrom(offered(info)).Draw(rt, "operation"),
			ForceUnitAccess: info.Capabilities.Has(volume.CanFUA) && rapid.IntRange(0, 9).Draw(rt, "force") == 0,
			Offset:          (uint64(i)*quarter + first) * block,
			Length:          rapid.Uint64Range(1, quarter-first).Draw(rt, "blocks") * block,
		}
		r.Buffer = pattern(r.Length, rapid.Byte().Draw(rt, "seed"))
		requests[i] = r
	}
	Do(t, lane, requests[:]...)
	for _, r := range requests {
		if r.Err != nil {
			rt.Fatalf("%v of %d bytes at %d: %v", r.Operation, r.Length, r.Offset, r.Err)
		}
		apply(rt, t, lane, r, model[r.Offset:r.Offset+r.Length])
	}
}

func offered(info volume.Info) []volume.Operation {
	operations := []volume.Operation{volume.Read, volume.Write, volume.Write, volume.Flush}
	if info.Capabilities.Has(volume.CanTrim) {
		operations = append(operations, volume.Trim)
	}
	if info.Capabilities.Has(volume.CanWriteZeroes) {
		operations = append(operations, volume.WriteZeroes)
	}
	return operations
}

// apply checks what a request has read, or does to the model what it has done
// to the volume.
func apply(rt *rapid.T, t *testing.T, lane volume.Lane, r *volume.Request, model []byte) {
	switch r.Operation {
	case volume.Read:
		if !bytes.Equal(r.Buffer, model) {
			rt.Fatalf("read at %d differs from byte %d on", r.Offset, firstDifference(r.Buffer, model))
		}
	case volume.Write:
		copy(model, r.Buffer)
	case volume.WriteZeroes:
		clear(model)
	case volume.Trim:
		now := volume.Request{Operation: volume.Read, Offset: r.Offset, Length: r.Length, Buffer: r.Buffer}
		Do(t, lane, &now)
		zeroes := make([]byte, len(model))
		if now.Err != nil || !bytes.Equal(r.Buffer, zeroes) && !bytes.Equal(r.Buffer, model) {
			rt.Fatalf("after a trim at %d: %v, or neither zeroes nor the old content", r.Offset, now.Err)
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

// testConcurrency has every lane own each fourth block and rewrite it over and
// over, so that neighbours on the same page belong to different threads.
func testConcurrency(t *testing.T, v volume.Volume) {
	const lanes, rounds = 4, 20
	t.Run("lanes", func(t *testing.T) { // ends when all its parallel tests have
		for own := range uint64(lanes) {
			t.Run(fmt.Sprint(own), func(t *testing.T) {
				t.Parallel()
				lane := newLane(t, v, MinBlocks/lanes)
				defer closeLane(t, lane)
				for round := range rounds {
					rewrite(t, v.Info(), lane, own, lanes, byte(round))
				}
			})
		}
	})
}

// rewrite writes every block with number%lanes == own, then reads it back.
func rewrite(t *testing.T, info volume.Info, lane volume.Lane, own, lanes uint64, seed byte) {
	t.Helper()
	block := uint64(info.BlockSize)
	var writes, reads []*volume.Request
	for number := own; number < MinBlocks; number += lanes {
		writes = append(writes, &volume.Request{
			Operation: volume.Write, Offset: number * block, Length: block, Buffer: pattern(block, seed^byte(number)),
		})
		reads = append(reads, &volume.Request{
			Operation: volume.Read, Offset: number * block, Length: block, Buffer: make([]byte, block),
		})
	}
	Do(t, lane, writes...)
	Do(t, lane, &volume.Request{Operation: volume.Flush})
	Do(t, lane, reads...)
	for i := range writes {
		if writes[i].Err != nil || reads[i].Err != nil || !bytes.Equal(writes[i].Buffer, reads[i].Buffer) {
			t.Fatalf("block at %d did not read back as it was written: %v, %v", writes[i].Offset, writes[i].Err, reads[i].Err)
		}
	}
}
