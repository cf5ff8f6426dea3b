package dmatest

import (
	"slices"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var deviceTests = []conformanceTest{
	{"TheListNamesWhatCanBeOpened", listed},
	{"AnUnknownOneIsNotFound", unknownDevice},
	{"LimitsAreToldBeforeAnythingIsCreated", capabilities},
	{"CannotBeClosedWhileSomethingUsesIt", deviceInUse},
	{"AClosedOneIsOfNoUse", closedDevice},
}

func listed(b *bench) {
	devices, err := b.config.Provider.Devices()
	b.must(err)
	for _, name := range []string{b.config.Device, b.config.OtherDevice} {
		if !slices.Contains(devices, name) {
			b.Errorf("device %q is not among %q", name, devices)
		}
	}
	if b.device.Name() != b.config.Device {
		b.Errorf("opened %q as %q", b.config.Device, b.device.Name())
	}
}

func unknownDevice(b *bench) {
	const nobody = "ff:1f.7"
	_, err := b.config.Provider.Capabilities(nobody)
	b.want(status.NotFound, "ask for capabilities", err)
	_, err = b.config.Provider.Open(nobody)
	b.want(status.NotFound, "open", err)
}

func capabilities(b *bench) {
	c, err := b.config.Provider.Capabilities(b.config.Device)
	b.must(err)
	if c != b.device.Capabilities() {
		b.Errorf("before opening %+v, after it %+v", c, b.device.Capabilities())
	}
	if !c.Memcpy || c.MaxBufferSize < 1<<20 || c.MaxBufferListLength < 1 || c.MaxJobs < 1 {
		b.Errorf("unusable capabilities: %+v", c)
	}
}

func deviceInUse(b *bench) {
	m := dma.NewMemoryMap()
	b.must(m.SetRegion(memory.Wrap(make([]byte, 8))), m.AddDevice(b.device), m.Start())
	b.want(status.InUse, "close a device with a memory map", b.device.Close())
	b.must(m.Stop())
	c := dma.NewContext()
	b.must(c.AddDevice(b.device), c.Start())
	b.want(status.InUse, "close a device with a running context", b.device.Close())
	b.must(c.Stop(), c.RemoveDevice(), c.Close(), m.Close())
	b.must(b.device.Close(), b.device.Close())
}

func closedDevice(b *bench) {
	b.must(b.device.Close())
	m := dma.NewMemoryMap()
	b.must(m.SetRegion(memory.Wrap(make([]byte, 8))), m.AddDevice(b.device))
	b.want(status.BadState, "start a memory map", m.Start())
	c := dma.NewContext()
	b.must(c.AddDevice(b.device))
	b.want(status.BadState, "start a context", c.Start())
	b.must(c.Close(), m.Close())
}
