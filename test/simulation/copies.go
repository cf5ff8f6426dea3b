// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dmaProvider opens devices whose engines copy when the scheduler says so, as hardware copies
// whenever it likes, even while the process is stopped.
type dmaProvider struct {
	dma.Provider
	process *process
}

func (p *process) dma() dma.Provider {
	return dmaProvider{software.New(software.Options{AnyDevice: true, Inline: true}), p}
}

func (p dmaProvider) Open(name string) (dma.Device, error) {
	device, err := p.Provider.Open(name)
	return dmaDevice{device, p.process}, err
}

type dmaDevice struct {
	dma.Device
	process *process
}

func (d dmaDevice) NewEngine(capacity int) (dma.Engine, error) {
	inner, err := d.Device.NewEngine(capacity)
	return &dmaEngine{inner: inner, process: d.process}, err
}

// dmaEngine implements dma.Engine. Its lists are guarded by world.mu.
type dmaEngine struct {
	inner   dma.Engine // belongs to the scheduler
	process *process
	owned   int // copies that Poll has not returned
	ended   []*dma.Copy
}

// pendingCopy is a copy that has not begun.
type pendingCopy struct {
	engine *dmaEngine
	copy   *dma.Copy
}

func (e *dmaEngine) Descriptor() int { return progress.NoDescriptor }
func (e *dmaEngine) Arm() bool       { return false }
func (e *dmaEngine) Disarm()         {}
func (e *dmaEngine) Clear()          {}

func (e *dmaEngine) Submit(c *dma.Copy) error {
	w := e.process.world
	w.mu.Lock()
	defer w.mu.Unlock()
	e.owned++
	e.process.copies = append(e.process.copies, pendingCopy{e, c})
	return nil
}

func (e *dmaEngine) Poll(done []*dma.Copy) int {
	w := e.process.world
	w.mu.Lock()
	defer w.mu.Unlock()
	n := copy(done, e.ended)
	e.ended = append(e.ended[:0], e.ended[n:]...)
	e.owned -= n
	return n
}

func (e *dmaEngine) Close() error {
	w := e.process.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.owned > 0 {
		return status.InUse
	}
	return e.inner.Close()
}

// finishCopy carries out a pending copy of a process.
func (p *process) finishCopy(i int) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	c := p.copies[i]
	p.copies = append(p.copies[:i], p.copies[i+1:]...)
	var done [1]*dma.Copy
	if err := c.engine.inner.Submit(c.copy); err != nil || c.engine.inner.Poll(done[:]) != 1 {
		panic("simulation: the engine does not copy")
	}
	c.engine.ended = append(c.engine.ended, c.copy)
	p.world.trace("%s: %d bytes are copied: %v", p.name, c.copy.Destination.Length, c.copy.Err)
}
