// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func drawIdentity(t *rapid.T, label string) identity {
	return identity{
		run:        rapid.Uint64().Draw(t, label+" run"),
		offset:     rapid.Uint64().Draw(t, label+" offset"),
		generation: rapid.Uint32().Draw(t, label+" generation"),
	}
}

func TestABlockHoldsItsIdentityAndNoOther(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		data := make([]byte, rapid.SampledFrom([]int{128, 512, 4096}).Draw(t, "size"))
		id, other := drawIdentity(t, "one"), drawIdentity(t, "other")
		id.stamp(data)
		if !id.holds(data) {
			t.Fatal("a block does not hold its own identity")
		}
		if other != id && other.holds(data) {
			t.Fatal("a block holds another identity")
		}
		data[rapid.IntRange(0, len(data)-1).Draw(t, "position")] ^= 1 << rapid.IntRange(0,
			7).Draw(t, "bit")
		if id.holds(data) {
			t.Fatal("a flipped bit is not noticed")
		}
	})
}

func TestStampingLeavesNothingOfWhatWasThere(t *testing.T) {
	id := identity{run: 1, offset: 4096, generation: 2}
	zeroed, used := make([]byte, 512), bytes.Repeat([]byte{0xff}, 512)
	id.stamp(zeroed)
	id.stamp(used)
	if !bytes.Equal(zeroed, used) {
		t.Error("the block depends on what was in the buffer")
	}
}

func FuzzAnyWrongBlockIsClassified(f *testing.F) {
	want := identity{run: 1, offset: 4096, generation: 3}
	good := make([]byte, 512)
	want.stamp(good)
	f.Add(good[:100])
	f.Add(make([]byte, 512))
	f.Add(bytes.Repeat([]byte(magic), 64))
	f.Fuzz(func(t *testing.T, prefix []byte) {
		data := bytes.Clone(good)
		copy(data, prefix)
		if want.holds(data) {
			return
		}
		finding := classify(data, want)
		if finding.Kind == "" || finding.Detail == "" ||
			finding.FirstWrongByte > finding.LastWrongByte {
			t.Errorf("finding is %+v", finding)
		}
		if finding.Kind == Torn && (finding.TornAtByte <= 0 || finding.TornAtByte >= len(data)) {
			t.Errorf("a block is torn at byte %d", finding.TornAtByte)
		}
	})
}

func BenchmarkStampBlock(b *testing.B) {
	data := make([]byte, 4096)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		identity{run: 1, offset: 4096, generation: 1}.stamp(data)
	}
}

func BenchmarkCheckBlock(b *testing.B) {
	data := make([]byte, 4096)
	id := identity{run: 1, offset: 4096, generation: 1}
	id.stamp(data)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if !id.holds(data) {
			b.Fatal("the block is wrong")
		}
	}
}
