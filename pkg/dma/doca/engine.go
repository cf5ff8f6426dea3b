// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/internal/users"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// closeTimeout bounds how long starting and closing an engine waits for the device.
const closeTimeout = 5 * time.Second

// budget bounds the steps of progress between two looks at the state.
const budget = 64

// engine implements dma.Engine.
type engine struct {
	device *device
	copier *doca.Copier
	copies []*dma.Copy // in flight, by slot
	free   []int       // slots that are not
	// The segments of the copy that is submitted.
	sources []doca.Segment
	closed  bool
}

func (d *device) newEngine(capacity int) (*engine, error) {
	copier, err := doca.NewCopier(doca.CopierConfig{Device: d.doca, Copies: capacity,
		MaxSources: d.capabilities.MaxBufferListLength, Wait: d.capabilities.CanWait})
	if err != nil {
		return nil, err
	}
	e := &engine{device: d, copier: copier, copies: make([]*dma.Copy, capacity),
		sources: make([]doca.Segment, 0, d.capabilities.MaxBufferListLength)}
	for i := range capacity {
		e.free = append(e.free, capacity-1-i)
	}
	if err = copier.Start(); err == nil {
		err = e.await(progress.Running)
	}
	if err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

// await makes progress until the context is in a state.
func (e *engine) await(state progress.State) error {
	deadline := time.Now().Add(closeTimeout)
	for e.copier.State() != state {
		e.copier.FreeTasks()
		if e.copier.Progress(budget) > 0 {
			continue
		}
		if time.Now().After(deadline) {
			return status.Errorf(status.TimeOut, "DMA context is %v, not %v after %v",
				e.copier.State(), state, closeTimeout)
		}
		time.Sleep(50 * time.Microsecond) // the slow path of starting and stopping
	}
	return nil
}

func (e *engine) Submit(c *dma.Copy) error {
	if e.closed {
		return status.Errorf(status.BadState, "submit copy: the DMA engine is closed")
	}
	if len(e.free) == 0 {
		return status.Errorf(status.Full,
			"submit copy: the DMA engine has the maximum of %d copies in flight", len(e.copies))
	}
	if len(c.Sources) > cap(e.sources) {
		return status.Errorf(status.TooBig, "submit copy: %d sources, the limit is %d",
			len(c.Sources), cap(e.sources))
	}
	e.sources = e.sources[:0]
	for i := range c.Sources {
		e.sources = append(e.sources, segment(&c.Sources[i]))
	}
	slot := e.free[len(e.free)-1]
	if err := e.copier.Submit(slot, segment(&c.Destination), e.sources); err != nil {
		return err
	}
	e.free = e.free[:len(e.free)-1]
	e.copies[slot] = c
	return nil
}

func segment(s *dma.Segment) doca.Segment {
	return doca.Segment{Map: s.Memory.(*registration).memory, Offset: s.Offset, Length: s.Length}
}

func (e *engine) Poll(done []*dma.Copy) int {
	if e.closed || len(e.free) == len(e.copies) {
		return 0
	}
	e.copier.Turn(len(done))
	n := 0
	for n < len(done) {
		slot, err, ok := e.copier.Next()
		if !ok {
			break
		}
		c := e.copies[slot]
		e.copies[slot] = nil
		e.free = append(e.free, slot)
		c.Err = err
		done[n] = c
		n++
	}
	return n
}

// Descriptor, Arm, Disarm, and Clear implement progress.Waiter.

func (e *engine) Descriptor() int { return e.copier.Descriptor() }
func (e *engine) Arm() bool       { return e.copier.Arm() }
func (e *engine) Disarm()         { e.copier.Clear() }
func (e *engine) Clear()          { e.copier.Clear() }

func (e *engine) Close() error {
	if e.closed {
		return nil
	}
	if n := len(e.copies) - len(e.free); n > 0 {
		return status.Errorf(status.InUse, "close DMA engine: %d copies are in flight", n)
	}
	e.closed = true
	err := e.release()
	e.device.users.Remove(users.Engine)
	return err
}

// release stops and destroys the context. If the device does not let go of it in time, it is
// leaked.
func (e *engine) release() error {
	err := error(nil)
	if e.copier.State() != progress.Idle {
		err = errors.Join(e.copier.Stop(), e.await(progress.Idle))
	}
	if err == nil {
		err = e.copier.Close()
	}
	if err != nil {
		return fmt.Errorf("close DMA engine: %w", err)
	}
	e.copier.Free()
	return nil
}
