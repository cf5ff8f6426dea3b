// SPDX-License-Identifier: Apache-2.0

package msgq

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpaProducer implements comch.DPAProducer with one producer for each consumer that it sends to.
type dpaProducer struct {
	queue     *msgq
	sends     int
	userData  uint64
	paths     []*dpaPath
	completed int // requested completions that have not been polled
	closed    bool
}

// NewDPAProducer creates a DPA producer, on queues from the DPA only.
func (q *msgq) NewDPAProducer(_ context.Context, sends int, userData uint64,
) (comch.DPAProducer, error) {
	if sends < 1 || sends > q.capabilities.MaxReceives {
		return nil, status.Errorf(status.InvalidValue,
			"create DPA producer: %d sends are not between 1 and %d",
			sends, q.capabilities.MaxReceives)
	}
	if err := q.addObject(comch.DPAProducers); err != nil {
		return nil, fmt.Errorf("create DPA producer: %w", err)
	}
	return &dpaProducer{queue: q, sends: sends, userData: userData}, nil
}

// IsConsumerEmpty makes the DPA call the kernel when an empty consumer has posted receives.
func (p *dpaProducer) IsConsumerEmpty(consumer comch.ConsumerID) (bool, error) {
	path, err := p.path(consumer)
	if err != nil {
		return false, fmt.Errorf("check consumer %d for receives: %w", consumer, err)
	}
	path.waiting = !path.CanSend()
	return path.waiting, nil
}

// PostSendImmediate makes the DPA call the kernel again after status.Again.
func (p *dpaProducer) PostSendImmediate(consumer comch.ConsumerID, immediate []byte,
	completionRequested bool) error {
	path, err := p.readyPath(consumer, completionRequested)
	if err != nil {
		return err
	}
	return p.send(path, immediate, completionRequested)
}

// DMACopy copies only after it has checked everything that could make the send fail.
func (p *dpaProducer) DMACopy(
	consumer comch.ConsumerID, destination, source comch.DPABuffer, length uint64,
	immediate []byte, completionRequested bool,
) error {
	if len(immediate) > comch.MaxImmediateLength {
		return status.Errorf(status.InvalidValue,
			"DMA copy: %d bytes of immediate data, the limit is %d",
			len(immediate), comch.MaxImmediateLength)
	}
	if err := checkDMACopy(destination, source, length); err != nil {
		return fmt.Errorf("DMA copy of %d bytes: %w", length, err)
	}
	path, err := p.readyPath(consumer, completionRequested)
	if err != nil {
		return err
	}
	if limit := path.ImmediateLength(); len(immediate) > limit {
		return status.Errorf(status.InvalidValue,
			"DMA copy: %d bytes of immediate data, the consumer accepts %d",
			len(immediate), limit)
	}
	err = memory.Copy(destination.Region, destination.Offset, source.Region, source.Offset, length)
	if err != nil {
		return fmt.Errorf("DMA copy of %d bytes: %w", length, err)
	}
	return p.send(path, immediate, completionRequested)
}

func checkDMACopy(destination, source comch.DPABuffer, length uint64) error {
	for what, b := range map[string]comch.DPABuffer{"destination": destination, "source": source} {
		if b.Region == nil {
			return status.Errorf(status.InvalidValue, "%s has no region", what)
		}
		if err := b.Region.CheckRange(b.Offset, length); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if !destination.Access.Has(memory.PCIWrite) {
		return status.Errorf(status.NotPermitted, "destination is not writable: its rights are %#x",
			uint32(destination.Access))
	}
	if !source.Access.Has(memory.PCIRead) {
		return status.Errorf(status.NotPermitted, "source is not readable: its rights are %#x",
			uint32(source.Access))
	}
	if destination.Region.Mapped() && source.Region.Mapped() {
		to := destination.Region.Bytes()[destination.Offset:][:length]
		from := source.Region.Bytes()[source.Offset:][:length]
		if overlap(to, from) {
			return status.Errorf(status.InvalidValue, "source and destination overlap")
		}
	}
	return nil
}

// readyPath returns the path to a consumer that has a receive posted.
func (p *dpaProducer) readyPath(consumer comch.ConsumerID, completionRequested bool,
) (*dpaPath, error) {
	path, err := p.path(consumer)
	if err != nil {
		return nil, fmt.Errorf("send to consumer %d: %w", consumer, err)
	}
	if !path.CanSend() {
		path.waiting = true
		return nil, status.Again
	}
	if completionRequested && p.completed == p.sends {
		return nil, status.Full
	}
	return path, nil
}

func (p *dpaProducer) send(path *dpaPath, immediate []byte, completionRequested bool) error {
	if err := path.Send(nil, immediate); err != nil {
		return err
	}
	path.Flush()
	if completionRequested {
		p.completed++
	}
	return nil
}

// dpaPath is a producer for one CPU consumer. As a progress.Waiter it keeps the thread awake only
// if the kernel found the consumer empty and the consumer has posted receives since.
type dpaPath struct {
	Producer
	consumer comch.ConsumerID
	waiting  bool // the kernel found the consumer empty
}

// Arm returns false if the kernel waits for the consumer and it has posted receives.
func (p *dpaPath) Arm() bool {
	if !p.waiting || p.Producer.Arm() {
		return true
	}
	p.waiting = false
	return false
}

// path returns the path to a consumer, which it opens for the first message. It closes a path whose
// consumer is gone, so that the next call looks for the consumer again.
func (p *dpaProducer) path(consumer comch.ConsumerID) (*dpaPath, error) {
	if p.closed {
		return nil, status.Errorf(status.BadState, "DPA producer is closed")
	}
	for i, path := range p.paths {
		if path.consumer != consumer {
			continue
		}
		if path.State() == progress.Running {
			return path, nil
		}
		p.closePath(path)
		p.paths = append(p.paths[:i], p.paths[i+1:]...)
		return nil, status.Errorf(status.NotFound, "consumer %d is gone", consumer)
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	data, err := p.queue.dpaSide.NewProducer(ctx, consumer)
	if err != nil {
		return nil, err
	}
	path := &dpaPath{Producer: data.(Producer), consumer: consumer}
	if err := p.queue.dpa.engine.AddWaiter(path); err != nil {
		_ = data.Close() // err is the cause
		return nil, err
	}
	p.paths = append(p.paths, path)
	return path, nil
}

// openTimeout bounds how long the first message to a consumer takes.
const openTimeout = time.Second

func (p *dpaProducer) closePath(path *dpaPath) {
	p.queue.dpa.engine.RemoveWaiter(path)
	_ = path.Close() // the consumer is gone or does not depend on it
}

// Poll makes room for as many completions as it returns.
func (p *dpaProducer) Poll(completions []comch.DPACompletion) int {
	n := min(len(completions), p.completed)
	for i := range n {
		completions[i].UserData = p.userData
	}
	p.completed -= n
	return n
}

// Close waits for the kernel to return. A second Close does nothing.
func (p *dpaProducer) Close() error {
	p.queue.dpa.exclude(func() {
		if p.closed {
			return
		}
		p.closed = true
		for _, path := range p.paths {
			p.closePath(path)
		}
		p.paths = nil
		p.queue.removeObject()
	})
	return nil
}
