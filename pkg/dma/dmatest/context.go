// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"slices"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var deviceTests = []conformanceTest{
	{"TheListNamesWhatCanBeOpened", listed},
	{"AnUnknownDeviceIsNotFound", unknownDevice},
	{"LimitsAreKnownBeforeAnythingIsCreated", capabilities},
	{"CannotBeClosedWhileSomethingUsesIt", deviceInUse},
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
	const unknown = "ff:1f.7"
	_, err := b.config.Provider.Capabilities(unknown)
	b.want(status.NotFound, "ask for capabilities", err)
	_, err = b.config.Provider.Open(unknown)
	b.want(status.NotFound, "open", err)
}

func capabilities(b *bench) {
	c, err := b.config.Provider.Capabilities(b.config.Device)
	b.must(err)
	if c != b.device.Capabilities() {
		b.Errorf("capabilities are %+v before the device is opened, %+v afterwards", c,
			b.device.Capabilities())
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
	b.must(c.Stop(), b.device.Close(), b.device.Close())
	b.want(status.BadState, "start a memory map of a closed device", m.Start())
	b.want(status.BadState, "start a context of a closed device", c.Start())
	b.must(c.Close(), m.Close())
}

var contextTests = []conformanceTest{
	{"IsSetUpAndCleanedUpInTheGuidesOrder", guidesOrder},
	{"CanBeUsedAgainWhenStopped", contextAgain},
	{"RejectsWhatTheDeviceCannotDo", contextLimits},
	{"CannotBeDetachedByAnEventOrBeforeIt", earlyDetach},
	{"HasOneProgressEngine", oneEngine},
}

// guidesOrder takes every step in order. It also tries what a step does not allow yet, or any more.
func guidesOrder(b *bench) {
	m, _ := b.localMap(16, memory.LocalWrite)
	v := b.inventory(2)
	source, destination := b.byData(v, m, 0, 8), b.byAddress(v, m, 8, 8)
	c := dma.NewContext()
	rejectJob := func(when string) {
		b.want(status.BadState, "submit "+when, c.Submit(memcpy(source, destination)))
	}
	engine, err := progress.NewEngine(progress.Policy{})
	b.must(err)
	b.want(status.BadState, "start without a device", c.Start())
	b.want(status.NotFound, "remove a device that was not added", c.RemoveDevice())
	b.must(c.AddDevice(b.device))
	if c.State() != progress.Idle {
		b.Errorf("a new context is %v", c.State())
	}
	b.want(status.BadState, "attach before starting", c.Attach(engine, func(dma.Event) {}))
	b.want(status.BadState, "stop before starting", c.Stop())
	rejectJob("before starting")
	b.must(c.Start())
	if c.State() != progress.Running {
		b.Errorf("a started context is %v", c.State())
	}
	b.want(status.BadState, "start twice", c.Start())
	b.want(status.BadState, "add a device while running", c.AddDevice(b.device))
	b.want(status.BadState, "set the number of jobs while running", c.SetJobs(2))
	b.want(status.BadState, "detach before attaching", c.Detach())
	rejectJob("before attaching")
	b.must(c.Attach(engine, func(dma.Event) {}))
	b.want(status.InUse, "stop while attached", c.Stop())
	b.want(status.BadState, "close while running", c.Close())
	b.want(status.BadState, "remove the device while running", c.RemoveDevice())
	b.must(c.Detach())
	b.want(status.BadState, "close a context that is not stopped", c.Close())
	b.must(c.Stop())
	b.want(status.BadState, "stop twice", c.Stop())
	rejectJob("after stopping")
	b.must(c.RemoveDevice())
	b.want(status.NotFound, "remove the device twice", c.RemoveDevice())
	b.must(c.Close(), c.Close(), engine.Close())
	b.want(status.BadState, "add a device when closed", c.AddDevice(b.device))
	b.want(status.BadState, "set the number of jobs when closed", c.SetJobs(1))
	b.want(status.BadState, "start when closed", c.Start())
	b.release(source, destination)
}

func contextAgain(b *bench) {
	c := dma.NewContext()
	b.must(c.AddDevice(b.device), c.Start(), c.Stop(), c.SetJobs(1), c.Start(), c.Stop())
	b.want(status.AlreadyExist, "add a second device", c.AddDevice(b.device))
	b.must(c.RemoveDevice(), c.AddDevice(b.device), c.Start(), c.Stop(), c.Close())
}

func contextLimits(b *bench) {
	c := dma.NewContext()
	b.want(status.InvalidValue, "add no device", c.AddDevice(nil))
	b.want(status.InvalidValue, "allow no jobs", c.SetJobs(0))
	b.want(status.InvalidValue, "allow a negative number of jobs", c.SetJobs(-1))
	b.must(c.AddDevice(b.device), c.SetJobs(b.device.Capabilities().MaxJobs+1))
	b.want(status.TooBig, "start with too many jobs", c.Start())
	b.must(c.SetJobs(b.device.Capabilities().MaxJobs), c.Start(), c.Stop(), c.Close())
}

func earlyDetach(b *bench) {
	l := b.newLoop(1)
	b.must(l.context.Detach(), l.context.Attach(l.engine, func(event dma.Event) {
		b.want(status.BadState, "detach within an event", l.context.Detach())
		l.record(event)
	}))
	m, _ := b.localMap(16, memory.LocalWrite)
	v := b.inventory(2)
	source, destination := b.byData(v, m, 0, 8), b.byAddress(v, m, 8, 8)
	b.must(l.context.Submit(memcpy(source, destination)))
	if l.context.InFlight() != 1 {
		b.Errorf("%d jobs are in flight", l.context.InFlight())
	}
	b.want(status.InUse, "detach with a job in flight", l.context.Detach())
	l.await(1)
	if l.context.InFlight() != 0 {
		b.Errorf("%d jobs are in flight", l.context.InFlight())
	}
	b.release(source, destination)
}

func oneEngine(b *bench) {
	l := b.newLoop(1)
	other, err := progress.NewEngine(progress.Policy{})
	b.must(err)
	b.want(status.InUse, "attach to a second engine", l.context.Attach(other, l.record))
	b.must(l.context.Detach())
	b.want(status.InvalidValue, "attach to nothing", l.context.Attach(nil, l.record))
	b.want(status.InvalidValue, "attach without a handler", l.context.Attach(other, nil))
	b.must(l.context.Attach(other, l.record), l.context.Detach())
	b.must(other.Close(), l.context.Attach(l.engine, l.record))
}
