package contexts

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ReceiveTask offers one buffer of a consumer's memory to the peer's
// producers. Between submission and completion its buffer is theirs.
type ReceiveTask struct {
	task
	consumer       *Consumer
	offset, length uint32
	received       comch.Received
}

// AllocateReceive takes a task from the pool for length bytes at offset of the
// consumer's memory. A buffer of no bytes receives immediate data only.
// status.NoMemory if all tasks are in use, status.InvalidValue if the buffer
// is outside the memory.
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
	t.take()
	t.offset, t.length, t.received = offset, length, comch.Received{}
	return t, nil
}

func (c *Consumer) checkBuffer(offset, length uint32) error {
	if uint64(offset)+uint64(length) > uint64(c.memorySize) {
		return status.Errorf(status.InvalidValue, "%d bytes at offset %d are outside the consumer's memory of %d bytes",
			length, offset, c.memorySize)
	}
	if uint64(length) > uint64(c.limits.MaxBufferLength) {
		return status.Errorf(status.InvalidValue, "buffer of %d bytes, the limit is %d", length, c.limits.MaxBufferLength)
	}
	return nil
}

// SetBuffer changes the buffer of a task that is the application's.
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

// Submit posts the buffer. Tasks complete in the order in which they were
// submitted, each when a producer has written to its buffer.
func (t *ReceiveTask) Submit() error {
	if err := t.checkSubmit(); err != nil {
		return err
	}
	c := t.consumer
	if c.is(progress.Stopping) {
		t.owner = library
		c.refused = append(c.refused, t)
		return nil
	}
	if err := c.data.PostReceive(t.offset, t.length, 0); err != nil {
		return err
	}
	t.owner = library
	c.posted.push(t)
	c.dirty = true
	if !c.polling {
		c.flush()
	}
	return nil
}

// Data is what was received, in the consumer's memory: the peer can still
// change it, so it is copied once and then examined. There is none before the
// task has completed with success, and after the consumer has become idle.
func (t *ReceiveTask) Data() []byte {
	if t.owner != application || t.consumer.data == nil {
		return nil
	}
	return t.consumer.data.Memory()[t.received.Offset:][:t.received.Length]
}

// Immediate is the immediate data that was received, valid until the task is
// submitted or freed.
func (t *ReceiveTask) Immediate() []byte {
	return t.received.Immediate[:t.received.ImmediateLength]
}

// Producer is the id of the producer of what was received, 0 before.
func (t *ReceiveTask) Producer() uint32 { return t.received.Producer }

// Free gives the task back to the pool. It fails with status.InUse while the
// task is submitted.
func (t *ReceiveTask) Free() error {
	if err := t.release(); err != nil {
		return err
	}
	t.consumer.tasks.put(t)
	return nil
}
