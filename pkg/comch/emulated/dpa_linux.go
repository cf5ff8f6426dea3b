package emulated

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpa implements comch.DPA by a pinned thread of this process.
type dpa struct {
	engine *progress.Engine
	cpus   unix.CPUSet
	ended  chan struct{} // closed when the thread has ended

	mu      sync.Mutex
	started bool
	closed  bool
	queues  int

	stopping bool // the thread's
}

func (p *provider) NewDPA(config comch.DPAConfig) (comch.DPA, error) {
	setDefault(&config.Device, DefaultDevice)
	if err := checkName("device", config.Device); err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	cpus, err := chooseCPUs(config.CPUs)
	if err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Adaptive})
	if err != nil {
		return nil, fmt.Errorf("create DPA: %w", err)
	}
	return &dpa{engine: engine, cpus: cpus, ended: make(chan struct{})}, nil
}

// maxCPUs is how many processors a unix.CPUSet has room for.
const maxCPUs = 1024

// chooseCPUs takes the last processor that this thread may use, if there is no
// wish: the first ones have most interrupts.
func chooseCPUs(wished []int) (chosen unix.CPUSet, err error) {
	var possible unix.CPUSet
	if err := unix.SchedGetaffinity(0, &possible); err != nil {
		return chosen, fmt.Errorf("get the CPUs of this process: %w", err)
	}
	for _, cpu := range wished {
		if cpu < 0 || !possible.IsSet(cpu) {
			return chosen, status.Errorf(status.InvalidValue, "CPU %d is not one that this process may use", cpu)
		}
		chosen.Set(cpu)
	}
	for cpu := 0; len(wished) == 0 && cpu < maxCPUs; cpu++ {
		if possible.IsSet(cpu) {
			chosen.Zero()
			chosen.Set(cpu)
		}
	}
	return chosen, nil
}

// kernelSource has the engine call the kernel.
type kernelSource comch.DPAKernel

func (k *kernelSource) Poll() int { return (*k)() }

func (d *dpa) Start(kernel comch.DPAKernel) error {
	if kernel == nil {
		return status.Errorf(status.InvalidValue, "start DPA: there is no kernel")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started || d.closed {
		return status.Errorf(status.BadState, "start DPA: it has been started or closed")
	}
	pinned := make(chan error)
	go d.run(kernel, pinned)
	if err := <-pinned; err != nil {
		return fmt.Errorf("start DPA: pin its thread: %w", err)
	}
	d.started = true
	return nil
}

// run is the thread. It ends with its goroutine, since it stays locked.
func (d *dpa) run(kernel comch.DPAKernel, pinned chan<- error) {
	runtime.LockOSThread()
	source := kernelSource(kernel)
	err := errors.Join(unix.SchedSetaffinity(0, &d.cpus), d.engine.Add(&source))
	pinned <- err
	if err != nil {
		return
	}
	defer close(d.ended)
	for !d.stopping {
		d.engine.Idle(d.engine.Progress())
	}
}

func (d *dpa) Wake() { d.engine.Wake() }

func (d *dpa) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.queues > 0 {
		return status.Errorf(status.InUse, "close DPA: it has %d message queues", d.queues)
	}
	d.closed = true
	if d.started {
		d.engine.Do(func() { d.stopping = true })
		<-d.ended
	}
	return d.engine.Close()
}

// attach counts a message queue.
func (d *dpa) attach() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return status.Errorf(status.BadState, "the DPA is closed")
	}
	d.queues++
	return nil
}

func (d *dpa) detach() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues--
}

// call runs f while the kernel does not run.
func (d *dpa) call(f func()) {
	d.mu.Lock()
	if !d.started {
		defer d.mu.Unlock()
		f()
		return
	}
	d.mu.Unlock()
	done := make(chan struct{})
	d.engine.Do(func() {
		f()
		close(done)
	})
	<-done
}
