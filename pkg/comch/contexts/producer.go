// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProducerConfig configures a producer.
type ProducerConfig struct {
	// SendTasks is the size of the pool of send tasks. Mandatory.
	SendTasks int
	// Sent and Failed return a send task to the application. Mandatory.
	Sent   func(task *ProducerSendTask)
	Failed func(task *ProducerSendTask, err error)
	// StateChanged, if set, is called after each change of state.
	StateChanged StateChanged
}

// Producer is the context that sends messages on the fast path, to any consumer of the peer.
// Messages to one consumer arrive in the order of their submission.
type Producer struct {
	fastPath
	config    ProducerConfig
	tasks     pool[ProducerSendTask]
	outboxes  []*outbox // one for each consumer that has been sent to
	completed fifo.Queue[*ProducerSendTask]
	started   bool // set from Start until the producer is idle again

	opening int             // outboxes that are being opened
	ctx     context.Context // of their goroutines
	cancel  context.CancelFunc
}

// NewProducer returns an idle producer on an established connection.
func NewProducer(connection *Connection) (*Producer, error) {
	if connection.peer == nil || connection.peer.Err() != nil {
		return nil, fmt.Errorf("create producer: %w", connection.notConnected())
	}
	return newProducer(connection)
}

func newProducer(on channel) (*Producer, error) {
	p := &Producer{}
	p.create("producer", on)
	p.finishStop = p.completeStop
	if !p.limits.Producer {
		return nil, status.Errorf(status.NotSupported,
			"create producer: the device does not support producers")
	}
	return p, nil
}

// Configure replaces the configuration of an idle producer.
func (p *Producer) Configure(config ProducerConfig) error {
	if err := p.allow(configure); err != nil {
		return err
	}
	err := errors.Join(
		checkCallbacks(p.kind, callback{"Sent", config.Sent != nil},
			callback{"Failed", config.Failed != nil}),
		checkCount("SendTasks", config.SendTasks, p.limits.MaxSendTasks))
	if err != nil {
		return err
	}
	p.config = config
	p.stateChanged = config.StateChanged
	p.completed = fifo.New[*ProducerSendTask](config.SendTasks)
	p.tasks = newPool(config.SendTasks, func(t *ProducerSendTask) {
		t.producer, t.context = p, &p.lifecycle
	})
	p.configured = true
	return nil
}

// Start starts the producer. It is running when Start returns nil.
func (p *Producer) Start(engine *progress.Engine) error {
	if err := p.prepareStart(engine); err != nil {
		return err
	}
	if err := p.channel.checkEvents(); err != nil {
		return fmt.Errorf("start producer: %w", err)
	}
	if err := p.channel.addChild(p); err != nil {
		return fmt.Errorf("start producer: %w", err)
	}
	if err := engine.Add(p); err != nil {
		p.channel.removeChild(p)
		return fmt.Errorf("start producer: %w", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.started = true
	p.enter(progress.Running)
	return nil
}

// ID returns the id under which a consumer of the peer knows this producer. It is 0 until the
// provider has created its producer for that consumer, which the first Submit starts.
func (p *Producer) ID(consumer comch.ConsumerID) uint32 {
	if o := p.outboxTo(consumer); o != nil && o.data != nil {
		return o.data.ID()
	}
	return 0
}

// outboxTo returns nil if there is no outbox to the consumer.
func (p *Producer) outboxTo(consumer comch.ConsumerID) *outbox {
	for _, o := range p.outboxes {
		if o.consumer == consumer {
			return o
		}
	}
	return nil
}

// Poll sends waiting messages and completes tasks. The engine calls it.
func (p *Producer) Poll() int {
	n := 0
	for _, o := range p.outboxes {
		if o.queue.Len()+o.sent.Len() > 0 || o.isConsumerGone() {
			n += o.send()
		}
	}
	for i := p.completed.Len(); i > 0; i-- {
		t := p.completed.Pop()
		t.owner = application
		n++
		if t.err == nil {
			p.config.Sent(t)
		} else {
			p.config.Failed(t, t.err)
		}
	}
	p.outboxes = slices.DeleteFunc(p.outboxes, func(o *outbox) bool {
		if o.opening || o.err == nil || o.queue.Len() > 0 {
			return false
		}
		o.close() // the consumer is gone
		return true
	})
	return n
}

// completeTask makes the next Poll return a task to the application.
func (p *Producer) completeTask(t *ProducerSendTask, err error) {
	t.err = err
	*p.completed.Push() = t
}

// connectionEnded stops the producer on its own thread.
func (p *Producer) connectionEnded(reason error) {
	p.engine.Do(func() {
		if p.is(progress.Running) {
			p.reason = reason
			p.stopSending(reason)
		}
	})
}

// stopSending fails the messages that have not been sent.
func (p *Producer) stopSending(reason error) {
	p.enter(progress.Stopping)
	p.cancel()
	for _, o := range p.outboxes {
		o.fail(reason)
	}
	p.completeStop()
}

// Stop fails the tasks whose messages have not been sent. The producer is idle at once if no tasks
// are allocated, and otherwise stopping until all of them are freed.
func (p *Producer) Stop() error {
	if err := p.allow(stop); err != nil {
		return err
	}
	if p.is(progress.Running) {
		p.stopSending(errFlushed)
	}
	return nil
}

// completeStop makes a stopping producer idle once all tasks are freed.
func (p *Producer) completeStop() {
	if !p.is(progress.Stopping) || p.allocated > 0 || p.opening > 0 || !p.started {
		return
	}
	p.started = false
	for _, o := range p.outboxes {
		o.close()
	}
	p.outboxes = nil
	p.engine.Remove(p)
	p.channel.removeChild(p)
	p.enter(progress.Idle)
}

// ProducerSendTask sends one message to one consumer. The message must not change between the
// submission of the task and its completion.
type ProducerSendTask struct {
	task
	producer        *Producer
	consumer        comch.ConsumerID
	message         []byte
	immediate       [comch.MaxImmediateLength]byte
	immediateLength int
	err             error
}

// AllocateSend returns a task from the pool that sends message, which may be empty, and a copy of
// immediate to a consumer of the peer. It fails with status.NoMemory if all tasks are in use, and
// with status.InvalidValue if the message is longer than any buffer can be.
func (p *Producer) AllocateSend(
	consumer comch.ConsumerID, message, immediate []byte,
) (*ProducerSendTask, error) {
	if err := p.allow(allocate); err != nil {
		return nil, err
	}
	if err := p.checkMessage(message, immediate); err != nil {
		return nil, fmt.Errorf("allocate send task: %w", err)
	}
	t, err := p.tasks.get()
	if err != nil {
		return nil, err
	}
	t.claim()
	t.set(consumer, message, immediate)
	return t, nil
}

func (p *Producer) checkMessage(message, immediate []byte) error {
	if len(message) > p.limits.MaxBufferLength {
		return status.Errorf(status.InvalidValue,
			"message of %d bytes exceeds the limit of %d", len(message), p.limits.MaxBufferLength)
	}
	if len(immediate) > p.limits.MaxImmediateLength {
		return status.Errorf(status.InvalidValue,
			"%d bytes of immediate data exceed the limit of %d", len(immediate),
			p.limits.MaxImmediateLength)
	}
	return nil
}

// Set changes the consumer and the message of a task that the application owns.
func (t *ProducerSendTask) Set(consumer comch.ConsumerID, message, immediate []byte) error {
	if err := t.checkHeld("set message of send task"); err != nil {
		return err
	}
	if err := t.producer.checkMessage(message, immediate); err != nil {
		return fmt.Errorf("set message of send task: %w", err)
	}
	t.set(consumer, message, immediate)
	return nil
}

func (t *ProducerSendTask) set(consumer comch.ConsumerID, message, immediate []byte) {
	t.consumer, t.message, t.err = consumer, message, nil
	t.immediateLength = copy(t.immediate[:], immediate)
}

// Consumer returns the id of the consumer that the task sends to.
func (t *ProducerSendTask) Consumer() comch.ConsumerID { return t.consumer }

// Submit sends the message, or queues it until the consumer has posted a receive. The task
// completes with success when the message is in the consumer's buffer. It fails with
// status.InvalidValue if the message is longer than the buffer, and with status.NotFound if the
// peer has no such consumer.
func (t *ProducerSendTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	p := t.producer
	t.owner = library
	if p.is(progress.Stopping) {
		p.completeTask(t, errFlushed)
		p.engine.Wake()
		return nil
	}
	o := p.outboxTo(t.consumer)
	if o == nil {
		o = p.openOutbox(t.consumer)
	}
	if o.err != nil {
		p.completeTask(t, o.err)
		p.engine.Wake()
		return nil
	}
	*o.queue.Push() = t
	if o.queue.Len() == 1 {
		o.send()
	}
	return nil
}

// Free returns the task to the pool. It fails with status.InUse while the task is submitted.
func (t *ProducerSendTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.message = nil
	t.producer.tasks.put(t)
	return nil
}

// outbox holds the messages for one consumer until the consumer has room for them. As a
// progress.Waiter it lets the engine sleep until then.
type outbox struct {
	producer *Producer
	consumer comch.ConsumerID
	opening  bool
	data     comch.Producer // nil until the outbox is open
	err      error          // why nothing can be sent any more
	queue    fifo.Queue[*ProducerSendTask]
	// late is data if its sends complete later, and sent then holds their tasks.
	late comch.LateProducer
	sent fifo.Queue[*ProducerSendTask]
}

// openOutbox adds an outbox and starts to create the provider's producer for it, which may block.
func (p *Producer) openOutbox(consumer comch.ConsumerID) *outbox {
	o := &outbox{
		producer: p, consumer: consumer, opening: true,
		queue: fifo.New[*ProducerSendTask](p.config.SendTasks),
		sent:  fifo.New[*ProducerSendTask](p.config.SendTasks),
	}
	p.outboxes = append(p.outboxes, o)
	p.opening++
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	go func() {
		defer cancel()
		data, err := p.channel.newProducer(ctx, consumer)
		if !p.engine.Do(func() { o.opened(data, err) }) && err == nil {
			_ = data.Close() // the engine is closed: nobody will use it
		}
	}()
	return o
}

func (o *outbox) opened(data comch.Producer, err error) {
	p := o.producer
	p.opening--
	o.opening = false
	if err == nil {
		o.data = data
		o.late, _ = data.(comch.LateProducer)
		err = p.engine.AddWaiter(o)
		if err != nil {
			o.data = nil
			_ = data.Close() // err is the error to report
		}
	}
	if err != nil {
		o.fail(err)
	}
	p.completeStop()
}

// isConsumerGone reports whether the consumer is gone and the outbox has not failed yet.
func (o *outbox) isConsumerGone() bool {
	return o.data != nil && o.err == nil && o.data.State() != progress.Running
}

// send completes the tasks that the device has sent, sends the messages for which the consumer has
// room, and returns the amount of work done.
func (o *outbox) send() int {
	if o.data == nil {
		return 0
	}
	gone := o.isConsumerGone() // before the last sends are collected
	n := 0
	if o.late != nil {
		for range min(o.late.Poll(), o.sent.Len()) {
			o.producer.completeTask(o.sent.Pop(), nil)
			n++
		}
	}
	if gone {
		err := status.Errorf(status.NotConnected, "consumer %d is gone", o.consumer)
		if o.late != nil && o.late.Err() != nil {
			err = fmt.Errorf("send to consumer %d: %w", o.consumer, o.late.Err())
		}
		o.fail(err)
		return n + 1
	}
	unflushed := false
	for o.queue.Len() > 0 {
		t := *o.queue.Front()
		err := o.data.Send(t.message, t.immediate[:t.immediateLength])
		if err == error(status.Again) {
			break
		}
		if err == nil && o.late != nil {
			*o.sent.Push() = o.queue.Pop()
		} else {
			o.producer.completeTask(o.queue.Pop(), err)
		}
		unflushed = true
		n++
	}
	if unflushed {
		o.data.Flush()
	}
	return n
}

// fail completes all messages that are queued or on their way with an error. Later messages fail
// too.
func (o *outbox) fail(err error) {
	if o.err == nil {
		o.err = err
	}
	for o.sent.Len() > 0 {
		o.producer.completeTask(o.sent.Pop(), o.err)
	}
	for o.queue.Len() > 0 {
		o.producer.completeTask(o.queue.Pop(), o.err)
	}
	o.producer.engine.Wake() // so that Poll completes the tasks
}

func (o *outbox) close() {
	if o.data == nil {
		return
	}
	o.producer.engine.RemoveWaiter(o)
	if o.late != nil {
		o.late.Abort() // the tasks of what is in flight have failed
	}
	_ = o.data.Close() // no outcome of a message depends on it
	o.data, o.late = nil, nil
}

// Descriptor implements progress.Waiter.
func (o *outbox) Descriptor() int { return o.data.Descriptor() }

// Arm reports whether the engine may sleep: there is nothing to complete, and either nothing to
// send or no room at the consumer.
func (o *outbox) Arm() bool {
	if o.producer.completed.Len() > 0 || o.isConsumerGone() {
		return false
	}
	return o.queue.Len() == 0 && o.late == nil || o.data.Arm()
}

// Disarm also works if Arm has not armed the provider's producer.
func (o *outbox) Disarm() { o.data.Disarm() }

// Clear implements progress.Waiter.
func (o *outbox) Clear() { o.data.Clear() }
