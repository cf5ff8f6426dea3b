// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pollBatch bounds the receives that complete in one poll of a consumer.
const pollBatch = 32

// ConsumerConfig configures a consumer.
type ConsumerConfig struct {
	// ReceiveTasks is the size of the pool of receive tasks. Mandatory.
	ReceiveTasks int
	// Received returns a receive task that holds a message to the application, and Failed one that
	// holds none. Mandatory.
	Received func(task *ReceiveTask)
	Failed   func(task *ReceiveTask, err error)
	// ImmediateLength is the maximum number of bytes of immediate data in one message; 0 means the
	// maximum of the device.
	ImmediateLength int
	// StateChanged, if set, is called after each change of state.
	StateChanged StateChanged
}

// Consumer is the context that receives messages on the fast path.
type Consumer struct {
	fastPath
	config     ConsumerConfig
	memorySize int
	memory     *memory.Region // of the application; nil if the provider allocates it
	tasks      pool[ReceiveTask]

	data    comch.Consumer // nil unless running or stopping
	waiter  *consumerWaiter
	posted  fifo.Queue[*ReceiveTask]
	late    []*ReceiveTask // submitted while stopping
	batch   [pollBatch]comch.Received
	polling bool // inside Poll, which flushes at its end
	dirty   bool // receives have been posted and not flushed
}

// NewConsumer returns an idle consumer on an established connection. Its memory has memorySize
// bytes, which the peer can read and write; receives are posted in it.
func NewConsumer(connection *Connection, memorySize int) (*Consumer, error) {
	if connection.peer == nil || connection.peer.Err() != nil {
		return nil, fmt.Errorf("create consumer: %w", connection.notConnected())
	}
	c, err := newConsumer(connection)
	if err == nil {
		c.memorySize = memorySize
		err = checkCount("memory size", memorySize, c.limits.MaxMemorySize)
	}
	if err != nil {
		return nil, fmt.Errorf("create consumer: %w", err)
	}
	return c, nil
}

// NewConsumerOnMemory returns an idle consumer that receives into the application's memory, which
// must stay open until the consumer is idle again. It fails with status.NotSupported if the device
// cannot do that (comch.Capabilities.ConsumerMemory).
func NewConsumerOnMemory(connection *Connection, region *memory.Region) (*Consumer, error) {
	if region == nil || region.Len() > math.MaxInt {
		return nil, status.Errorf(status.InvalidValue, "create consumer: no memory, or too much")
	}
	c, err := NewConsumer(connection, int(region.Len()))
	if err != nil {
		return nil, err
	}
	if !c.limits.ConsumerMemory {
		return nil, status.Errorf(status.NotSupported,
			"create consumer: the device allocates the memory of consumers itself")
	}
	c.memory = region
	return c, nil
}

func newConsumer(on channel) (*Consumer, error) {
	c := &Consumer{}
	c.create("consumer", on)
	c.finishStop = c.completeStop
	if !c.limits.Consumer {
		return nil, status.Errorf(status.NotSupported, "the device does not support consumers")
	}
	return c, nil
}

// Configure replaces the configuration of an idle consumer.
func (c *Consumer) Configure(config ConsumerConfig) error {
	if err := c.allow(configure); err != nil {
		return err
	}
	err := errors.Join(
		checkCallbacks(c.kind,
			callback{"Received", config.Received != nil}, callback{"Failed", config.Failed != nil}),
		checkCount("ReceiveTasks", config.ReceiveTasks, c.limits.MaxReceives),
		checkOptional("ImmediateLength", config.ImmediateLength, c.limits.MaxImmediateLength))
	if err != nil {
		return err
	}
	c.config = config
	c.stateChanged = config.StateChanged
	c.posted = fifo.New[*ReceiveTask](config.ReceiveTasks)
	c.tasks = newPool(config.ReceiveTasks, func(t *ReceiveTask) {
		t.consumer, t.context = c, &c.lifecycle
	})
	c.configured = true
	return nil
}

// Start starts to register the consumer with the peer. The consumer is starting until progress
// makes it running. If the registration fails, progress makes the consumer idle again, and Err
// returns the reason.
func (c *Consumer) Start(engine *progress.Engine) error {
	if err := c.prepareStart(engine); err != nil {
		return err
	}
	if err := c.channel.checkEvents(); err != nil {
		return fmt.Errorf("start consumer: %w", err)
	}
	if err := c.channel.addChild(c); err != nil {
		return fmt.Errorf("start consumer: %w", err)
	}
	c.enter(progress.Starting)
	config := comch.ConsumerConfig{
		Receives: c.config.ReceiveTasks, MemorySize: c.memorySize,
		ImmediateLength: c.config.ImmediateLength,
	}
	if c.memory != nil {
		config.Memory, config.MemorySize = c.memory, 0
	}
	c.channel.do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		data, err := c.channel.newConsumer(ctx, config)
		if !engine.Do(func() { c.started(data, err) }) && err == nil {
			_ = data.Close() // the engine is closed: nobody will use it
		}
	})
	return nil
}

func (c *Consumer) started(data comch.Consumer, err error) {
	if err == nil {
		c.waiter = &consumerWaiter{data, c}
		if err = c.engine.AddWaiter(c.waiter); err == nil {
			err = c.engine.Add(c)
		}
	}
	if err != nil {
		if data != nil {
			_ = data.Close() // err is the error to report
		}
		c.reason = err
		c.channel.removeChild(c)
		c.enter(progress.Idle)
		return
	}
	c.data = data
	c.enter(progress.Running)
}

// ID returns the consumer's id on its connection. It is 0 unless the consumer is running or
// stopping.
func (c *Consumer) ID() comch.ConsumerID {
	if c.data == nil {
		return 0
	}
	return c.data.ID()
}

// Memory returns the memory in which receives are posted. The peer can write all of it at any time.
// It is nil unless the consumer is running or stopping.
func (c *Consumer) Memory() []byte {
	if c.data == nil {
		return nil
	}
	return c.data.Memory()
}

// Poll completes receives. The engine calls it.
func (c *Consumer) Poll() int {
	if c.data == nil {
		return 0
	}
	n := 0
	if c.posted.Len() > 0 { // else any message is in a receive whose task has failed
		n = c.data.Poll(c.batch[:])
	}
	c.polling = true
	for i := range c.batch[:n] {
		t := c.posted.Pop()
		t.received = c.batch[i]
		t.owner = application
		c.config.Received(t)
	}
	if n == 0 {
		n = c.pollState()
	}
	c.polling = false
	c.flush()
	return n
}

// pollState handles the end of the connection, and fails the tasks of a stopping consumer. Poll
// calls it when no message has arrived.
func (c *Consumer) pollState() int {
	if c.is(progress.Running) && c.data.State() != progress.Running {
		if late, can := c.data.(comch.LateConsumer); can && late.Err() != nil {
			c.reason = late.Err()
		}
		if c.reason == nil {
			c.reason = status.Errorf(status.NotConnected, "the consumer has lost its connection")
		}
		c.data.Stop()
		c.enter(progress.Stopping)
		if c.allocated == 0 {
			c.engine.Do(c.finishStop)
		}
		return 1 // poll again: a last message may have arrived before the end
	}
	if !c.is(progress.Stopping) {
		return 0
	}
	late := c.late
	c.late = nil
	n := len(late)
	for i := c.posted.Len(); i > 0; i-- {
		c.fail(c.posted.Pop())
		n++
	}
	for _, t := range late {
		c.fail(t)
	}
	return n
}

func (c *Consumer) fail(t *ReceiveTask) {
	t.received = comch.Received{}
	t.owner = application
	err := errFlushed
	if c.reason != nil {
		err = c.reason
	}
	c.config.Failed(t, err)
}

func (c *Consumer) flush() {
	if c.dirty && c.data != nil {
		c.dirty = false
		c.data.Flush()
	}
}

// connectionEnded records the reason. Poll itself detects the end, after the last message.
func (c *Consumer) connectionEnded(reason error) {
	c.engine.Do(func() {
		if c.data != nil && c.reason == nil && c.is(progress.Running) {
			c.reason = reason
		}
	})
}

// Stop revokes all posted receives. Those that hold a message complete with success, the others
// with an error. A message that the peer is sending meanwhile may be lost. The consumer is idle at
// once if no tasks are allocated, and otherwise stopping until all of them are freed.
func (c *Consumer) Stop() error {
	if err := c.allow(stop); err != nil {
		return err
	}
	if c.is(progress.Stopping) {
		return nil
	}
	c.channel.settle()
	c.data.Stop()
	c.enter(progress.Stopping)
	c.completeStop()
	return nil
}

// completeStop makes a stopping consumer idle once all tasks are freed.
func (c *Consumer) completeStop() {
	if !c.is(progress.Stopping) || c.allocated > 0 || c.data == nil {
		return
	}
	data := c.data
	c.data = nil
	c.dirty = false
	c.engine.Remove(c)
	c.engine.RemoveWaiter(c.waiter)
	if err := data.Close(); err != nil && c.reason == nil {
		c.reason = err
	}
	c.channel.removeChild(c)
	c.enter(progress.Idle)
}

// consumerWaiter lets the engine sleep until a message arrives, unless there are tasks to fail.
type consumerWaiter struct {
	comch.Consumer
	context *Consumer
}

func (w *consumerWaiter) Arm() bool {
	c := w.context
	if c.is(progress.Stopping) && c.posted.Len()+len(c.late) > 0 {
		return false
	}
	return w.Consumer.Arm()
}

// ReceiveTask offers one buffer of the consumer's memory to the producers of the peer, which own
// the buffer from submission to completion.
type ReceiveTask struct {
	task
	consumer       *Consumer
	offset, length uint32
	received       comch.Received
}

// AllocateReceive returns a task from the pool for length bytes at offset of the consumer's memory.
// A buffer of length 0 receives immediate data only. AllocateReceive fails with status.NoMemory if
// all tasks are in use, and with status.InvalidValue if the buffer is outside the memory.
func (c *Consumer) AllocateReceive(offset, length uint32) (*ReceiveTask, error) {
	if err := c.allow(allocate); err != nil {
		return nil, err
	}
	if err := c.checkBuffer(offset, length); err != nil {
		return nil, fmt.Errorf("allocate receive task: %w", err)
	}
	t, err := c.tasks.get()
	if err != nil {
		return nil, err
	}
	t.claim()
	t.offset, t.length, t.received = offset, length, comch.Received{}
	return t, nil
}

func (c *Consumer) checkBuffer(offset, length uint32) error {
	if uint64(offset)+uint64(length) > uint64(c.memorySize) {
		return status.Errorf(status.InvalidValue,
			"%d bytes at offset %d are outside the consumer's memory of %d bytes", length, offset,
			c.memorySize)
	}
	if uint64(length) > uint64(c.limits.MaxBufferLength) {
		return status.Errorf(status.InvalidValue,
			"buffer of %d bytes exceeds the limit of %d", length, c.limits.MaxBufferLength)
	}
	return nil
}

// SetBuffer changes the buffer of a task that the application owns.
func (t *ReceiveTask) SetBuffer(offset, length uint32) error {
	if err := t.checkHeld("set buffer of receive task"); err != nil {
		return err
	}
	if err := t.consumer.checkBuffer(offset, length); err != nil {
		return fmt.Errorf("set buffer of receive task: %w", err)
	}
	t.offset, t.length, t.received = offset, length, comch.Received{}
	return nil
}

// Submit posts the buffer. Tasks complete in the order of their submission, each when a producer
// has filled its buffer.
func (t *ReceiveTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	c := t.consumer
	if c.is(progress.Stopping) {
		t.owner = library
		c.late = append(c.late, t)
		return nil
	}
	if err := c.data.PostReceive(t.offset, t.length, 0); err != nil {
		return err
	}
	t.owner = library
	*c.posted.Push() = t
	c.dirty = true
	if !c.polling {
		c.flush()
	}
	return nil
}

// Data returns the received message in the consumer's memory. The peer can still change it: copy it
// once, and examine the copy. Data is nil until the task has completed with success, and once the
// consumer is idle.
func (t *ReceiveTask) Data() []byte {
	if t.owner != application || t.consumer.data == nil {
		return nil
	}
	return t.consumer.data.Memory()[t.received.Offset:][:t.received.Length]
}

// Immediate returns the received immediate data, which is valid until the task is submitted or
// freed.
func (t *ReceiveTask) Immediate() []byte {
	return t.received.Immediate[:t.received.ImmediateLength]
}

// Producer returns the id of the producer that sent the message, or 0 if no message has been
// received.
func (t *ReceiveTask) Producer() uint32 { return t.received.Producer }

// Free returns the task to the pool. It fails with status.InUse while the task is submitted.
func (t *ReceiveTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.consumer.tasks.put(t)
	return nil
}
