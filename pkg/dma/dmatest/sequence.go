// SPDX-License-Identifier: Apache-2.0

package dmatest

import (
	"bytes"
	"slices"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var sequenceTests = []conformanceTest{
	{"RandomCallsGiveWhatTheStateSays", randomCalls},
}

// machine makes random calls, allowed or not, and predicts the outcome of each call from a model of
// the state.
type machine struct {
	*bench
	memory    *dma.MemoryMap
	bytes     []byte
	inventory *dma.Inventory
	context   *dma.Context
	engine    *progress.Engine

	running  bool
	attached bool
	device   bool
	inFlight int
	buffers  []*dma.Buffer
	busy     map[*dma.Buffer]bool
	jobs     map[uint64]machineJob
	nextJob  uint64
}

type machineJob struct {
	source, destination *dma.Buffer
	length              uint64
}

const (
	machineBuffers = 12
	machineJobs    = 3
	machineBytes   = 64 // of each buffer
)

func randomCalls(b *bench) {
	seedtest.Check(b.T, func(t *rapid.T) {
		m := newMachine(b)
		actions := map[string]func(*rapid.T){
			"add device": m.addDevice, "remove device": m.removeDevice,
			"start": m.start, "stop": m.stop, "attach": m.attach, "detach": m.detach,
			"claim": m.claim, "release": m.release, "submit": m.submit, "submit again": m.submit,
			"progress": m.step, "stop map": m.stopMap,
			"": m.invariants,
		}
		t.Repeat(actions)
		m.finish(t)
	})
}

func newMachine(b *bench) *machine {
	m := &machine{
		bench: b, context: dma.NewContext(),
		busy: make(map[*dma.Buffer]bool), jobs: make(map[uint64]machineJob),
	}
	m.bytes = make([]byte, 2*machineBuffers*machineBytes) // sources, then destinations
	pattern(m.bytes[:machineBuffers*machineBytes], 1)
	m.memory = dma.NewMemoryMap()
	var err, err2 error
	m.inventory, err = dma.NewInventory(machineBuffers)
	m.engine, err2 = progress.NewEngine(progress.Policy{})
	b.must(err, err2, m.inventory.Start(), m.context.SetJobs(machineJobs))
	b.must(m.memory.SetRegion(memory.Wrap(m.bytes)), m.memory.AddDevice(b.device),
		m.memory.SetAccess(memory.LocalWrite), m.memory.Start())
	return m
}

// expect fails unless err has the code; Success stands for nil.
func expect(t *rapid.T, what string, err error, code status.Code) {
	if status.CodeOf(err) != code {
		t.Fatalf("%s: got %v, want %v", what, err, code)
	}
}

type when struct {
	holds bool
	code  status.Code
}

// first returns the code of the first case that holds, or Success.
func first(cases ...when) status.Code {
	for _, c := range cases {
		if c.holds {
			return c.code
		}
	}
	return status.Success
}

func (m *machine) addDevice(t *rapid.T) {
	want := first(when{m.running, status.BadState}, when{m.device, status.AlreadyExist})
	expect(t, "add device", m.context.AddDevice(m.bench.device), want)
	m.device = true
}

func (m *machine) removeDevice(t *rapid.T) {
	want := first(when{m.running, status.BadState}, when{!m.device, status.NotFound})
	expect(t, "remove device", m.context.RemoveDevice(), want)
	m.device = m.running
}

func (m *machine) start(t *rapid.T) {
	expect(t, "start", m.context.Start(), first(when{m.running || !m.device, status.BadState}))
	m.running = m.device
}

func (m *machine) stop(t *rapid.T) {
	expect(t, "stop", m.context.Stop(), first(when{!m.running, status.BadState},
		when{m.attached, status.InUse}))
	m.running = m.attached
}

func (m *machine) attach(t *rapid.T) {
	want := first(when{!m.running, status.BadState}, when{m.attached, status.InUse})
	expect(t, "attach", m.context.Attach(m.engine, func(e dma.Event) { m.done(t, e) }), want)
	m.attached = m.running
}

func (m *machine) detach(t *rapid.T) {
	expect(t, "detach", m.context.Detach(),
		first(when{!m.attached, status.BadState}, when{m.inFlight > 0, status.InUse}))
	m.attached = m.attached && m.inFlight > 0
}

// claim claims a buffer. Sources may share their memory, but each destination has its own: a copy
// is not atomic, so two jobs to the same bytes would give a mixture.
func (m *machine) claim(t *rapid.T) {
	place := rapid.Uint64Range(0, machineBuffers-1).Draw(t, "place")
	var buffer *dma.Buffer
	var err error
	if rapid.Bool().Draw(t, "source") {
		address := m.memory.Region().Base() + place*machineBytes
		buffer, err = m.inventory.ByData(m.memory, address, machineBytes)
	} else {
		address := m.freeDestination(place)
		buffer, err = m.inventory.ByAddress(m.memory, address, machineBytes)
	}
	expect(t, "claim", err, first(when{len(m.buffers) == machineBuffers, status.NoMemory}))
	if err == nil {
		m.buffers = append(m.buffers, buffer)
	}
}

// freeDestination returns the address of the first destination from place on that no claimed buffer
// covers. There is one as long as a buffer is free.
func (m *machine) freeDestination(place uint64) uint64 {
	base := m.memory.Region().Base()
	for i := range uint64(machineBuffers) {
		address := base + (machineBuffers+(place+i)%machineBuffers)*machineBytes
		covered := slices.ContainsFunc(m.buffers, func(b *dma.Buffer) bool {
			start, _ := b.Range()
			return start == address
		})
		if !covered {
			return address
		}
	}
	return base + (machineBuffers+place)*machineBytes
}

// pick draws a claimed buffer, or returns nil if there is none.
func (m *machine) pick(t *rapid.T, what string) *dma.Buffer {
	if len(m.buffers) == 0 {
		return nil
	}
	return rapid.SampledFrom(m.buffers).Draw(t, what)
}

func (m *machine) release(t *rapid.T) {
	buffer := m.pick(t, "buffer")
	if buffer == nil {
		return
	}
	_, err := buffer.RemoveReference()
	expect(t, "release", err, first(when{m.busy[buffer], status.InUse}))
	if err == nil {
		m.buffers = slices.DeleteFunc(m.buffers, func(b *dma.Buffer) bool { return b == buffer })
	}
}

func (m *machine) submit(t *rapid.T) {
	x, y := m.pick(t, "source"), m.pick(t, "destination")
	if x == nil {
		return
	}
	_, length := x.Data()
	_, used := y.Data()
	m.nextJob++
	err := m.context.Submit(dma.Job{Type: dma.Memcpy, Source: x, Destination: y,
		UserData: m.nextJob})
	expect(t, "submit", err, first(
		when{!m.attached, status.BadState}, when{m.inFlight == machineJobs, status.Again},
		when{m.busy[y], status.InUse},
		when{x == y || length == 0 || length > machineBytes-used, status.InvalidValue},
	))
	if err != nil {
		return
	}
	m.inFlight++
	m.jobs[m.nextJob] = machineJob{x, y, length}
	m.busy[x], m.busy[y] = true, true
}

func (m *machine) done(t *rapid.T, e dma.Event) {
	job, ok := m.jobs[e.UserData]
	if !ok || e.Err != nil || e.Length != job.length {
		t.Fatalf("event %+v of a job of %d bytes", e, job.length)
	}
	delete(m.jobs, e.UserData)
	m.inFlight--
	clear(m.busy)
	for _, other := range m.jobs {
		m.busy[other.source], m.busy[other.destination] = true, true
	}
	base := m.memory.Region().Base()
	from, _ := job.source.Data()
	to, length := job.destination.Data()
	from, to = from-base, to-base
	if length != job.length || !bytes.Equal(m.bytes[from:][:length], m.bytes[to:][:length]) {
		t.Fatal("data arrived changed")
	}
}

func (m *machine) step(*rapid.T) { m.engine.Progress() }

func (m *machine) stopMap(t *rapid.T) {
	err := m.memory.Stop()
	expect(t, "stop map", err, first(when{len(m.buffers) > 0, status.InUse}))
	if err == nil {
		m.must(m.memory.Start())
	}
}

func (m *machine) invariants(t *rapid.T) {
	state := progress.Idle
	if m.running {
		state = progress.Running
	}
	if m.context.State() != state || m.memory.Buffers() != len(m.buffers) ||
		m.inventory.FreeElements() != machineBuffers-len(m.buffers) {
		t.Fatalf("%v with %d buffers and %d free elements, want %v with %d", m.context.State(),
			m.memory.Buffers(),
			m.inventory.FreeElements(), state, len(m.buffers))
	}
}

func (m *machine) finish(t *rapid.T) {
	for m.inFlight > 0 {
		m.engine.Idle(m.engine.Progress())
	}
	for _, buffer := range m.buffers {
		m.bench.release(buffer)
	}
	if m.attached {
		m.must(m.context.Detach())
	}
	if m.running {
		m.must(m.context.Stop())
	}
	m.must(m.context.Close(), m.memory.Close(), m.inventory.Close(), m.engine.Close())
	if t.Failed() {
		m.FailNow()
	}
}
