package dma

import (
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
func (c *Context) configurable(what string) error {
	if c.closed {
		return status.Errorf(status.BadState, "%s: it is closed", what)
	}
	if state := c.State(); state != progress.Idle {
		return status.Errorf(status.BadState, "%s: it is %v, not idle", what, state)
	}
	return nil
}

// running fails unless the context is running.
func (c *Context) running(what string) error {
	if state := c.State(); state != progress.Running {
		return status.Errorf(status.BadState, "%s: it is %v, not running", what, state)
	}
	return nil
}

// AddDevice says which device is to copy. It must be one of those that the
// memory maps of the buffers were given. status.AlreadyExist if there is one.
func (c *Context) AddDevice(device Device) error {
	const what = "add device to DMA context"
	if err := c.configurable(what); err != nil {
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
	if err := c.configurable(what); err != nil {
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
	if err := c.configurable(what); err != nil {
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
	if err := c.configurable(what); err != nil {
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
	if err := c.running(what); err != nil {
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
		if err := c.configurable("close DMA context"); err != nil {
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
	if err := c.running(what); err != nil {
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
