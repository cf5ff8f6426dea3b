// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"fmt"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultJobs is the number of jobs of a context that can be in flight unless SetJobs changes it.
const DefaultJobs = 32

// Context executes jobs on one device (doca_dma). It is idle until Start, and running until Stop.
// It belongs to one thread, which also runs the progress engine that the context is attached to;
// any thread may call State.
type Context struct {
	state  atomic.Int32
	closed bool
	jobs   int
	device Device

	// Valid while the context is running:
	capabilities Capabilities
	engine       Engine
	slots        []slot
	free         []int // indices of slots
	done         []*Copy

	// Valid while the context is attached:
	progress *progress.Engine
	handle   func(Event)
	polling  bool // events are being delivered
}

// NewContext returns an idle context without a device.
func NewContext() *Context { return &Context{jobs: DefaultJobs} }

// State returns Idle or Running. Any thread may call it.
func (c *Context) State() progress.State { return progress.State(c.state.Load()) }

// checkIdle fails unless the context is idle.
func (c *Context) checkIdle(what string) error {
	if c.closed {
		return status.Errorf(status.BadState, "%s: it is closed", what)
	}
	if state := c.State(); state != progress.Idle {
		return status.Errorf(status.BadState, "%s: it is %v, but must be idle", what, state)
	}
	return nil
}

// checkRunning fails unless the context is running.
func (c *Context) checkRunning(what string) error {
	if state := c.State(); state != progress.Running {
		return status.Errorf(status.BadState, "%s: it is %v, but must be running", what, state)
	}
	return nil
}

// AddDevice sets the device that copies. The memory maps of all buffers must have that device.
// AddDevice fails with status.AlreadyExist if the context has a device.
func (c *Context) AddDevice(device Device) error {
	const what = "add device to DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if device == nil {
		return status.Errorf(status.InvalidValue, "%s: the device is nil", what)
	}
	if c.device != nil {
		return status.Errorf(status.AlreadyExist, "%s: it already has device %s", what,
			c.device.Name())
	}
	c.device = device
	return nil
}

// RemoveDevice undoes AddDevice. The context must be idle.
func (c *Context) RemoveDevice() error {
	const what = "remove device from DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if c.device == nil {
		return status.Errorf(status.NotFound, "%s: it has no device", what)
	}
	c.device = nil
	return nil
}

// SetJobs sets the number of jobs that can be in flight. Start fails if it exceeds MaxJobs of the
// device.
func (c *Context) SetJobs(count int) error {
	const what = "set number of jobs of DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if count < 1 {
		return status.Errorf(status.InvalidValue, "%s: %d is not positive", what, count)
	}
	c.jobs = count
	return nil
}

// Start makes the context ready to be attached. A running context cannot be configured. Start fails
// with status.BadState if the context has no device, with status.NotSupported if the device does
// not support Memcpy, and with status.TooBig if the device cannot have that many jobs in flight.
func (c *Context) Start() error {
	const what = "start DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if c.device == nil {
		return status.Errorf(status.BadState, "%s: it has no device", what)
	}
	capabilities := c.device.Capabilities()
	if !capabilities.Memcpy {
		return status.Errorf(status.NotSupported, "%s: device %s does not support memcpy jobs",
			what, c.device.Name())
	}
	if c.jobs > capabilities.MaxJobs {
		return status.Errorf(status.TooBig, "%s: %d jobs exceed the limit of %d of device %s",
			what, c.jobs, capabilities.MaxJobs, c.device.Name())
	}
	engine, err := c.device.NewEngine(c.jobs)
	if err != nil {
		return fmt.Errorf("%s on device %s: %w", what, c.device.Name(), err)
	}
	c.capabilities, c.engine = capabilities, engine
	c.slots, c.free, c.done = make([]slot, c.jobs), make([]int, c.jobs), make([]*Copy, c.jobs)
	for i := range c.slots {
		c.slots[i].copy.Slot = i
		c.free[i] = i
	}
	c.state.Store(int32(progress.Running))
	return nil
}

// Stop makes the context idle. It fails with status.InUse while the context is attached, and with
// status.BadState if it is not running.
func (c *Context) Stop() error {
	const what = "stop DMA context"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if c.progress != nil {
		return status.Errorf(status.InUse, "%s: attached to a progress engine: detach it first",
			what)
	}
	if err := c.engine.Close(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.engine = nil
	c.state.Store(int32(progress.Idle))
	return nil
}

// Close releases an idle context. It fails with status.BadState while the context is running.
// Closing a closed context does nothing.
func (c *Context) Close() error {
	if !c.closed {
		if err := c.checkIdle("close DMA context"); err != nil {
			return err
		}
		c.closed, c.device = true, nil
	}
	return nil
}

// InFlight returns the number of submitted jobs whose event has not been delivered.
func (c *Context) InFlight() int { return len(c.slots) - len(c.free) }

// Submit starts a job without waiting for it. Until the job's event has been delivered, its buffers
// cannot be changed, chained, or released. If Submit fails, it has not started the job:
//
//   - status.BadState: the context is not running and attached
//   - status.Again: the maximum number of jobs are in flight
//   - status.InvalidValue: the buffers do not fit each other
//   - status.TooBig: the job exceeds a limit of the device
//   - status.NotPermitted: a memory map lacks the access right or the device
//   - status.InUse: another job uses the destination
//
// The event reports errors that occur later.
func (c *Context) Submit(job Job) error {
	const what = "submit DMA job"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if c.progress == nil {
		return status.Errorf(status.BadState,
			"%s: the context is not attached to a progress engine", what)
	}
	if len(c.free) == 0 {
		return status.Errorf(status.Again, "%s: the maximum of %d jobs are in flight", what,
			len(c.slots))
	}
	s := &c.slots[c.free[len(c.free)-1]]
	err := c.prepare(s, job)
	if err == nil {
		err = c.engine.Submit(&s.copy)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.free = c.free[:len(c.free)-1]
	s.addUses(+1)
	return nil
}

// Attach lets a progress engine drive the context, so that jobs can be submitted. Progress of the
// engine calls handle with the event of each job that is done. handle may submit jobs and drop
// references, but not detach. Attach fails with status.BadState unless the context is running, and
// with status.InUse if it is attached.
func (c *Context) Attach(engine *progress.Engine, handle func(Event)) error {
	const what = "attach DMA context"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if engine == nil || handle == nil {
		return status.Errorf(status.InvalidValue, "%s: no progress engine, or no event handler",
			what)
	}
	if c.progress != nil {
		return status.Errorf(status.InUse, "%s: already attached", what)
	}
	err := engine.AddWaiter(c.engine)
	if err == nil {
		err = engine.Add(source{c})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.progress, c.handle = engine, handle
	return nil
}

// Detach undoes Attach. It fails with status.InUse while jobs are in flight, and with
// status.BadState if the context is not attached, or inside an event handler.
func (c *Context) Detach() error {
	const what = "detach DMA context"
	if c.progress == nil || c.polling {
		return status.Errorf(status.BadState, "%s: not attached, or called by an event handler",
			what)
	}
	if n := c.InFlight(); n > 0 {
		return status.Errorf(status.InUse,
			"%s: %d jobs are in flight: make progress until they are done", what, n)
	}
	c.progress.Remove(source{c})
	c.progress.RemoveWaiter(c.engine)
	c.progress, c.handle = nil, nil
	return nil
}

// source is the progress.Source of a context.
type source struct{ context *Context }

// Poll delivers the events of the jobs that are done.
func (s source) Poll() int {
	c := s.context
	c.polling = true
	n := c.engine.Poll(c.done)
	for _, done := range c.done[:n] {
		// Free the slot and the buffers first: the handler may use both.
		s := &c.slots[done.Slot]
		s.addUses(-1)
		event := Event{Type: s.job.Type, UserData: s.job.UserData, Err: s.copy.Err}
		if event.Err == nil {
			event.Length = s.length
			s.job.Destination.dataLength += s.length
		}
		s.job = Job{}
		c.free = append(c.free, s.copy.Slot)
		c.handle(event)
	}
	c.polling = false
	return n
}

// JobType selects what a job does.
type JobType uint8

// Memcpy appends a copy of the source's data to the data of the destination.
const Memcpy JobType = 1

// String returns the name of the type in lower case.
func (t JobType) String() string {
	if t == Memcpy {
		return "memcpy"
	}
	return "invalid"
}

// Job is one copy for a Context to execute.
type Job struct {
	Type JobType
	// Source is a buffer, or the head of a list of buffers. The job copies all of its data. Several
	// jobs may have the same source at a time.
	Source *Buffer
	// Destination has room after its data for the data of the source. It is in no list, and no
	// other job may use it at the same time.
	Destination *Buffer
	// UserData is returned in the event.
	UserData uint64
}

// Event is the outcome of a job.
type Event struct {
	Type     JobType
	UserData uint64
	// Length is the number of bytes copied; 0 if the job failed.
	Length uint64
	// Err is nil, or an error with a code of package status. If it is not nil, the content of the
	// destination after its data is undefined.
	Err error
}

// slot is an entry of the table of jobs in flight.
type slot struct {
	job    Job
	length uint64
	copy   Copy
}

// prepare checks a job and fills its slot with the copy to submit.
func (c *Context) prepare(s *slot, job Job) error {
	if job.Type != Memcpy {
		return status.Errorf(status.NotSupported, "unknown job type %d", job.Type)
	}
	source, destination := job.Source, job.Destination
	if err := source.checkClaimed("source buffer"); err != nil {
		return err
	}
	if err := destination.checkUnused("destination buffer"); err != nil {
		return err
	}
	if source.references == 0 {
		return status.Errorf(status.InvalidValue,
			"source buffer is not the head of its list: submit the head")
	}
	if destination.elements != 1 {
		return status.Errorf(status.InvalidValue,
			"destination buffer is in a list: only a source can be a list")
	}

	s.job, s.length = job, 0
	s.copy.Sources, s.copy.Err = s.copy.Sources[:0], nil
	for b := source; b != nil; b = b.next {
		switch {
		case b == destination:
			return status.Errorf(status.InvalidValue, "the same buffer is source and destination")
		case len(s.copy.Sources) == c.capabilities.MaxBufferListLength:
			return status.Errorf(status.TooBig,
				"source list of %d buffers exceeds the limit of %d of device %s",
				source.elements, c.capabilities.MaxBufferListLength, c.device.Name())
		case b.dataLength > c.capabilities.MaxBufferSize-s.length:
			return status.Errorf(status.TooBig,
				"source exceeds the limit of %d bytes per job of device %s",
				c.capabilities.MaxBufferSize, c.device.Name())
		case !b.memory.canBeSource():
			return status.Errorf(status.NotPermitted, "source memory was exported without PCIRead")
		}
		segment, err := c.segment("source", b, b.data, b.dataLength)
		if err != nil {
			return err
		}
		s.length += b.dataLength
		s.copy.Sources = append(s.copy.Sources, segment)
	}

	switch room := destination.room(); {
	case s.length == 0:
		return status.Errorf(status.InvalidValue, "source buffer has no data")
	case s.length > room:
		return status.Errorf(status.InvalidValue,
			"destination buffer has room for %d bytes, but the source has %d", room, s.length)
	case !destination.memory.canBeDestination():
		return status.Errorf(status.NotPermitted,
			"destination memory is read-only: its map lacks LocalWrite, or PCIWrite if it is imported")
	}
	var err error
	s.copy.Destination, err = c.segment("destination", destination,
		destination.data+destination.dataLength, s.length)
	return err
}

// segment describes a range of a buffer to the device.
func (c *Context) segment(what string, b *Buffer, address, length uint64) (Segment, error) {
	r := b.memory.registration(c.device)
	if r == nil {
		return Segment{}, status.Errorf(status.NotPermitted,
			"%s memory is not registered with device %s: add the device to its map", what,
			c.device.Name())
	}
	return Segment{Memory: r, Offset: address - b.memory.region.Base(), Length: length}, nil
}

// addUses adds count to the number of jobs that use each buffer of the job. A buffer that a job
// uses cannot be changed.
func (s *slot) addUses(count int) {
	for b := s.job.Source; b != nil; b = b.next {
		b.jobs += count
	}
	s.job.Destination.jobs += count
}
