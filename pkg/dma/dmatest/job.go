// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var jobTests = []conformanceTest{
	{"CopiesBetweenSeparateMemoryMaps", copies},
	{"CopiesExactlyTheDataOfTheSource", exactly},
	{"CopiesAListIntoOneBuffer", gathers},
	{"AppendsToTheDataOfTheDestination", appends},
	{"IsDoneOnlyOnceItsEventIsDelivered", asynchronous},
	{"BuffersStayAsTheyAreUntilTheEvent", buffersHeld},
	{"ManyAreInFlight", manyInFlight},
	{"EventsMaySubmitMore", submitInEvent},
	{"AllocatesNothing", jobAllocations},
	{"ThreadsHaveTheirOwnContexts", threads},
}

func copies(b *bench) {
	l := b.newLoop(2)
	largest := int(b.device.Capabilities().MaxBufferSize)
	for _, size := range []int{
		1, 2, 63, 64, 4095, 4096, 4097, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1 << 20,
		min(largest, 16<<20),
	} {
		from, source := b.localMap(size+3, 0)
		to, destination := b.localMap(size+5, memory.LocalWrite)
		pattern(source, size)
		v := b.inventory(2)
		x, y := b.byData(v, from, 3, uint64(size)), b.byAddress(v, to, 2, uint64(size))
		event := l.do(x, y)
		if event.Err != nil || event.Length != uint64(size) {
			b.Errorf("%d bytes: event %+v", size, event)
		}
		if !bytes.Equal(destination[2:2+size], source[3:]) {
			b.Errorf("%d bytes arrived changed", size)
		}
		if destination[0] != 0 || destination[1] != 0 || !bytes.Equal(destination[2+size:],
			[]byte{0, 0, 0}) {
			b.Errorf("%d bytes were written beside the destination", size)
		}
		b.release(x, y)
	}
}

// exactly copies a part of a buffer into a destination with more room.
func exactly(b *bench) {
	l := b.newLoop(1)
	from, source := b.localMap(100, 0)
	to, destination := b.localMap(100, memory.LocalWrite)
	pattern(source, 1)
	v := b.inventory(2)
	x, y := b.byAddress(v, from, 0, 100), b.byAddress(v, to, 0, 100)
	b.must(x.SetData(from.Region().Base()+40, 7))
	if event := l.do(x, y); event.Err != nil || event.Length != 7 {
		b.Errorf("event %+v", event)
	}
	if !bytes.Equal(destination[:7], source[40:47]) || !bytes.Equal(destination[7:],
		make([]byte, 93)) {
		b.Errorf("copied %x", destination)
	}
	if address, length := y.Data(); address != to.Region().Base() || length != 7 {
		b.Errorf("the destination has %d bytes of data at %d", length, address)
	}
	b.release(x, y)
}

func gathers(b *bench) {
	l := b.newLoop(1)
	count := min(b.device.Capabilities().MaxBufferListLength, 10)
	v := b.inventory(count + 1)
	var head *dma.Buffer
	var want []byte
	for i := range count {
		from, source := b.localMap(10*i+5, 0)
		pattern(source, i)
		next := b.byData(v, from, uint64(i), uint64(9*i+5))
		want = append(want, source[i:]...)
		if head == nil {
			head = next
			continue
		}
		b.must(head.Chain(next))
	}
	to, destination := b.localMap(len(want), memory.LocalWrite)
	y := b.byAddress(v, to, 0, uint64(len(want)))
	if event := l.do(head, y); event.Err != nil || event.Length != uint64(len(want)) ||
		!bytes.Equal(destination, want) {
		b.Errorf("event %+v for %d bytes, equal %v", event, len(want), bytes.Equal(destination,
			want))
	}
	b.release(head, y)
	if v.FreeElements() != count+1 {
		b.Errorf("%d of %d elements are free", v.FreeElements(), count+1)
	}
}

func appends(b *bench) {
	l := b.newLoop(1)
	from, source := b.localMap(4, 0)
	to, destination := b.localMap(10, memory.LocalWrite)
	v := b.inventory(2)
	y := b.byAddress(v, to, 0, 10)
	b.must(y.SetData(to.Region().Base()+1, 0))
	for _, text := range []string{"abcd", "efgh"} {
		copy(source, text)
		x := b.byData(v, from, 0, 4)
		l.do(x, y)
		b.release(x)
	}
	if _, length := y.Data(); string(destination) != "\x00abcdefgh\x00" || length != 8 {
		b.Errorf("%d bytes of data, memory %q", length, destination)
	}
	x := b.byData(v, from, 0, 4)
	b.want(status.InvalidValue, "append more than there is room for",
		l.context.Submit(memcpy(x, y)))
	b.must(y.ResetData())
	l.do(x, y)
	if string(destination) != "\x00efghefgh\x00" {
		b.Errorf("after a reset the memory is %q", destination)
	}
	b.release(x, y)
}

func asynchronous(b *bench) {
	l := b.newLoop(1)
	m, bytes := b.localMap(2<<20, memory.LocalWrite)
	v := b.inventory(2)
	x, y := b.byData(v, m, 0, 1<<20), b.byAddress(v, m, 1<<20, 1<<20)
	bytes[1<<20-1] = 1
	job := dma.Job{Type: dma.Memcpy, Source: x, Destination: y, UserData: 1<<63 | 77}
	b.must(l.context.Submit(job))
	if len(l.events) > 0 {
		b.Error("an event was delivered without progress")
	}
	if _, length := y.Data(); length != 0 {
		b.Error("the destination has data before the event")
	}
	event := l.await(1)[0]
	if event != (dma.Event{Type: dma.Memcpy, UserData: 1<<63 | 77, Length: 1 << 20}) ||
		bytes[2<<20-1] != 1 {
		b.Errorf("event %+v", event)
	}
	b.release(x, y)
}

func buffersHeld(b *bench) {
	l := b.newLoop(3)
	m, text := b.localMap(32, memory.LocalWrite)
	copy(text, "ab")
	v := b.inventory(5)
	list, y, z := b.chain(v, m, 2), b.byAddress(v, m, 8, 8), b.byAddress(v, m, 16, 8)
	free := b.byData(v, m, 0, 1)
	// A source serves several jobs at a time, a destination only one.
	b.must(l.context.Submit(memcpy(list[0], y)), l.context.Submit(memcpy(list[0], z)))
	for name, buffer := range map[string]*dma.Buffer{"head": list[0], "member": list[1],
		"destination": y} {
		b.want(status.InUse, "set data of the "+name, buffer.SetData(8, 0))
		b.want(status.InUse, "reset data of the "+name, buffer.ResetData())
	}
	for name, buffer := range map[string]*dma.Buffer{"source": list[0], "destination": y} {
		_, err := buffer.RemoveReference()
		b.want(status.InUse, "drop the last reference to the "+name, err)
		b.want(status.InUse, "chain something to the "+name, buffer.Chain(free))
		b.want(status.InUse, "chain the "+name, free.Chain(buffer))
	}
	b.want(status.InUse, "unchain the source", list[0].Unchain(list[1]))
	b.want(status.InUse, "submit a second job to the destination",
		l.context.Submit(memcpy(free, y)))
	for _, event := range l.await(2) {
		b.must(event.Err)
	}
	if string(text[8:10]) != "ab" || string(text[16:18]) != "ab" {
		b.Errorf("copied %q", text)
	}
	b.release(list[0], y, z, free)
}

func manyInFlight(b *bench) {
	const size = 1 << 10
	count := min(b.device.Capabilities().MaxJobs, 128)
	l := b.newLoop(count)
	from, source := b.localMap(count*size, 0)
	to, destination := b.localMap(count*size, memory.LocalWrite)
	v := b.inventory(2*count + 2)
	seen := make(map[uint64]bool)
	for round := range 3 {
		pattern(source, round)
		var buffers []*dma.Buffer
		for i := range uint64(count) {
			x, y := b.byData(v, from, i*size, size), b.byAddress(v, to, i*size, size)
			buffers = append(buffers, x, y)
			b.must(l.context.Submit(dma.Job{Type: dma.Memcpy, Source: x, Destination: y,
				UserData: i}))
		}
		x, y := b.byData(v, from, 0, size), b.byAddress(v, to, 0, size)
		b.want(status.Again, "submit one job too many", l.context.Submit(memcpy(x, y)))
		clear(seen)
		for _, event := range l.await(count) {
			seen[event.UserData] = event.Err == nil
		}
		if len(seen) != count || !bytes.Equal(source, destination) {
			b.Errorf("%d of %d jobs are done, equal %v", len(seen), count,
				bytes.Equal(source, destination))
		}
		b.release(append(buffers, x, y)...)
	}
}

// submitInEvent moves a byte through memory. The event handler of each job releases its buffers,
// claims new ones, and submits the next job.
func submitInEvent(b *bench) {
	const hops = 200
	m, bytes := b.localMap(hops+1, memory.LocalWrite)
	bytes[0] = 0x5a
	v := b.inventory(2)
	l := b.newLoop(1)
	var x, y *dma.Buffer
	hop := func(i uint64) {
		x, y = b.byData(v, m, i, 1), b.byAddress(v, m, i+1, 1)
		b.must(l.context.Submit(dma.Job{Type: dma.Memcpy, Source: x, Destination: y, UserData: i}))
	}
	b.must(l.context.Detach(), l.context.Attach(l.engine, func(event dma.Event) {
		b.release(x, y)
		l.record(event)
		if event.UserData < hops-1 {
			hop(event.UserData + 1)
		}
	}))
	hop(0)
	l.await(hops)
	if bytes[hops] != 0x5a {
		b.Error("the byte did not arrive")
	}
}

func jobAllocations(b *bench) {
	if b.config.CopiesInPoll {
		b.Skip("the emulated device allocates (CopiesInPoll is true)")
	}
	l := b.newLoop(1)
	m, _ := b.localMap(16, memory.LocalWrite)
	v := b.inventory(2)
	run := func() {
		x, y := b.byData(v, m, 0, 8), b.byAddress(v, m, 8, 8)
		b.must(l.context.Submit(memcpy(x, y)))
		for l.context.InFlight() > 0 {
			l.engine.Idle(l.engine.Progress())
		}
		l.events = l.events[:0]
		b.release(x, y)
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		b.Errorf("%v allocations", n)
	}
}

func threads(b *bench) {
	const size = 64 << 10
	from, source := b.localMap(size, 0)
	pattern(source, 9)
	var running sync.WaitGroup
	for range 4 {
		to, destination := b.localMap(size, memory.LocalWrite)
		l, v := b.newLoop(4), b.inventory(2)
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for range 50 {
				x, err := v.ByData(from, from.Region().Base(), size)
				y, err2 := v.ByAddress(to, to.Region().Base(), size)
				if err != nil || err2 != nil || l.context.Submit(memcpy(x, y)) != nil {
					b.Errorf("claim buffers and submit: %v, %v", err, err2)
					return
				}
				for l.context.InFlight() > 0 {
					l.engine.Idle(l.engine.Progress())
				}
				l.events = l.events[:0]
				b.release(x, y)
			}
			if !bytes.Equal(source, destination) {
				b.Error("data arrived changed")
			}
		})
	}
	running.Wait()
}

var rejectionTests = []conformanceTest{
	{"AJobHasAKnownType", badType},
	{"AJobHasBothBuffers", badBuffers},
	{"TheSourceSetsTheLengthAndTheDestinationHasRoom", badLengths},
	{"LimitsOfTheDeviceHold", deviceLimits},
	{"TheDestinationIsWritable", readOnlyDestination},
	{"BothMemoryMapsHaveTheDeviceOfTheContext", foreignDevice},
}

// rejecting holds a loop and the buffers of a valid job.
type rejecting struct {
	*loop
	inventory   *dma.Inventory
	memory      *dma.MemoryMap
	source      *dma.Buffer
	destination *dma.Buffer
}

func (b *bench) newRejecting() *rejecting {
	b.Helper()
	r := &rejecting{loop: b.newLoop(4), inventory: b.inventory(200)}
	r.memory, _ = b.localMap(100, memory.LocalWrite)
	r.source, r.destination = b.byData(r.inventory, r.memory, 0, 10), b.byAddress(r.inventory,
		r.memory, 50, 10)
	b.Cleanup(func() { b.release(r.source, r.destination) })
	return r
}

// reject submits a job that must be rejected, and then a valid one.
func (r *rejecting) reject(code status.Code, what string, job dma.Job) {
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
	r := b.newRejecting()
	for _, t := range []dma.JobType{0, 2, 255} {
		r.reject(status.NotSupported, "submit a job of an unknown type",
			dma.Job{Type: t, Source: r.source, Destination: r.destination})
	}
}

func badBuffers(b *bench) {
	r := b.newRejecting()
	r.reject(status.InvalidValue, "submit without a source", memcpy(nil, r.destination))
	r.reject(status.InvalidValue, "submit without a destination", memcpy(r.source, nil))
	r.reject(status.InvalidValue, "copy a buffer to itself", memcpy(r.source, r.source))
	list := b.chain(r.inventory, r.memory, 3)
	r.reject(status.InvalidValue, "submit a buffer behind the head as source",
		memcpy(list[1], r.destination))
	r.reject(status.InvalidValue, "submit a buffer behind the head as destination",
		memcpy(r.source, list[1]))
	r.reject(status.InvalidValue, "submit a list as destination", memcpy(r.source, list[0]))
	b.release(list[0])
	gone := b.byData(r.inventory, r.memory, 0, 8)
	b.release(gone)
	r.reject(status.BadState, "submit a released source", memcpy(gone, r.destination))
	r.reject(status.BadState, "submit a released destination", memcpy(r.source, gone))
}

func badLengths(b *bench) {
	r := b.newRejecting()
	empty := b.byAddress(r.inventory, r.memory, 0, 10)
	r.reject(status.InvalidValue, "copy nothing", memcpy(empty, r.destination))
	short := b.byAddress(r.inventory, r.memory, 50, 9)
	r.reject(status.InvalidValue, "copy into a buffer that is too short", memcpy(r.source, short))
	full := b.byData(r.inventory, r.memory, 50, 50)
	r.reject(status.InvalidValue, "copy into a buffer full of data", memcpy(r.source, full))
	b.must(full.SetData(r.memory.Region().Base()+91, 0))
	r.reject(status.InvalidValue, "copy past the end of a buffer", memcpy(r.source, full))
	b.release(empty, short, full)
}

func deviceLimits(b *bench) {
	r := b.newRejecting()
	c := b.device.Capabilities()
	if c.MaxBufferListLength < 100 {
		list := b.chain(r.inventory, r.memory, c.MaxBufferListLength+1)
		wide := b.byAddress(r.inventory, r.memory, 0, 100)
		r.reject(status.TooBig, "submit a list that is too long", memcpy(list[0], wide))
		b.must(list[0].Unchain(list[1]))
		b.release(list[0], list[1], wide)
	}
	if c.MaxBufferSize > 1<<30 {
		return
	}
	large, _ := b.localMap(int(c.MaxBufferSize)+1, memory.LocalWrite)
	x, y := b.byData(r.inventory, large, 0, c.MaxBufferSize+1), b.byAddress(r.inventory, large, 0,
		c.MaxBufferSize+1)
	r.reject(status.TooBig, "copy more than the device can", memcpy(x, y))
	b.must(x.SetData(large.Region().Base(), c.MaxBufferSize))
	more := b.byData(r.inventory, large, 0, 1)
	b.must(x.Chain(more))
	r.reject(status.TooBig, "copy a list of more than the device can", memcpy(x, y))
	b.release(x, y)
}

func readOnlyDestination(b *bench) {
	r := b.newRejecting()
	for _, access := range []memory.Access{0,
		memory.PCIRead | memory.PCIWrite | memory.RemoteWrite} {
		m, bytes := b.localMap(10, access)
		y := b.byAddress(r.inventory, m, 0, 10)
		r.reject(status.NotPermitted, "write to memory without LocalWrite", memcpy(r.source, y))
		b.release(y)
		for _, v := range bytes {
			if v != 0 {
				b.Error("a rejected job wrote to its destination")
			}
		}
		x := b.byData(r.inventory, m, 0, 10)
		if event := r.do(x, r.destination); event.Err != nil {
			b.Errorf("read local memory, which is always allowed: %v", event.Err)
		}
		b.must(r.destination.ResetData())
		b.release(x)
	}
}

func foreignDevice(b *bench) {
	r := b.newRejecting()
	other := &bench{T: b.T, config: b.config, device: open(b.T, b.config, b.config.OtherDevice)}
	m, _ := other.localMap(10, memory.LocalWrite)
	x, y := b.byData(r.inventory, m, 0, 10), b.byAddress(r.inventory, m, 0, 10)
	r.reject(status.NotPermitted, "copy from memory of another device", memcpy(x, r.destination))
	r.reject(status.NotPermitted, "copy to memory of another device", memcpy(r.source, y))
	b.release(x, y)
}

var waitTests = []conformanceTest{
	{"AThreadSleepsUntilAJobIsDone", sleeps},
	{"NoWakeUpIsLost", noLostWakeUp},
}

func sleeps(b *bench) {
	if !b.device.Capabilities().CanWait {
		b.Skip("the device cannot wait (CanWait is false)")
	}
	l := b.newLoopWith(1, progress.Policy{Mode: progress.Event})
	size := min(b.device.Capabilities().MaxBufferSize, 1<<20)
	m, _ := b.localMap(int(2*size), memory.LocalWrite)
	v := b.inventory(2)
	for range 50 {
		x, y := b.byData(v, m, 0, size), b.byAddress(v, m, size, size)
		b.must(l.do(x, y).Err)
		b.release(x, y)
	}
	stats := l.engine.Stats()
	if stats.Sleeps == 0 && !b.config.CopiesInPoll || stats.LateWakeups > 0 {
		b.Errorf("the thread slept %d times and lost %d wake-ups", stats.Sleeps, stats.LateWakeups)
	}
}

// noLostWakeUp makes jobs end at about the time at which the thread falls asleep.
func noLostWakeUp(b *bench) {
	l := b.newLoopWith(4, progress.Policy{SpinTime: time.Microsecond})
	m, _ := b.localMap(1<<16, memory.LocalWrite)
	v := b.inventory(8)
	for i := range 2000 {
		var buffers []*dma.Buffer
		for k := range i%4 + 1 {
			size := uint64(1) << (i % 14)
			x, y := b.byData(v, m, 0, size), b.byAddress(v, m, uint64(k+1)<<14-size, size)
			buffers = append(buffers, x, y)
			b.must(l.context.Submit(memcpy(x, y)))
		}
		if i%3 == 0 {
			runtime.Gosched()
		}
		l.await(i%4 + 1)
		b.release(buffers...)
	}
	if late := l.engine.Stats().LateWakeups; late > 0 {
		b.Errorf("%d wake-ups were lost", late)
	}
}
