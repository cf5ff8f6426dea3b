package dmatest

import (
	"math"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var inventoryTests = []conformanceTest{
	{"HoldsAsManyBuffersAsItWasCreatedWith", elements},
	{"GivesNothingUnlessStarted", inventoryStates},
	{"HoldsBuffersOfAnyMemoryMap", oneInventory},
	{"BuffersLieWithinTheirMemoryMap", bounds},
	{"TakingABufferAllocatesNothing", takeAllocations},
	{"CannotBeStoppedWhileBuffersAreOut", inventoryInUse},
}

func elements(b *bench) {
	for _, impossible := range []int{0, -1, math.MaxInt} {
		_, err := dma.NewInventory(impossible)
		b.want(status.InvalidValue, "create an impossible inventory", err)
	}
	m, _ := b.localMap(8, 0)
	v := b.inventory(2)
	first, second := b.byData(v, m, 0, 8), b.byData(v, m, 0, 8)
	_, err := v.ByData(m, 0, 8)
	b.want(status.NoMemory, "take one buffer too many", err)
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
	_, err = v.ByData(m, 0, 8)
	b.want(status.BadState, "take a buffer before starting", err)
	b.want(status.BadState, "stop before starting", v.Stop())
	b.must(v.Start())
	b.want(status.BadState, "start twice", v.Start())
	_, err = v.ByData(nil, 0, 8)
	b.want(status.InvalidValue, "take a buffer of nothing", err)
	b.must(v.Stop())
	_, err = v.ByAddress(m, 0, 8)
	b.want(status.BadState, "take a buffer after stopping", err)
	b.must(v.Start())
	b.release(b.byAddress(v, m, 0, 8))
	b.must(v.Close(), v.Close())
	b.want(status.BadState, "start when closed", v.Start())
}

func oneInventory(b *bench) {
	first, _ := b.localMap(8, 0)
	second, _ := b.localMap(8, 0)
	v := b.inventory(2)
	x, y := b.byData(v, first, 0, 8), b.byData(v, second, 0, 8)
	if x.Memory() != first || y.Memory() != second {
		b.Error("buffers belong to other maps than they were taken of")
	}
	b.release(x, y)
}

func bounds(b *bench) {
	m, _ := b.localMap(100, 0)
	v := b.inventory(1)
	for _, r := range []struct{ address, length uint64 }{
		{0, 101}, {100, 1}, {101, 0}, {99, 2}, {math.MaxUint64, 1}, {1, math.MaxUint64}, {math.MaxUint64, math.MaxUint64},
	} {
		_, err := v.ByData(m, r.address, r.length)
		b.want(status.InvalidValue, "take data outside the map", err)
		_, err = v.ByAddress(m, r.address, r.length)
		b.want(status.InvalidValue, "take a range outside the map", err)
	}
	if m.Buffers() != 0 || v.FreeElements() != 1 {
		b.Errorf("refused buffers are counted: %d of the map, %d free", m.Buffers(), v.FreeElements())
	}
	for _, r := range []struct{ address, length uint64 }{{0, 100}, {99, 1}, {100, 0}, {0, 0}} {
		buffer := b.byData(v, m, r.address, r.length)
		if address, length := buffer.Data(); address != r.address || length != r.length {
			b.Errorf("data of %d bytes at %d became %d at %d", r.length, r.address, length, address)
		}
		b.release(buffer)
	}
}

func takeAllocations(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(2)
	if n := testing.AllocsPerRun(100, func() { b.release(b.byData(v, m, 0, 8), b.byAddress(v, m, 0, 8)) }); n != 0 {
		b.Errorf("%v allocations", n)
	}
}

func inventoryInUse(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(2)
	buffer := b.byData(v, m, 0, 8)
	b.want(status.InUse, "stop an inventory with a buffer out", v.Stop())
	b.want(status.InUse, "close an inventory with a buffer out", v.Close())
	b.release(buffer)
	b.must(v.Stop())
}
