// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"bytes"
	"errors"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var memoryMapTests = []conformanceTest{
	{"NeedsMemoryAndDeviceToStart", startIncomplete},
	{"CannotBeConfiguredOnceStarted", mapIsFrozen},
	{"CanBeConfiguredAgainWhenStopped", mapAgain},
	{"HasOneMemoryRangeEachDeviceOnceAndKnownRights", badConfiguration},
	{"CannotBeStoppedWhileBuffersExist", mapInUse},
	{"RejectsEverythingWhenClosed", closedMap},
	{"CanBeMadeOfManyDevices", manyDevices},
}

func startIncomplete(b *bench) {
	m := dma.NewMemoryMap()
	b.want(status.BadState, "start without anything", m.Start())
	b.must(m.AddDevice(b.device))
	b.want(status.BadState, "start without memory", m.Start())
	b.must(m.RemoveDevice(b.device), m.SetRegion(memory.Wrap(make([]byte, 8))))
	b.want(status.BadState, "start without a device", m.Start())
	b.want(status.BadState, "stop before starting", m.Stop())
	b.must(m.AddDevice(b.device), m.Start())
	b.want(status.BadState, "start twice", m.Start())
	b.must(m.Close())
}

// wantFrozen checks that the map rejects every configuration.
func (b *bench) wantFrozen(m *dma.MemoryMap) {
	b.Helper()
	b.want(status.BadState, "set the memory", m.SetRegion(memory.Wrap(make([]byte, 8))))
	b.want(status.BadState, "add a device", m.AddDevice(b.device))
	b.want(status.BadState, "remove a device", m.RemoveDevice(b.device))
	b.want(status.BadState, "set access rights", m.SetAccess(0))
}

func mapIsFrozen(b *bench) {
	m, _ := b.localMap(8, memory.LocalWrite)
	b.wantFrozen(m)
	if m.Access() != memory.LocalWrite || m.Region().Len() != 8 || m.Imported() {
		b.Errorf("the map has %d bytes with rights %#x, imported %v", m.Region().Len(),
			uint32(m.Access()),
			m.Imported())
	}
}

func mapAgain(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(1)
	b.must(m.Stop(), m.SetAccess(memory.LocalWrite))
	_, err := v.ByData(m, m.Region().Base(), 8)
	b.want(status.BadState, "claim a buffer of a stopped map", err)
	b.must(m.Start())
	b.release(b.byData(v, m, 0, 8))
}

// unreachable is the handle of memory that no provider knows.
type unreachable struct{}

func (unreachable) Device() memory.Device { return memory.Device{} }

func badConfiguration(b *bench) {
	m := dma.NewMemoryMap()
	b.want(status.InvalidValue, "set no memory", m.SetRegion(nil))
	b.want(status.InvalidValue, "set memory without bytes", m.SetRegion(memory.Wrap(nil)))
	region := memory.NewOpaque(unreachable{}, 0, 8, nil)
	b.must(m.SetRegion(region))
	b.want(status.NotPermitted, "set the memory twice", m.SetRegion(memory.Wrap(make([]byte, 9))))
	if m.Region() != region {
		b.Error("the memory of the map has changed")
	}
	b.want(status.InvalidValue, "add no device", m.AddDevice(nil))
	b.want(status.NotFound, "remove a device that was not added", m.RemoveDevice(b.device))
	b.must(m.AddDevice(b.device))
	b.want(status.AlreadyExist, "add a device twice", m.AddDevice(b.device))
	b.must(m.RemoveDevice(b.device))
	b.want(status.NotFound, "remove a device twice", m.RemoveDevice(b.device))
	b.want(status.InvalidValue, "set unknown rights", m.SetAccess(1<<31))
	if !b.device.Capabilities().OpaqueMemory {
		b.must(m.AddDevice(b.device))
		b.want(status.NotSupported, "start with memory that the device cannot reach", m.Start())
	}
}

func mapInUse(b *bench) {
	m, _ := b.localMap(8, 0)
	v := b.inventory(2)
	first, second := b.byData(v, m, 0, 8), b.byAddress(v, m, 4, 4)
	for _, buffer := range []*dma.Buffer{first, second} {
		b.want(status.InUse, "stop a map with buffers", m.Stop())
		b.want(status.InUse, "close a map with buffers", m.Close())
		b.release(buffer)
	}
	if m.Buffers() != 0 {
		b.Errorf("%d buffers are left", m.Buffers())
	}
	b.must(m.Stop())
}

func closedMap(b *bench) {
	m, _ := b.localMap(8, 0)
	b.must(m.Close(), m.Close())
	b.wantFrozen(m)
	b.want(status.BadState, "start a closed map", m.Start())
	b.want(status.BadState, "stop a closed map", m.Stop())
	_, err := b.inventory(1).ByData(m, m.Region().Base(), 1)
	b.want(status.BadState, "claim a buffer of a closed map", err)
}

func manyDevices(b *bench) {
	other := open(b.T, b.config, b.config.OtherDevice)
	bytes := make([]byte, 64)
	m := dma.NewMemoryMap()
	b.must(m.SetRegion(memory.Wrap(bytes)), m.AddDevice(b.device), m.AddDevice(other),
		m.SetAccess(memory.LocalWrite), m.Start())
	b.closeLater(m)
	v := b.inventory(2)
	pattern(bytes[:8], 1)
	for i, device := range []dma.Device{b.device, other} {
		l := (&bench{T: b.T, config: b.config, device: device}).newLoop(1)
		source, destination := b.byData(v, m, 0, 8), b.byAddress(v, m, uint64(8+8*i), 8)
		if event := l.do(source, destination); event.Err != nil ||
			string(bytes[8+8*i:][:8]) != string(bytes[:8]) {
			b.Errorf("device %s: copied %x, error %v", device.Name(), bytes[8+8*i:][:8], event.Err)
		}
		b.release(source, destination)
	}
}

var importTests = []conformanceTest{
	{"MemoryOfPeersIsCopiedToAndFrom", betweenSides},
	{"RightsOfTheExportHold", exportedRights},
	{"AnImportedMapIsStartedAndFixed", importedMap},
	{"MissingMemoryFailsOnlyTheJob", faults},
}

const readWrite = memory.PCIRead | memory.PCIWrite

// importMap returns memory of a peer, and its map on this side. It skips the test if the device
// cannot import memory.
func (b *bench) importMap(length uint64,
	access memory.Access) (owner []byte, imported *dma.MemoryMap) {
	b.Helper()
	if !b.device.Capabilities().ImportedMemory {
		_, err := dma.ImportMemoryMap(b.device, memory.Wrap(make([]byte, 8)), access)
		testkit.SkipIfNotSupported(b, "import memory map", err)
		b.Fatal("a map was imported, although ImportedMemory is false")
	}
	o, i := b.config.Import(b.T, length, access)
	m, err := dma.ImportMemoryMap(b.device, i, access)
	b.must(err)
	b.closeLater(m)
	return o.Bytes(), m
}

// betweenSides copies from a peer, to it, and to another peer.
func betweenSides(b *bench) {
	const size = 1<<20 + 17
	l := b.newLoop(1)
	peer, remote := b.importMap(size, readWrite)
	other, distant := b.importMap(size, readWrite)
	local, own := b.localMap(size, memory.LocalWrite)
	v := b.inventory(2)
	for i, c := range []struct {
		from, to            *dma.MemoryMap
		source, destination []byte
	}{
		{remote, local, peer, own}, {local, remote, own, peer}, {remote, distant, peer, other},
	} {
		pattern(c.source, i)
		x, y := b.byData(v, c.from, 0, size), b.byAddress(v, c.to, 0, size)
		event := l.do(x, y)
		if equal := bytes.Equal(c.source, c.destination); event.Err != nil || !equal {
			b.Errorf("copy %d: event %+v, equal %v", i, event, equal)
		}
		b.release(x, y)
	}
}

func exportedRights(b *bench) {
	r := b.newRejecting()
	for _, c := range []struct {
		access      memory.Access
		read, write bool
	}{
		{memory.PCIRead, true, false}, {readWrite, true, true},
		{memory.RemoteRead | memory.RemoteWrite | memory.LocalWrite, false, false},
	} {
		_, m := b.importMap(100, c.access)
		x, y := b.byData(r.inventory, m, 0, 10), b.byAddress(r.inventory, m, 0, 10)
		if !c.read {
			r.reject(status.NotPermitted, "read without the right", memcpy(x, r.destination))
		}
		if !c.write {
			r.reject(status.NotPermitted, "write without the right", memcpy(r.source, y))
		}
		if c.read {
			b.must(r.do(x, r.destination).Err, r.destination.ResetData())
		}
		if c.write {
			b.must(r.do(r.source, y).Err)
		}
		b.release(x, y)
	}
}

func importedMap(b *bench) {
	_, m := b.importMap(100, readWrite)
	if !m.Imported() || m.Access() != readWrite || m.Region().Len() != 100 {
		b.Errorf("%d bytes with rights %#x, imported %v", m.Region().Len(), uint32(m.Access()),
			m.Imported())
	}
	_, err := dma.ImportMemoryMap(b.device, nil, readWrite)
	b.want(status.InvalidValue, "import nothing", err)
	_, err = dma.ImportMemoryMap(nil, m.Region(), readWrite)
	b.want(status.InvalidValue, "import for no device", err)
	b.wantFrozen(m)
	b.want(status.BadState, "start an imported map", m.Start())
	b.must(m.Stop())
	b.wantFrozen(m)
}

// faults copies to memory that its owner has made inaccessible, an error that occurs only in the
// middle of a job.
func faults(b *bench) {
	if b.config.Faulty == nil {
		b.Skip("Config.Faulty is nil: such memory cannot be made for the provider")
	}
	const size = 1 << 20
	l := b.newLoop(2)
	region := b.config.Faulty(b.T, size)
	bad, err := dma.ImportMemoryMap(b.device, region, readWrite)
	b.must(err)
	b.closeLater(bad)
	local, _ := b.localMap(2*size, memory.LocalWrite)
	v := b.inventory(3)
	x, y := b.byData(v, local, 0, size), b.byAddress(v, bad, 0, size)
	event := l.do(x, y)
	if !errors.Is(event.Err, status.IOFailed) || event.Length != 0 || event.Type != dma.Memcpy {
		b.Errorf("event %+v", event)
	}
	if _, length := y.Data(); length != 0 {
		b.Errorf("a failed job left %d bytes of data in its destination", length)
	}
	z := b.byAddress(v, local, size, size)
	if event := l.do(x, z); event.Err != nil {
		b.Errorf("the next job failed: %v", event.Err)
	}
	b.release(x, y, z)
}
