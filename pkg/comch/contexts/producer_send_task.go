package contexts

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
