// SPDX-License-Identifier: Apache-2.0

// Package dmatest is the conformance suite for providers of package dma. It follows the DOCA guides
// sentence by sentence; docs/dev/dma-conformance.md names the test of each sentence.
package dmatest

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Config describes the provider to test.
type Config struct {
	Provider dma.Provider
	// Device and OtherDevice are the PCI addresses of two devices.
	Device, OtherDevice string
	// Import returns two views of memory of a peer: the owner's, and the one that this side imports
	// with the given rights.
	Import func(t testing.TB, length uint64, access memory.Access) (owner, imported *memory.Region)
	// CopiesInPoll reports that the device is an emulation that copies while it is polled. So a
	// thread never has to sleep until a job is done, and allocations say nothing of the provider.
	CopiesInPoll bool
	// Faulty returns imported memory whose last byte cannot be copied, although the access rights
	// allow it. It is nil if such memory cannot be made for the provider.
	Faulty func(t testing.TB, length uint64) *memory.Region
}

// conformanceTest checks one promise of package dma.
type conformanceTest struct {
	name string
	run  func(*bench)
}

// groups holds the tests of the suite.
var groups = []struct {
	name  string
	tests []conformanceTest
}{
	{"Device", deviceTests}, {"MemoryMap", memoryMapTests}, {"Inventory", inventoryTests},
	{"Buffer", bufferTests},
	{"Context", contextTests}, {"Job", jobTests}, {"Rejection", rejectionTests},
	{"Import", importTests},
	{"Wait", waitTests}, {"Sequence", sequenceTests},
}

// Run runs the suite as subtests of t. It skips a test only if the provider fails with
// status.NotSupported, or if there is nothing to test according to the capabilities of the device
// or because Faulty is nil.
func Run(t *testing.T, config Config) {
	t.Helper()
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					// A context belongs to one thread.
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					test.run(newBench(t, config))
				})
			}
		})
	}
}

// bench is the state of one test: an open device, and helpers to use it.
type bench struct {
	*testing.T
	config Config
	device dma.Device
}

func newBench(t *testing.T, config Config) *bench {
	t.Helper()
	return &bench{T: t, config: config, device: open(t, config, config.Device)}
}

func open(t *testing.T, config Config, name string) dma.Device {
	t.Helper()
	device, err := config.Provider.Open(name)
	testkit.SkipIfNotSupported(t, "open device "+name, err)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Errorf("close device at the end of the test: %v", err)
		}
	})
	return device
}

// must fails and ends the test if any of errs is not nil.
func (b *bench) must(errs ...error) {
	b.Helper()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// want fails the test unless err has the code.
func (b *bench) want(code status.Code, what string, err error) {
	b.Helper()
	if !errors.Is(err, code) {
		b.Errorf("%s: got error %v, want %v", what, err, code)
	}
}

// mapOf returns a started memory map. It is closed when the test ends.
func (b *bench) mapOf(region *memory.Region, access memory.Access) *dma.MemoryMap {
	b.Helper()
	m := dma.NewMemoryMap()
	b.must(m.SetRegion(region), m.AddDevice(b.device), m.SetAccess(access), m.Start())
	b.closeLater(m)
	return m
}

// localMap returns a started map of new memory of this process, and the memory.
func (b *bench) localMap(length int, access memory.Access) (*dma.MemoryMap, []byte) {
	b.Helper()
	bytes := make([]byte, length)
	return b.mapOf(memory.Wrap(bytes), access), bytes
}

func (b *bench) closeLater(c interface{ Close() error }) {
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Errorf("close %T at the end of the test: %v", c, err)
		}
	})
}

// inventory returns a started inventory. It is closed when the test ends.
func (b *bench) inventory(elements int) *dma.Inventory {
	b.Helper()
	v, err := dma.NewInventory(elements)
	b.must(err)
	b.must(v.Start())
	b.closeLater(v)
	return v
}

// byData claims a buffer at an offset of the map's memory.
func (b *bench) byData(v *dma.Inventory, m *dma.MemoryMap, offset, length uint64) *dma.Buffer {
	b.Helper()
	buffer, err := v.ByData(m, m.Region().Base()+offset, length)
	b.must(err)
	return buffer
}

func (b *bench) byAddress(v *dma.Inventory, m *dma.MemoryMap, offset, length uint64) *dma.Buffer {
	b.Helper()
	buffer, err := v.ByAddress(m, m.Region().Base()+offset, length)
	b.must(err)
	return buffer
}

// release drops the last reference to each buffer.
func (b *bench) release(buffers ...*dma.Buffer) {
	b.Helper()
	for _, buffer := range buffers {
		if left, err := buffer.RemoveReference(); left != 0 || err != nil {
			b.Errorf("drop the last reference: %d left, error %v", left, err)
		}
	}
}

// loop is a running context attached to a progress engine, and the events that have been delivered.
type loop struct {
	*bench
	context *dma.Context
	engine  *progress.Engine
	events  []dma.Event
}

// newLoop sets up a context as the guide describes, and cleans up when the test ends.
func (b *bench) newLoop(jobs int) *loop { return b.newLoopWith(jobs, progress.Policy{}) }

func (b *bench) newLoopWith(jobs int, policy progress.Policy) *loop {
	b.Helper()
	l := &loop{bench: b, context: dma.NewContext(), events: make([]dma.Event, 0, 1<<10)}
	var err error
	l.engine, err = progress.NewEngine(policy)
	b.must(err, l.context.AddDevice(b.device), l.context.SetJobs(jobs), l.context.Start())
	b.must(l.context.Attach(l.engine, l.record))
	b.Cleanup(func() {
		b.must(l.context.Detach(), l.context.Stop(), l.context.RemoveDevice(), l.context.Close(),
			l.engine.Close())
	})
	return l
}

func (l *loop) record(event dma.Event) { l.events = append(l.events, event) }

// await makes progress until count events have been delivered, and removes and returns them.
func (l *loop) await(count int) []dma.Event {
	l.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for len(l.events) < count {
		l.engine.Idle(l.engine.Progress())
		if time.Now().After(deadline) {
			l.Fatalf("%d of %d events were delivered within %v", len(l.events), count, testkit.Patience)
		}
	}
	events := l.events
	l.events = l.events[len(l.events):]
	if len(events) != count {
		l.Errorf("%d events were delivered, want %d", len(events), count)
	}
	return events
}

// do executes a copy and returns its event.
func (l *loop) do(source, destination *dma.Buffer) dma.Event {
	l.Helper()
	l.must(l.context.Submit(memcpy(source, destination)))
	return l.await(1)[0]
}

func memcpy(source, destination *dma.Buffer) dma.Job {
	return dma.Job{Type: dma.Memcpy, Source: source, Destination: destination}
}

// pattern fills bytes so that neighbouring ranges differ.
func pattern(bytes []byte, seed int) {
	for i := range bytes {
		bytes[i] = byte(seed + i*7 + i>>8)
	}
}
