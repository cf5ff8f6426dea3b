// SPDX-License-Identifier: Apache-2.0

package msgq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpa implements comch.DPA with a pinned thread of this process, whose engine polls the kernel.
type dpa struct {
	engine *progress.Engine
	cpus   unix.CPUSet
	ended  chan struct{} // closed when the thread has ended

	mu      sync.Mutex
	started bool
	closed  bool
	queues  int

	stopping bool // belongs to the thread
}

// NewDPA returns a DPA whose thread runs on the given CPUs. The default is the last CPU that this
// process may use, because the first ones serve most interrupts.
func NewDPA(cpus []int) (comch.DPA, error) {
	var possible, chosen unix.CPUSet
	if err := unix.SchedGetaffinity(0, &possible); err != nil {
		return nil, fmt.Errorf("get the CPUs of this process: %w", err)
	}
	for _, cpu := range cpus {
		if cpu < 0 || !possible.IsSet(cpu) {
			return nil, status.Errorf(status.InvalidValue,
				"this process cannot run on CPU %d", cpu)
		}
		chosen.Set(cpu)
	}
	for cpu := maxCPUs - 1; len(cpus) == 0 && cpu >= 0; cpu-- {
		if possible.IsSet(cpu) {
			chosen.Set(cpu)
			break
		}
	}
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Adaptive})
	if err != nil {
		return nil, err
	}
	return &dpa{engine: engine, cpus: chosen, ended: make(chan struct{})}, nil
}

// maxCPUs is how many CPUs a unix.CPUSet can hold.
const maxCPUs = 1024

// Start pins the thread before it returns.
func (d *dpa) Start(kernel comch.DPAKernel) error {
	if kernel == nil {
		return status.Errorf(status.InvalidValue, "start DPA: kernel is nil")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started || d.closed {
		return status.Errorf(status.BadState, "start DPA: already started or closed")
	}
	pinned := make(chan error)
	go d.run(kernel, pinned)
	if err := <-pinned; err != nil {
		return fmt.Errorf("start the thread of the DPA: %w", err)
	}
	d.started = true
	return nil
}

// kernelSource lets the engine call the kernel.
type kernelSource comch.DPAKernel

func (k *kernelSource) Poll() int { return (*k)() }

// run is the thread. It never unlocks the OS thread, which therefore ends with the goroutine.
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

// Wake makes the thread call the kernel.
func (d *dpa) Wake() { d.engine.Wake() }

// Close waits for the thread to end. A second Close does nothing.
func (d *dpa) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.queues > 0 {
		return status.Errorf(status.InUse, "close DPA: %d message queues are still open", d.queues)
	}
	d.closed = true
	if d.started {
		d.engine.Do(func() { d.stopping = true })
		<-d.ended
	}
	return d.engine.Close()
}

// addQueue counts a message queue; Close fails while there are any.
func (d *dpa) addQueue() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return status.Errorf(status.BadState, "DPA is closed")
	}
	d.queues++
	return nil
}

func (d *dpa) removeQueue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues--
}

// exclude runs f while the kernel does not run, and waits until f has returned.
func (d *dpa) exclude(f func()) {
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

// dpaConsumer implements comch.DPAConsumer.
type dpaConsumer struct {
	queue    *msgq
	data     comch.Consumer
	receives int
	acked    int // posted receives that have not completed
	closed   bool
}

// NewDPAConsumer creates a DPA consumer, on queues to the DPA only. Its messages wake the thread.
func (q *msgq) NewDPAConsumer(ctx context.Context, receives int) (comch.DPAConsumer, error) {
	if err := q.addObject(comch.DPAConsumers); err != nil {
		return nil, fmt.Errorf("create DPA consumer with %d receives: %w", receives, err)
	}
	data, err := q.dpaSide.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: receives, MemorySize: noMemory})
	if err != nil {
		q.removeObject()
		return nil, fmt.Errorf("create DPA consumer with %d receives: %w", receives, err)
	}
	c := &dpaConsumer{queue: q, data: data, receives: receives}
	q.dpa.exclude(func() { err = q.dpa.engine.AddWaiter(data) })
	if err != nil {
		_ = data.Close() // err is the cause
		q.removeObject()
		return nil, fmt.Errorf("create DPA consumer with %d receives: %w", receives, err)
	}
	return c, nil
}

// ID returns the id of the underlying consumer.
func (c *dpaConsumer) ID() comch.ConsumerID { return c.data.ID() }

// Ack posts an empty receive for each message.
func (c *dpaConsumer) Ack(messages int) error {
	if messages < 1 {
		return status.Errorf(status.InvalidValue, "ack: invalid number of messages %d", messages)
	}
	if messages > c.receives-c.acked {
		return status.Errorf(status.Full,
			"ack: %d messages exceed the room for %d in a queue of %d",
			messages, c.receives-c.acked, c.receives)
	}
	for range messages {
		if err := c.data.PostReceive(0, 0, 0); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		c.acked++
	}
	c.data.Flush()
	return nil
}

// Poll makes room for as many acks as it returns messages.
func (c *dpaConsumer) Poll(received []comch.Received) int {
	n := c.data.Poll(received)
	c.acked -= n
	return n
}

// Close waits for the kernel to return. A second Close does nothing.
func (c *dpaConsumer) Close() error {
	var err error
	c.queue.dpa.exclude(func() {
		if c.closed {
			return
		}
		c.closed = true
		c.queue.dpa.engine.RemoveWaiter(c.data)
		err = c.data.Close()
		c.queue.removeObject()
	})
	return err
}
