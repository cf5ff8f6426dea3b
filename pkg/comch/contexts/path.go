package contexts

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
