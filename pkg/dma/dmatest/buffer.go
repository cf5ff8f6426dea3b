// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"math"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var inventoryTests = []conformanceTest{
	{"HoldsAsManyBuffersAsItWasCreatedWith", elements},
	{"HasBuffersFromStartToStop", inventoryStates},
	{"BuffersLieWithinTheirMemoryMap", bounds},
}

func elements(b *bench) {
	for _, impossible := range []int{0, -1, math.MaxInt} {
		_, err := dma.NewInventory(impossible)
		b.want(status.InvalidValue, "create an impossible inventory", err)
	}
	m, _ := b.localMap(8, 0)
	v := b.inventory(2)
	first, second := b.byData(v, m, 0, 8), b.byData(v, m, 0, 8)
	_, err := v.ByData(m, m.Region().Base(), 8)
	b.want(status.NoMemory, "claim one buffer too many", err)
	if v.Elements() != 2 || v.FreeElements() != 0 {
		b.Errorf("%d elements, %d free", v.Elements(), v.FreeElements())
	}
	b.release(first)
	b.release(b.byAddress(v, m, 0, 8), second)
	if v.FreeElements() != 2 || m.Buffers() != 0 {
		b.Errorf("%d elements are free, the map has %d buffers", v.FreeElements(), m.Buffers())
	}
}

func inventoryStates(b *bench) {
	m, _ := b.localMap(8, 0)
	v, err := dma.NewInventory(1)
	b.must(err)
	_, err = v.ByData(m, m.Region().Base(), 8)
	b.want(status.BadState, "claim a buffer before starting", err)
	b.want(status.BadState, "stop before starting", v.Stop())
	b.must(v.Start())
	b.want(status.BadState, "start twice", v.Start())
	_, err = v.ByData(nil, 0, 8)
	b.want(status.InvalidValue, "claim a buffer without a map", err)
	b.must(v.Stop())
	_, err = v.ByAddress(m, m.Region().Base(), 8)
	b.want(status.BadState, "claim a buffer after stopping", err)
	b.must(v.Start())
	buffer := b.byData(v, m, 0, 8)
	b.want(status.InUse, "stop with a claimed buffer", v.Stop())
	b.want(status.InUse, "close with a claimed buffer", v.Close())
	b.release(buffer)
	b.must(v.Close(), v.Close())
	b.want(status.BadState, "start when closed", v.Start())
}

func bounds(b *bench) {
	m, _ := b.localMap(100, 0)
	v := b.inventory(1)
	base := m.Region().Base()
	for _, r := range []struct{ offset, length uint64 }{
		{0, 101}, {100, 1}, {101, 0}, {99, 2}, {math.MaxUint64, 1}, {1, math.MaxUint64},
		{math.MaxUint64, math.MaxUint64}, {-base, 1}, {math.MaxUint64 - base, 1},
	} {
		_, err := v.ByData(m, base+r.offset, r.length)
		b.want(status.InvalidValue, "claim data outside the map", err)
		_, err = v.ByAddress(m, base+r.offset, r.length)
		b.want(status.InvalidValue, "claim a range outside the map", err)
	}
	if m.Buffers() != 0 || v.FreeElements() != 1 {
		b.Errorf("rejected buffers are counted: %d of the map, %d free", m.Buffers(),
			v.FreeElements())
	}
	for _, r := range []struct{ offset, length uint64 }{{0, 100}, {99, 1}, {100, 0}, {0, 0}} {
		buffer := b.byData(v, m, r.offset, r.length)
		if address, length := buffer.Data(); address != base+r.offset || length != r.length ||
			buffer.Memory() != m {
			b.Errorf("data of %d bytes at offset %d became %d at %d", r.length, r.offset, length,
				address-base)
		}
		b.release(buffer)
	}
}

var bufferTests = []conformanceTest{
	{"DataIsARangeWithinTheBuffer", dataWindow},
	{"IsReleasedWithTheLastReference", references},
	{"DroppingTheHeadReleasesTheWholeList", releaseList},
	{"OnlyTheHeadOfAListHasReferences", onlyTheHead},
	{"ListsAreChainedAndUnchained", chains},
	{"NoBufferIsInTwoPlaces", badChains},
	{"ADuplicateIsASeparateBuffer", duplicates},
}

func dataWindow(b *bench) {
	m, _ := b.localMap(100, 0)
	v := b.inventory(1)
	buffer := b.byAddress(v, m, 10, 50)
	base := m.Region().Base()
	if address, length := buffer.Range(); address != base+10 || length != 50 {
		b.Errorf("the buffer has %d bytes at %d", length, address)
	}
	if address, length := buffer.Data(); address != base+10 || length != 0 {
		b.Errorf("an empty buffer has %d bytes at %d", length, address)
	}
	b.must(buffer.SetData(base+20, 40))
	for _, r := range []struct{ offset, length uint64 }{
		{9, 1}, {10, 51}, {60, 1}, {61, 0}, {20, math.MaxUint64}, {math.MaxUint64, 1},
	} {
		b.want(status.InvalidValue, "set data outside the buffer", buffer.SetData(base+r.offset,
			r.length))
	}
	if address, length := buffer.Data(); address != base+20 || length != 40 {
		b.Errorf("the data is %d bytes at %d", length, address)
	}
	b.must(buffer.ResetData())
	if address, length := buffer.Data(); address != base+20 || length != 0 {
		b.Errorf("after a reset the data is %d bytes at %d", length, address)
	}
	b.release(buffer)
}

func references(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(1)
	buffer := b.byData(v, m, 0, 8)
	for want := 2; want <= math.MaxUint16; want++ {
		if n, err := buffer.AddReference(); n != want || err != nil || buffer.References() != want {
			b.Fatalf("%d references, AddReference returned %d, error %v", want, n, err)
		}
	}
	_, err := buffer.AddReference()
	b.want(status.TooBig, "add a reference too many", err)
	for want := math.MaxUint16 - 1; want > 0; want-- {
		if n, err := buffer.RemoveReference(); n != want || err != nil || v.FreeElements() != 0 {
			b.Fatalf("%d references, %d free elements, error %v", n, v.FreeElements(), err)
		}
	}
	b.release(buffer)
	if v.FreeElements() != 1 {
		b.Error("the buffer was not released")
	}
	_, err = buffer.RemoveReference()
	b.want(status.BadState, "drop a reference too many", err)
	_, err = buffer.AddReference()
	b.want(status.BadState, "add a reference to a released buffer", err)
	b.want(status.BadState, "set data of a released buffer", buffer.SetData(0, 1))
}

// chain returns a list of count buffers of one byte each.
func (b *bench) chain(v *dma.Inventory, m *dma.MemoryMap, count int) []*dma.Buffer {
	b.Helper()
	var all []*dma.Buffer
	for i := range count {
		all = append(all, b.byData(v, m, uint64(i), 1))
	}
	for _, next := range all[1:] {
		b.must(all[0].Chain(next))
	}
	return all
}

func releaseList(b *bench) {
	m, _ := b.localMap(8, 0)
	v, w := b.inventory(3), b.inventory(1)
	list := b.chain(v, m, 3)
	b.must(list[0].Chain(b.byData(w, m, 0, 8)))
	b.release(list[0])
	if v.FreeElements() != 3 || w.FreeElements() != 1 || m.Buffers() != 0 {
		b.Errorf("%d and %d elements are free, the map has %d buffers", v.FreeElements(),
			w.FreeElements(), m.Buffers())
	}
}

func onlyTheHead(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(3)
	list := b.chain(v, m, 3)
	for _, member := range list[1:] {
		_, err := member.RemoveReference()
		b.want(status.NotPermitted, "drop a reference to a buffer behind the head", err)
		_, err = member.AddReference()
		b.want(status.NotPermitted, "add a reference to a buffer behind the head", err)
		if member.References() != 0 || member.ListLength() != 0 {
			b.Errorf("a member has %d references and a list of %d", member.References(),
				member.ListLength())
		}
	}
	if v.FreeElements() != 0 {
		b.Error("a member was released")
	}
	b.release(list[0])
}

func chains(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(5)
	first, second := b.chain(v, m, 3), b.chain(v, m, 2)
	b.must(first[0].Chain(second[0]))
	count := 0
	for e := first[0]; e != nil; e = e.Next() {
		count++
	}
	if count != 5 || first[0].ListLength() != 5 {
		b.Errorf("the list has %d buffers, but ListLength is %d", count, first[0].ListLength())
	}
	b.must(first[0].Unchain(first[2]))
	if first[0].ListLength() != 2 || first[2].ListLength() != 3 || first[2].References() != 1 ||
		first[1].Next() != nil {
		b.Errorf("the lists have %d and %d buffers", first[0].ListLength(), first[2].ListLength())
	}
	b.must(first[2].Chain(first[0]))
	b.release(first[2])
	if v.FreeElements() != 5 {
		b.Errorf("%d elements are free", v.FreeElements())
	}
}

func badChains(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(6)
	list, other := b.chain(v, m, 3), b.byData(v, m, 0, 8)
	b.want(status.InvalidValue, "chain a list to itself", list[0].Chain(list[0]))
	b.want(status.InvalidValue, "chain a list to its own middle", list[0].Chain(list[1]))
	b.want(status.InvalidValue, "chain to the middle of a list", list[1].Chain(other))
	b.want(status.InvalidValue, "chain the middle of a list", other.Chain(list[2]))
	b.want(status.InvalidValue, "chain nothing", other.Chain(nil))
	b.want(status.InvalidValue, "unchain what is not in the list", list[0].Unchain(other))
	b.want(status.InvalidValue, "unchain the head", list[0].Unchain(list[0]))
	b.want(status.InvalidValue, "unchain from the middle", list[1].Unchain(list[2]))
	if _, err := other.AddReference(); err != nil {
		b.Fatal(err)
	}
	b.want(status.InUse, "chain a list with two references", list[0].Chain(other))
	if _, err := other.RemoveReference(); err != nil {
		b.Fatal(err)
	}
	gone := b.byData(v, m, 0, 8)
	b.release(gone)
	b.want(status.BadState, "chain a released buffer", list[0].Chain(gone))
	b.release(list[0], other)
}

func duplicates(b *bench) {
	m, _ := b.localMap(100, 0)
	v := b.inventory(4)
	list := b.chain(v, m, 2)
	base := m.Region().Base()
	b.must(list[0].SetData(base+1, 0))
	twin, err := v.Duplicate(list[0])
	b.must(err)
	if address, length := twin.Data(); address != base+1 || length != 0 ||
		twin.ListLength() != 1 || twin.Next() != nil || twin.References() != 1 {
		b.Errorf("the duplicate has %d bytes at %d and a list of %d", length, address,
			twin.ListLength())
	}
	b.must(twin.SetData(base, 1))
	if address, _ := list[0].Data(); address != base+1 {
		b.Error("a change of the duplicate changed the original")
	}
	b.release(twin, list[0])
}
