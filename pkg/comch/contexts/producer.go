package contexts

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProducerConfig configures a producer.
type ProducerConfig struct {
	// SendTasks is the size of the pool of send tasks. Mandatory.
	SendTasks int
	// Sent and Failed give a send task back to the application. Mandatory.
	Sent   func(task *ProducerSendTask)
	Failed func(task *ProducerSendTask, err error)
	// StateChanged, if set, is called after each change of state.
	StateChanged StateChanged
}

// Producer is the context that sends on the fast path, to any consumer of the
// peer. Messages to one consumer arrive in the order of their submission.
type Producer struct {
	fastPath
	config    ProducerConfig
	tasks     pool[ProducerSendTask]
	paths     []*path
	completed fifo[*ProducerSendTask]
	alive     bool // between start and finish
}

// NewProducer creates an idle producer on an established connection.
func NewProducer(connection *Connection) (*Producer, error) {
	if connection.peer == nil || connection.peer.Err() != nil {
		return nil, fmt.Errorf("create producer: %w", connection.notConnected())
	}
	return newProducer(connection)
}

func newProducer(on channel) (*Producer, error) {
	p := &Producer{}
	p.create("producer", on)
	p.settle = p.finish
	if !p.limits.Producer {
		return nil, status.Errorf(status.NotSupported, "create producer: the device has none")
	}
	return p, nil
}

// Configure sets everything anew. Only an idle producer can be configured.
func (p *Producer) Configure(config ProducerConfig) error {
	if err := p.allow(configure); err != nil {
		return err
	}
	err := errors.Join(
		checkCallbacks(p.kind, callback{"Sent", config.Sent != nil}, callback{"Failed", config.Failed != nil}),
		checkCount("SendTasks", config.SendTasks, p.limits.MaxSendTasks))
	if err != nil {
		return err
	}
	p.config = config
	p.changed = config.StateChanged
	p.tasks = newPool(config.SendTasks, func(t *ProducerSendTask) { t.producer, t.context = p, &p.lifecycle })
	p.ready = true
	return nil
}

// Start lets the producer run.
func (p *Producer) Start(engine *progress.Engine) error {
	if err := p.begin(engine); err != nil {
		return err
	}
	if err := p.channel.checkEvents(); err != nil {
		return fmt.Errorf("start producer: %w", err)
	}
	if err := p.channel.adopt(p); err != nil {
		return fmt.Errorf("start producer: %w", err)
	}
	if err := engine.Add(p); err != nil {
		p.channel.disown(p)
		return fmt.Errorf("start producer: %w", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.alive = true
	p.enter(progress.Running)
	return nil
}

// ID is the number by which the given consumer knows this producer, 0 before
// the first message to it has gone.
func (p *Producer) ID(consumer comch.ConsumerID) uint32 {
	if way := p.find(consumer); way != nil && way.data != nil {
		return way.data.ID()
	}
	return 0
}

func (p *Producer) find(consumer comch.ConsumerID) *path {
	for _, way := range p.paths {
		if way.consumer == consumer {
			return way
		}
	}
	return nil
}

// Poll is called by the engine. It completes tasks, and sends what could not
// be sent before.
func (p *Producer) Poll() int {
	n := 0
	for _, way := range p.paths {
		if way.queue.length() > 0 || way.over() {
			n += way.send()
		}
	}
	for i := p.completed.length(); i > 0; i-- {
		t := p.completed.pop()
		t.owner = application
		n++
		if t.err == nil {
			p.config.Sent(t)
		} else {
			p.config.Failed(t, t.err)
		}
	}
	p.removeEndedPaths()
	return n
}

// finishTask has Poll give a task back.
func (p *Producer) finishTask(t *ProducerSendTask, err error) {
	t.err = err
	p.completed.push(t)
}

// removeEndedPaths closes the paths to consumers that are gone.
func (p *Producer) removeEndedPaths() {
	p.paths = slices.DeleteFunc(p.paths, func(way *path) bool {
		if way.opening || way.err == nil || way.queue.length() > 0 {
			return false
		}
		way.close()
		return true
	})
}

// connectionEnded stops the producer: there is nobody left to send to.
func (p *Producer) connectionEnded(reason error) {
	p.engine.Do(func() {
		if p.is(progress.Running) {
			p.reason = reason
			p.stopSending(reason)
		}
	})
}

// stopSending fails everything that has not been sent.
func (p *Producer) stopSending(reason error) {
	p.enter(progress.Stopping)
	p.cancel()
	for _, way := range p.paths {
		way.fail(reason)
	}
	p.finish()
}

// Stop gives up what has not been sent; these tasks complete with an error.
// The producer is idle if it had no tasks, and else stopping until all tasks
// are freed.
func (p *Producer) Stop() error {
	if err := p.allow(stop); err != nil {
		return err
	}
	if p.is(progress.Running) {
		p.stopSending(errFlushed)
	}
	return nil
}

// finish makes a stopping producer idle once all tasks are freed.
func (p *Producer) finish() {
	if !p.is(progress.Stopping) || p.allocated > 0 || p.pending > 0 || !p.alive {
		return
	}
	p.alive = false
	for _, way := range p.paths {
		way.close()
	}
	p.paths = nil
	p.engine.Remove(p)
	p.channel.disown(p)
	p.enter(progress.Idle)
}

// ProducerSendTask sends one message to a consumer. Once it is submitted its
// message must not be changed until it completes.
type ProducerSendTask struct {
	task
	producer        *Producer
	consumer        comch.ConsumerID
	message         []byte
	immediate       [comch.MaxImmediateLength]byte
	immediateLength int
	err             error
}

// AllocateSend takes a task from the pool that sends message, which may be
// empty, and immediate, which is copied, to a consumer of the peer.
// status.NoMemory if all tasks are in use, status.InvalidValue if the message
// is longer than any buffer can be.
func (p *Producer) AllocateSend(consumer comch.ConsumerID, message, immediate []byte) (*ProducerSendTask, error) {
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
	t.take()
	t.set(consumer, message, immediate)
	return t, nil
}

func (p *Producer) checkMessage(message, immediate []byte) error {
	if len(message) > p.limits.MaxBufferLength {
		return status.Errorf(status.InvalidValue, "message of %d bytes, the limit is %d", len(message), p.limits.MaxBufferLength)
	}
	if len(immediate) > p.limits.MaxImmediateLength {
		return status.Errorf(status.InvalidValue, "%d bytes of immediate data, the limit is %d", len(immediate), p.limits.MaxImmediateLength)
	}
	return nil
}

// Set changes what a task that is the application's sends, and to whom.
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

// Consumer is whom the task sends to.
func (t *ProducerSendTask) Consumer() comch.ConsumerID { return t.consumer }

// Submit sends the message, or queues it until the consumer has posted a
// receive. The task completes when the message is in the consumer's buffer.
// It fails with status.InvalidValue if the message is longer than that buffer,
// status.NotFound if the peer has no such consumer.
func (t *ProducerSendTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	p := t.producer
	t.owner = library
	if p.is(progress.Stopping) {
		p.finishTask(t, errFlushed)
		p.engine.Wake()
		return nil
	}
	way := p.find(t.consumer)
	if way == nil {
		way = p.openPath(t.consumer)
	}
	if way.err != nil {
		p.finishTask(t, way.err)
		p.engine.Wake()
		return nil
	}
	way.queue.push(t)
	if way.queue.length() == 1 {
		way.send()
	}
	return nil
}

// Free gives the task back to the pool. It fails with status.InUse while the
// task is submitted.
func (t *ProducerSendTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.message = nil
	t.producer.tasks.put(t)
	return nil
}

// path leads from a producer to one consumer. It is opened by the first
// message.
type path struct {
	producer *Producer
	consumer comch.ConsumerID
	opening  bool
	data     comch.Producer // nil until it is open
	err      error          // why nothing can be sent any more
	queue    fifo[*ProducerSendTask]
}

func (p *Producer) openPath(consumer comch.ConsumerID) *path {
	way := &path{producer: p, consumer: consumer, opening: true}
	p.paths = append(p.paths, way)
	p.pending++
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	go func() {
		defer cancel()
		data, err := p.channel.newProducer(ctx, consumer)
		if !p.engine.Do(func() { way.opened(data, err) }) && err == nil {
			_ = data.Close() // nobody will ever use it
		}
	}()
	return way
}

func (w *path) opened(data comch.Producer, err error) {
	p := w.producer
	p.pending--
	w.opening = false
	if err == nil {
		w.data = data
		err = p.engine.AddWaiter(w)
		if err != nil {
			w.data = nil
			_ = data.Close() // err says more
		}
	}
	if err != nil {
		w.fail(err)
	}
	p.finish()
}

// over reports whether the consumer has gone and nobody has noticed.
func (w *path) over() bool {
	return w.data != nil && w.err == nil && w.data.State() != progress.Running
}

// send sends what the consumer has room for and returns how many messages
// that were.
func (w *path) send() int {
	if w.data == nil {
		return 0
	}
	if w.over() {
		w.fail(status.Errorf(status.NotConnected, "consumer %d is gone", w.consumer))
		return 1
	}
	n := 0
	for w.queue.length() > 0 {
		t := w.queue.first()
		err := w.data.Send(t.message, t.immediate[:t.immediateLength])
		if err == error(status.Again) {
			break
		}
		w.producer.finishTask(w.queue.pop(), err)
		n++
	}
	if n > 0 {
		w.data.Flush()
	}
	return n
}

// fail gives up on the consumer, and on all messages to it.
func (w *path) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	for w.queue.length() > 0 {
		w.producer.finishTask(w.queue.pop(), w.err)
	}
	w.producer.engine.Wake() // to tell of these
}

func (w *path) close() {
	if w.data == nil {
		return
	}
	w.producer.engine.RemoveWaiter(w)
	_ = w.data.Close() // nothing is lost that has not been told
	w.data = nil
}

// Descriptor, Arm, Disarm and Drain let the engine sleep until the consumer
// has room, if there is something to send to it.
func (w *path) Descriptor() int { return w.data.Descriptor() }

// Arm reports whether there is nothing to do.
func (w *path) Arm() bool {
	if w.producer.completed.length() > 0 || w.over() {
		return false
	}
	return w.queue.length() == 0 || w.data.Arm()
}

// Disarm is harmless if Arm has not armed.
func (w *path) Disarm() { w.data.Disarm() }

// Drain takes the rings of the doorbell.
func (w *path) Drain() { w.data.Drain() }
