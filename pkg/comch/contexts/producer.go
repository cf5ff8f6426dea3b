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
