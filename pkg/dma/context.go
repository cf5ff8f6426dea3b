package dma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultJobs is how many jobs of a context can be in flight unless SetJobs
// says otherwise.
const DefaultJobs = 32

// Context takes jobs for one device (doca_dma). It is idle until Start and
// running until Stop. It belongs to one thread, which also runs the progress
// engine that it is attached to; only State may be asked by others.
type Context struct {
	state  atomic.Int32
	closed bool
	jobs   int
	device Device

	// While it is running:
	capabilities Capabilities
	engine       Engine
	slots        []slot
	free         []int // indices of slots
	done         []*Copy

	// While it is attached:
	progress *progress.Engine
	handle   func(Event)
	polling  bool
}

// NewContext makes an idle context without a device.
func NewContext() *Context { return &Context{jobs: DefaultJobs} }

// State is Idle or Running.
func (c *Context) State() progress.State { return progress.State(c.state.Load()) }

// configurable fails unless the context is idle.
func (c *Context) checkIdle(what string) error {
	if c.closed {
		return status.Errorf(status.BadState, "%s: it is closed", what)
	}
	if state := c.State(); state != progress.Idle {
		return status.Errorf(status.BadState, "%s: it is %v, not idle", what, state)
	}
	return nil
}

// running fails unless the context is running.
func (c *Context) checkRunning(what string) error {
	if state := c.State(); state != progress.Running {
		return status.Errorf(status.BadState, "%s: it is %v, not running", what, state)
	}
	return nil
}

// AddDevice says which device is to copy. It must be one of those that the
// memory maps of the buffers were given. status.AlreadyExist if there is one.
func (c *Context) AddDevice(device Device) error {
	const what = "add device to DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if device == nil {
		return status.Errorf(status.InvalidValue, "%s: there is no device", what)
	}
	if c.device != nil {
		return status.Errorf(status.AlreadyExist, "%s: it has device %s", what, c.device.Name())
	}
	c.device = device
	return nil
}

// RemoveDevice takes back AddDevice, when the context has been stopped.
func (c *Context) RemoveDevice() error {
	const what = "remove device from DMA context"
	if err := c.checkIdle(what); err != nil {
		return err
	}
	if c.device == nil {
		return status.Errorf(status.NotFound, "%s: it has none", what)
	}
	c.device = nil
	return nil
}

// SetJobs says how many jobs can be in flight, at most the device's MaxJobs.
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

// Start makes the context ready to be attached. From then on it cannot be
// configured. status.BadState without a device, status.NotSupported if the
// device cannot copy, status.TooBig if it cannot have that many jobs.
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
		return status.Errorf(status.NotSupported, "%s: device %s does no memcpy jobs", what, c.device.Name())
	}
	if c.jobs > capabilities.MaxJobs {
		return status.Errorf(status.TooBig, "%s: %d jobs are more than the %d of device %s", what, c.jobs, capabilities.MaxJobs, c.device.Name())
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

// Stop makes the context idle. status.InUse while it is attached,
// status.BadState if it is not running.
func (c *Context) Stop() error {
	const what = "stop DMA context"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if c.progress != nil {
		return status.Errorf(status.InUse, "%s: it is attached to a progress engine: detach it first", what)
	}
	if err := c.engine.Close(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.engine = nil
	c.state.Store(int32(progress.Idle))
	return nil
}

// Close gives an idle context up. status.BadState while it is running. Closing
// it again does nothing.
func (c *Context) Close() error {
	if !c.closed {
		if err := c.checkIdle("close DMA context"); err != nil {
			return err
		}
		c.closed, c.device = true, nil
	}
	return nil
}

// InFlight is how many jobs were submitted and have not come back.
func (c *Context) InFlight() int { return len(c.slots) - len(c.free) }

// Submit begins a job without waiting for it. What can be found wrong at once
// is returned, and the job has then not been begun: status.BadState unless the
// context is running and attached, status.Again if all jobs are in flight,
// status.InvalidValue for buffers that do not fit each other, status.TooBig
// beyond the device's limits, status.NotPermitted for memory without the right
// or the device, status.InUse for a destination that another job uses. What goes
// wrong later is told by the job's event. Until that comes, the buffers cannot
// be changed, chained or given back.
func (c *Context) Submit(job Job) error {
	const what = "submit DMA job"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if c.progress == nil {
		return status.Errorf(status.BadState, "%s: the context is attached to no progress engine", what)
	}
	if len(c.free) == 0 {
		return status.Errorf(status.Again, "%s: all %d jobs are in flight", what, len(c.slots))
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
	s.hold(+1)
	return nil
}

// Attach lets a progress engine drive the context: from then on jobs can be
// submitted, and the engine's Progress calls handle with the event of every
// job that is done, on the engine's thread. handle may submit jobs and drop
// references, but not detach. status.BadState unless the context is running,
// status.InUse if it is attached.
func (c *Context) Attach(engine *progress.Engine, handle func(Event)) error {
	const what = "attach DMA context"
	if err := c.checkRunning(what); err != nil {
		return err
	}
	if engine == nil || handle == nil {
		return status.Errorf(status.InvalidValue, "%s: there is no progress engine, or nobody to take events", what)
	}
	if c.progress != nil {
		return status.Errorf(status.InUse, "%s: it is attached already", what)
	}
	if err := errors.Join(engine.AddWaiter(c.engine), engine.Add(source{c})); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.progress, c.handle = engine, handle
	return nil
}

// Detach ends what Attach began. status.InUse while jobs are in flight,
// status.BadState if the context is not attached, or from within an event.
func (c *Context) Detach() error {
	const what = "detach DMA context"
	if c.progress == nil || c.polling {
		return status.Errorf(status.BadState, "%s: it is not attached, or handles an event", what)
	}
	if n := c.InFlight(); n > 0 {
		return status.Errorf(status.InUse, "%s: %d jobs are in flight: progress until their events have come", what, n)
	}
	c.progress.Remove(source{c})
	c.progress.RemoveWaiter(c.engine)
	c.progress, c.handle = nil, nil
	return nil
}

// source is a context as its progress engine sees it.
type source struct{ context *Context }

// Poll hands over the events of what is done.
func (s source) Poll() int {
	c := s.context
	c.polling = true
	n := c.engine.Poll(c.done)
	for _, done := range c.done[:n] {
		// The job's buffers are free before its event is delivered, so that the
		// handler may do with them what it likes.
		s := &c.slots[done.Slot]
		s.hold(-1)
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

// JobType is what a job does.
type JobType uint8

// Memcpy copies the data of the source and appends it to that of the
// destination.
const Memcpy JobType = 1

// String returns the lower-case name of the type.
func (t JobType) String() string {
	if t == Memcpy {
		return "memcpy"
	}
	return "invalid"
}

// Job is what a Context can be asked to do.
type Job struct {
	Type JobType
	// Source is the buffer, or the head of a list of buffers, whose data is
	// copied. Its data says how much that is. It may be the source of several
	// jobs at a time.
	Source *Buffer
	// Destination has room behind its data for that of the source. It takes
	// part in one job at a time, and is in no list.
	Destination *Buffer
	// UserData comes back in the event.
	UserData uint64
}

// Event tells the outcome of a job.
type Event struct {
	Type     JobType
	UserData uint64
	// Length is how many bytes were copied; 0 if the job has failed.
	Length uint64
	// Err is nil, or what has gone wrong, with a code of package status. The
	// room of the destination then holds anything.
	Err error
}

// slot is a job in flight.
type slot struct {
	job    Job
	length uint64
	copy   Copy
}

// prepare checks a job as far as that is possible before it is begun, and
// describes it to the engine.
func (c *Context) prepare(s *slot, job Job) error {
	if job.Type != Memcpy {
		return status.Errorf(status.NotSupported, "job type %d is none that a DMA device knows", job.Type)
	}
	source, destination := job.Source, job.Destination
	if err := source.checkClaimed("source buffer"); err != nil {
		return err
	}
	if err := destination.checkUnused("destination buffer"); err != nil {
		return err
	}
	if source.references == 0 {
		return status.Errorf(status.InvalidValue, "source buffer is in the middle of a list: submit its head")
	}
	if destination.elements != 1 {
		return status.Errorf(status.InvalidValue, "destination buffer is in a list: only sources can be")
	}

	s.job, s.length = job, 0
	s.copy.Sources, s.copy.Err = s.copy.Sources[:0], nil
	for b := source; b != nil; b = b.next {
		switch {
		case b == destination:
			return status.Errorf(status.InvalidValue, "a buffer is both source and destination")
		case len(s.copy.Sources) == c.capabilities.MaxBufferListLength:
			return status.Errorf(status.TooBig, "source list has %d buffers, device %s takes %d",
				source.elements, c.device.Name(), c.capabilities.MaxBufferListLength)
		case b.dataLength > c.capabilities.MaxBufferSize-s.length:
			return status.Errorf(status.TooBig, "source has more than the %d bytes that device %s can copy in one job",
				c.capabilities.MaxBufferSize, c.device.Name())
		case !b.memory.canBeSource():
			return status.Errorf(status.NotPermitted, "source memory was exported without the right to read it (PCIRead)")
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
		return status.Errorf(status.InvalidValue, "destination buffer has room for %d bytes, the source has %d", room, s.length)
	case !destination.memory.canBeDestination():
		return status.Errorf(status.NotPermitted, "destination memory may not be written: its map lacks LocalWrite, or PCIWrite if it is imported")
	}
	var err error
	s.copy.Destination, err = c.segment("destination", destination, destination.data+destination.dataLength, s.length)
	return err
}

// segment is a range of a buffer as the device knows it.
func (c *Context) segment(what string, b *Buffer, address, length uint64) (Segment, error) {
	r := b.memory.registration(c.device)
	if r == nil {
		return Segment{}, status.Errorf(status.NotPermitted, "%s memory was not given to device %s, which is to copy it", what, c.device.Name())
	}
	return Segment{Memory: r, Offset: address - b.memory.region.Base(), Length: length}, nil
}

// hold keeps the buffers of a job as they are until it is done.
func (s *slot) hold(count int) {
	for b := s.job.Source; b != nil; b = b.next {
		b.jobs += count
	}
	s.job.Destination.jobs += count
}
