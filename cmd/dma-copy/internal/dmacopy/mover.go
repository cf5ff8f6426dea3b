// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// mover copies chunks between the host's window and local memory of the same size, by DMA jobs on a
// thread of its own.
type mover struct {
	plan   plan
	jobs   int
	local  []byte
	buffer *memory.Region // describes local

	engine    *progress.Engine
	context   *dma.Context
	inventory *dma.Inventory
	remoteMap *dma.MemoryMap
	localMap  *dma.MemoryMap

	// The thread owns these fields.
	moves   []move // by slot
	deliver uint64 // next chunk to deliver
	closing bool
	ended   chan error

	arrived chan arrival
	// released and announced count the chunks that the side which passes the data on has finished.
	released  atomic.Uint64
	announced atomic.Uint64
}

// move is a chunk in flight.
type move struct {
	chunk               filled
	done                bool
	err                 error
	source, destination *dma.Buffer
}

// arrival is the outcome of copying a chunk.
type arrival struct {
	chunk filled
	err   error
}

// startMover starts the thread with its DMA objects, for at most jobs chunks in flight. Objects are
// set up in the order that package dma requires.
func startMover(device dma.Device, window *memory.Region, access memory.Access, p plan, jobs int,
	policy progress.Policy) (*mover, error) {
	m := &mover{
		plan: p, jobs: jobs, local: make([]byte, p.window()), moves: make([]move, p.slots),
		ended: make(chan error, 1), arrived: make(chan arrival, p.slots),
		context: dma.NewContext(),
	}
	m.buffer = memory.Wrap(m.local)
	if err := m.setUp(device, window, access, policy); err != nil {
		return nil, errors.Join(fmt.Errorf("set up DMA: %w", err), m.cleanUp())
	}
	ready := make(chan error, 1)
	go m.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("set up DMA: %w", err)
	}
	return m, nil
}

func (m *mover) setUp(device dma.Device, window *memory.Region, access memory.Access,
	policy progress.Policy) (err error) {
	if m.remoteMap, err = dma.ImportMemoryMap(device, window, access); err != nil {
		return err
	}
	m.localMap = dma.NewMemoryMap()
	if err := errors.Join(m.localMap.SetRegion(m.buffer), m.localMap.AddDevice(device),
		m.localMap.SetAccess(memory.LocalWrite)); err != nil {
		return err
	}
	if err := m.localMap.Start(); err != nil {
		return err
	}
	if m.inventory, err = dma.NewInventory(2 * m.jobs); err != nil {
		return err
	}
	if err := m.inventory.Start(); err != nil {
		return err
	}
	if m.engine, err = progress.NewEngine(policy); err != nil {
		return err
	}
	if err := errors.Join(m.context.AddDevice(device), m.context.SetJobs(m.jobs)); err != nil {
		return err
	}
	return m.context.Start()
}

// run is the body of the thread.
func (m *mover) run(ready chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := m.context.Attach(m.engine, m.done); err != nil {
		ready <- errors.Join(err, m.cleanUp())
		return
	}
	ready <- nil
	for !m.closing || m.context.InFlight() > 0 {
		m.engine.Idle(m.engine.Progress())
	}
	m.ended <- errors.Join(m.context.Detach(), m.cleanUp())
}

// cleanUp undoes setUp in reverse order, from the point that setUp reached.
func (m *mover) cleanUp() error {
	var err error
	if m.context.State() == progress.Running {
		err = m.context.Stop()
	}
	err = errors.Join(err, m.context.Close())
	if m.engine != nil {
		err = errors.Join(err, m.engine.Close())
	}
	if m.inventory != nil {
		err = errors.Join(err, m.inventory.Close())
	}
	for _, each := range []*dma.MemoryMap{m.localMap, m.remoteMap} {
		if each != nil {
			err = errors.Join(err, each.Close())
		}
	}
	return err
}

// stop waits for the jobs in flight and releases everything.
func (m *mover) stop() error {
	m.engine.Do(func() { m.closing = true })
	return <-m.ended
}

// slot returns the local memory of a chunk.
func (m *mover) slot(c filled) []byte { return m.local[m.plan.slot(c.chunk):][:c.length] }

// submit starts to copy a chunk, whose slot must be free. Any goroutine may call it.
func (m *mover) submit(c filled) { m.engine.Do(func() { m.begin(c) }) }

// next waits for the next chunk, in file order.
func (m *mover) next(ctx context.Context) (filled, error) {
	select {
	case a := <-m.arrived:
		return a.chunk, a.err
	case <-ctx.Done():
		return filled{}, ctx.Err()
	}
}

func (m *mover) begin(c filled) {
	slot := c.chunk % uint64(m.plan.slots)
	m.moves[slot] = move{chunk: c}
	if err := m.submitJob(slot); err != nil {
		m.finish(slot, err)
	}
}

func (m *mover) submitJob(slot uint64) error {
	moving := &m.moves[slot]
	from, to := m.remoteMap, m.localMap
	if m.plan.direction == ToHost {
		from, to = to, from
	}
	offset, length := m.plan.slot(moving.chunk.chunk), moving.chunk.length
	var err error
	if moving.source, err = m.inventory.ByData(from, from.Region().Base()+offset,
		length); err != nil {
		return err
	}
	if moving.destination, err = m.inventory.ByAddress(to, to.Region().Base()+offset,
		length); err != nil {
		return err
	}
	return m.context.Submit(dma.Job{Type: dma.Memcpy, Source: moving.source,
		Destination: moving.destination, UserData: slot})
}

func (m *mover) done(e dma.Event) { m.finish(e.UserData, e.Err) }

// finish releases the buffers of a chunk and delivers chunks in file order: jobs may complete in
// any order.
func (m *mover) finish(slot uint64, err error) {
	moving := &m.moves[slot]
	for _, buffer := range []*dma.Buffer{moving.source, moving.destination} {
		if buffer != nil {
			_, failure := buffer.RemoveReference()
			err = errors.Join(err, failure)
		}
	}
	if err != nil {
		err = fmt.Errorf("copy chunk %d of %d bytes by DMA: %w", moving.chunk.chunk,
			moving.chunk.length, err)
	}
	moving.done, moving.err = true, err
	for {
		next := &m.moves[m.deliver%uint64(len(m.moves))]
		if !next.done || next.chunk.chunk != m.deliver {
			return
		}
		next.done = false
		m.deliver++
		// never blocks: there is room for one chunk per slot
		m.arrived <- arrival{next.chunk, next.err}
	}
}
