package emulated

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpaProducer implements comch.DPAProducer.
type dpaProducer struct {
	queue     *msgq
	sends     int
	userData  uint64
	paths     []*dpaPath
	completed int // requested completions that have not been polled
	closed    bool
}

// dpaPath leads to one CPU consumer. It is a progress.Waiter that keeps the
// thread awake only if the consumer was found empty and has room again.
type dpaPath struct {
	*producer
	hungry bool
}

func (p *dpaPath) empty() bool { return !p.consumer.ring.ready() }

// Arm reports whether there is nothing that the kernel waits for.
func (p *dpaPath) Arm() bool {
	if !p.hungry || p.producer.Arm() {
		return true
	}
	p.hungry = false
	return false
}

// dpaOpenTimeout bounds how long a first message to a consumer takes.
const dpaOpenTimeout = time.Second

func (q *msgq) NewDPAProducer(_ context.Context, sends int, userData uint64) (comch.DPAProducer, error) {
	if err := checkCount("sends", sends, q.limits.MaxReceives); err != nil {
		return nil, fmt.Errorf("create DPA producer: %w", err)
	}
	if err := q.enter(comch.DPAProducers); err != nil {
		return nil, fmt.Errorf("create DPA producer: %w", err)
	}
	return &dpaProducer{queue: q, sends: sends, userData: userData}, nil
}

// path finds the way to a consumer, or opens it.
func (p *dpaProducer) path(consumer comch.ConsumerID) (*dpaPath, error) {
	if p.closed {
		return nil, status.Errorf(status.BadState, "the DPA producer is closed")
	}
	for i, way := range p.paths {
		if way.consumer.id != consumer {
			continue
		}
		if way.running() {
			return way, nil
		}
		p.closePath(way)
		p.paths = append(p.paths[:i], p.paths[i+1:]...)
		return nil, status.Errorf(status.NotFound, "consumer %d is gone", consumer)
	}
	return p.open(consumer)
}

func (p *dpaProducer) open(consumer comch.ConsumerID) (*dpaPath, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dpaOpenTimeout)
	defer cancel()
	data, err := p.queue.dpaSide.NewProducer(ctx, consumer)
	if err != nil {
		return nil, err
	}
	way := &dpaPath{producer: data.(*producer)}
	if err := p.queue.dpa.engine.AddWaiter(way); err != nil {
		_ = data.Close() // err says more
		return nil, err
	}
	p.paths = append(p.paths, way)
	return way, nil
}

func (p *dpaProducer) closePath(way *dpaPath) {
	p.queue.dpa.engine.RemoveWaiter(way)
	_ = way.producer.Close() // the consumer has gone, or is not told anything
}

func (p *dpaProducer) IsConsumerEmpty(consumer comch.ConsumerID) (bool, error) {
	way, err := p.path(consumer)
	if err != nil {
		return false, fmt.Errorf("look at consumer %d: %w", consumer, err)
	}
	way.hungry = way.empty()
	return way.hungry, nil
}

func (p *dpaProducer) PostSendImmediate(consumer comch.ConsumerID, immediate []byte, completionRequested bool) error {
	way, err := p.ready(consumer, completionRequested)
	if err != nil {
		return err
	}
	return p.send(way, immediate, completionRequested)
}

// ready finds the way to a consumer that has a receive posted.
func (p *dpaProducer) ready(consumer comch.ConsumerID, completionRequested bool) (*dpaPath, error) {
	way, err := p.path(consumer)
	if err != nil {
		return nil, fmt.Errorf("send to consumer %d: %w", consumer, err)
	}
	if way.empty() {
		way.hungry = true
		return nil, status.Again
	}
	if completionRequested && p.completed == p.sends {
		return nil, status.Full
	}
	return way, nil
}

func (p *dpaProducer) send(way *dpaPath, immediate []byte, completionRequested bool) error {
	if err := way.Send(nil, immediate); err != nil {
		return err
	}
	way.Flush()
	if completionRequested {
		p.completed++
	}
	return nil
}

func (p *dpaProducer) DMACopy(consumer comch.ConsumerID, destination, source comch.DPABuffer, length uint64, immediate []byte, completionRequested bool) error {
	if len(immediate) > comch.MaxImmediateLength {
		return status.Errorf(status.InvalidValue, "DMA copy: %d bytes of immediate data, the limit is %d", len(immediate), comch.MaxImmediateLength)
	}
	if err := checkDMACopy(destination, source, length); err != nil {
		return fmt.Errorf("DMA copy of %d bytes: %w", length, err)
	}
	way, err := p.ready(consumer, completionRequested)
	if err != nil {
		return err
	}
	if limit := way.consumer.ring.immediate; len(immediate) > limit {
		return status.Errorf(status.InvalidValue, "DMA copy: %d bytes of immediate data, the consumer takes %d", len(immediate), limit)
	}
	if err := memory.Copy(destination.Region, destination.Offset, source.Region, source.Offset, length); err != nil {
		return fmt.Errorf("DMA copy of %d bytes: %w", length, err)
	}
	return p.send(way, immediate, completionRequested)
}

func checkDMACopy(destination, source comch.DPABuffer, length uint64) error {
	for what, b := range map[string]comch.DPABuffer{"destination": destination, "source": source} {
		if b.Region == nil {
			return status.Errorf(status.InvalidValue, "there is no %s", what)
		}
		if err := b.Region.CheckRange(b.Offset, length); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if !destination.Access.Has(memory.PCIWrite) {
		return status.Errorf(status.NotPermitted, "the destination may not be written: its rights are %#x", uint32(destination.Access))
	}
	if !source.Access.Has(memory.PCIRead) {
		return status.Errorf(status.NotPermitted, "the source may not be read: its rights are %#x", uint32(source.Access))
	}
	if destination.Region.Mapped() && source.Region.Mapped() &&
		overlap(destination.Region.Bytes()[destination.Offset:][:length], source.Region.Bytes()[source.Offset:][:length]) {
		return status.Errorf(status.InvalidValue, "source and destination overlap")
	}
	return nil
}

func (p *dpaProducer) Poll(completions []comch.DPACompletion) int {
	n := min(len(completions), p.completed)
	for i := range n {
		completions[i].UserData = p.userData
	}
	p.completed -= n
	return n
}

func (p *dpaProducer) Close() error {
	p.queue.dpa.call(func() {
		if p.closed {
			return
		}
		p.closed = true
		for _, way := range p.paths {
			p.closePath(way)
		}
		p.paths = nil
		p.queue.leave()
	})
	return nil
}
