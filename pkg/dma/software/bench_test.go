// SPDX-License-Identifier: Apache-2.0

package software_test

import (
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// The benchmarks copy, block by block, more memory than caches hold: with the CPU alone, and with
// several jobs in flight.
const benchMemory = 256 << 20

var benchBlocks = []uint64{4 << 10, 64 << 10, 1 << 20, 2 << 20}

func benchRegion(b *testing.B) *memory.Region {
	b.Helper()
	r, err := memory.Alloc("bench", benchMemory)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	if err := r.Prefault(); err != nil {
		b.Fatal(err)
	}
	return r
}

func BenchmarkMemmove(b *testing.B) {
	source, destination := benchRegion(b).Bytes(), benchRegion(b).Bytes()
	for _, block := range benchBlocks {
		b.Run(fmt.Sprintf("%dKiB", block>>10), func(b *testing.B) {
			b.SetBytes(int64(block))
			offset := uint64(0)
			for b.Loop() {
				copy(destination[offset:offset+block], source[offset:offset+block])
				offset = (offset + block) % benchMemory
			}
		})
	}
}

func BenchmarkCopy(b *testing.B) {
	source, destination := benchRegion(b), benchRegion(b)
	twin, imported := exported(b, benchMemory, memory.PCIRead|memory.PCIWrite)
	if err := twin.Prefault(); err != nil {
		b.Fatal(err)
	}
	for _, depth := range []int{1, 8} {
		for _, block := range benchBlocks {
			b.Run(fmt.Sprintf("local/depth=%d/%dKiB", depth, block>>10), func(b *testing.B) {
				benchmarkJobs(b, source, destination, depth, block)
			})
		}
	}
	b.Run("imported/depth=8/1024KiB", func(b *testing.B) {
		benchmarkJobs(b, imported, destination,
			8, 1<<20)
	})
}

// loop is a running context with everything that a job needs.
type loop struct {
	b           *testing.B
	context     *dma.Context
	engine      *progress.Engine
	inventory   *dma.Inventory
	source      *dma.MemoryMap
	destination *dma.MemoryMap
	device      dma.Device
}

func newLoop(b *testing.B, source, destination *memory.Region, depth int) *loop {
	b.Helper()
	device, err := software.New(software.Options{}).Open(software.DefaultDevice)
	must(b, err)
	l := &loop{b: b, context: dma.NewContext(), destination: dma.NewMemoryMap(), device: device}
	if source.Untrusted() {
		l.source, err = dma.ImportMemoryMap(device, source, memory.PCIRead)
		must(b, err)
	} else {
		l.source = dma.NewMemoryMap()
		must(b, l.source.SetRegion(source), l.source.AddDevice(device), l.source.Start())
	}
	must(b, l.destination.SetRegion(destination), l.destination.AddDevice(device),
		l.destination.SetAccess(memory.LocalWrite), l.destination.Start())
	l.inventory, err = dma.NewInventory(2 * depth)
	must(b, err, l.inventory.Start())
	l.engine, err = progress.NewEngine(progress.Policy{})
	must(b, err, l.context.AddDevice(device), l.context.SetJobs(depth), l.context.Start())
	return l
}

func (l *loop) close() {
	must(l.b, l.context.Detach(), l.context.Stop(), l.context.Close(), l.engine.Close())
	must(l.b, l.inventory.Close(), l.source.Close(), l.destination.Close(), l.device.Close())
}

func benchmarkJobs(b *testing.B, source, destination *memory.Region, depth int, block uint64) {
	l := newLoop(b, source, destination, depth)
	defer l.close()
	type job struct{ x, y *dma.Buffer }
	jobs := make([]job, depth)
	free := make([]uint64, 0, depth)
	for i := range jobs {
		free = append(free, uint64(i))
	}
	must(b, l.context.Attach(l.engine, func(e dma.Event) {
		j := &jobs[e.UserData]
		_, err := j.x.RemoveReference()
		_, err2 := j.y.RemoveReference()
		must(b, e.Err, err, err2)
		free = append(free, e.UserData)
	}))
	b.SetBytes(int64(block))
	b.ReportAllocs()
	offset := uint64(0)
	for b.Loop() {
		for len(free) == 0 {
			l.engine.Idle(l.engine.Progress())
		}
		slot := free[len(free)-1]
		free = free[:len(free)-1]
		x, err := l.inventory.ByData(l.source, l.source.Region().Base()+offset, block)
		y, err2 := l.inventory.ByAddress(l.destination, l.destination.Region().Base()+offset,
			block)
		must(b, err, err2)
		jobs[slot] = job{x, y}
		must(b, l.context.Submit(dma.Job{Type: dma.Memcpy, Source: x, Destination: y,
			UserData: slot}))
		offset = (offset + block) % benchMemory
	}
	for l.context.InFlight() > 0 {
		l.engine.Idle(l.engine.Progress())
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
