package dmatest

import (
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var refusalTests = []conformanceTest{
	{"AJobHasAKnownType", badType},
	{"AJobHasBothBuffers", badBuffers},
	{"TheSourceSaysHowMuchAndTheDestinationHoldsIt", badLengths},
	{"LimitsOfTheDeviceHold", deviceLimits},
	{"TheDestinationMayBeWritten", readOnlyDestination},
	{"BothMemoryMapsHaveTheDeviceOfTheContext", foreignDevice},
}

// refusing is a lane and two buffers that a job can be made of.
type refusing struct {
	*lane
	inventory   *dma.Inventory
	memory      *dma.MemoryMap
	source      *dma.Buffer
	destination *dma.Buffer
}

func (b *bench) newRefusing() *refusing {
	b.Helper()
	r := &refusing{lane: b.newLane(4), inventory: b.inventory(200)}
	r.memory, _ = b.localMap(100, memory.LocalWrite)
	r.source, r.destination = b.byData(r.inventory, r.memory, 0, 10), b.byAddress(r.inventory, r.memory, 50, 10)
	b.Cleanup(func() { b.release(r.source, r.destination) })
	return r
}

// refuse submits a job that must be refused, and then one that must not.
func (r *refusing) refuse(code status.Code, what string, job dma.Job) {
	r.Helper()
	r.want(code, what, r.context.Submit(job))
	if r.context.InFlight() != 0 {
		r.Fatalf("%s: the job is in flight", what)
	}
	if event := r.do(r.source, r.destination); event.Err != nil {
		r.Errorf("after %s: %v", what, event.Err)
	}
	r.must(r.destination.ResetData())
}

func badType(b *bench) {
	r := b.newRefusing()
	for _, t := range []dma.JobType{0, 2, 255} {
		r.refuse(status.NotSupported, "submit a job of an unknown type", dma.Job{Type: t, Source: r.source, Destination: r.destination})
	}
}

func badBuffers(b *bench) {
	r := b.newRefusing()
	r.refuse(status.InvalidValue, "submit without a source", memcpy(nil, r.destination))
	r.refuse(status.InvalidValue, "submit without a destination", memcpy(r.source, nil))
	r.refuse(status.InvalidValue, "copy a buffer to itself", memcpy(r.source, r.source))
	list := b.chain(r.inventory, r.memory, 3)
	r.refuse(status.InvalidValue, "submit the middle of a list as source", memcpy(list[1], r.destination))
	r.refuse(status.InvalidValue, "submit the middle of a list as destination", memcpy(r.source, list[1]))
	r.refuse(status.InvalidValue, "submit a list as destination", memcpy(r.source, list[0]))
	b.release(list[0])
	gone := b.byData(r.inventory, r.memory, 0, 8)
	b.release(gone)
	r.refuse(status.BadState, "submit a source that went back", memcpy(gone, r.destination))
	r.refuse(status.BadState, "submit a destination that went back", memcpy(r.source, gone))
}

func badLengths(b *bench) {
	r := b.newRefusing()
	empty := b.byAddress(r.inventory, r.memory, 0, 10)
	r.refuse(status.InvalidValue, "copy nothing", memcpy(empty, r.destination))
	short := b.byAddress(r.inventory, r.memory, 50, 9)
	r.refuse(status.InvalidValue, "copy into too short a buffer", memcpy(r.source, short))
	full := b.byData(r.inventory, r.memory, 50, 50)
	r.refuse(status.InvalidValue, "copy into a buffer full of data", memcpy(r.source, full))
	b.must(full.SetData(91, 0))
	r.refuse(status.InvalidValue, "copy past the end of a buffer", memcpy(r.source, full))
	b.release(empty, short, full)
}

func deviceLimits(b *bench) {
	r := b.newRefusing()
	c := b.device.Capabilities()
	if c.MaxBufferListLength < 100 {
		list := b.chain(r.inventory, r.memory, c.MaxBufferListLength+1)
		wide := b.byAddress(r.inventory, r.memory, 0, 100)
		r.refuse(status.TooBig, "submit too long a list", memcpy(list[0], wide))
		b.must(list[0].Unchain(list[1]))
		b.release(list[0], list[1], wide)
	}
	if c.MaxBufferSize > 1<<30 {
		return
	}
	large, _ := b.localMap(int(c.MaxBufferSize)+1, memory.LocalWrite)
	x, y := b.byData(r.inventory, large, 0, c.MaxBufferSize+1), b.byAddress(r.inventory, large, 0, c.MaxBufferSize+1)
	r.refuse(status.TooBig, "copy more than a device can", memcpy(x, y))
	b.must(x.SetData(0, c.MaxBufferSize))
	more := b.byData(r.inventory, large, 0, 1)
	b.must(x.Chain(more))
	r.refuse(status.TooBig, "copy a list with more than a device can", memcpy(x, y))
	b.release(x, y)
}

func readOnlyDestination(b *bench) {
	r := b.newRefusing()
	for _, access := range []memory.Access{0, memory.PCIRead | memory.PCIWrite | memory.RemoteWrite} {
		m, bytes := b.localMap(10, access)
		y := b.byAddress(r.inventory, m, 0, 10)
		r.refuse(status.NotPermitted, "write to memory without the right", memcpy(r.source, y))
		b.release(y)
		for _, v := range bytes {
			if v != 0 {
				b.Error("it was written")
			}
		}
		x := b.byData(r.inventory, m, 0, 10)
		if event := r.do(x, r.destination); event.Err != nil {
			b.Errorf("reading local memory is always allowed, but gave %v", event.Err)
		}
		b.must(r.destination.ResetData())
		b.release(x)
	}
}

func foreignDevice(b *bench) {
	r := b.newRefusing()
	other := &bench{T: b.T, config: b.config, device: open(b.T, b.config, b.config.OtherDevice)}
	m, _ := other.localMap(10, memory.LocalWrite)
	x, y := b.byData(r.inventory, m, 0, 10), b.byAddress(r.inventory, m, 0, 10)
	r.refuse(status.NotPermitted, "copy from memory of another device", memcpy(x, r.destination))
	r.refuse(status.NotPermitted, "copy to memory of another device", memcpy(r.source, y))
	b.release(x, y)
}
