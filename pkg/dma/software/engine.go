package software

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// engine implements dma.Engine. Its Waiter is the queue of what is done.
type engine struct {
	*queue // of copies that are done

	device   *device
	thread   *copyThread
	capacity int
	inFlight int
	closed   bool
}

func newEngine(d *device, capacity int) (*engine, error) {
	done, err := newQueue(capacity)
	if err != nil {
		return nil, fmt.Errorf("create DMA engine: %w", err)
	}
	thread, err := startCopyThread(done, capacity, d.policy)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create DMA engine: %w", err), done.close())
	}
	return &engine{queue: done, device: d, thread: thread, capacity: capacity}, nil
}

func (e *engine) Submit(c *dma.Copy) error {
	if e.closed {
		return status.Errorf(status.BadState, "DMA engine is closed")
	}
	if e.inFlight == e.capacity {
		return status.Errorf(status.Full, "DMA engine has %d copies in flight", e.inFlight)
	}
	e.inFlight++
	e.thread.submitted.add(c)
	return nil
}

func (e *engine) Poll(done []*dma.Copy) int {
	n := 0
	for n < len(done) {
		c := e.take()
		if c == nil {
			break
		}
		done[n] = c
		n++
	}
	e.inFlight -= n
	return n
}

func (e *engine) Close() error {
	if e.closed {
		return nil
	}
	if e.inFlight > 0 {
		return status.Errorf(status.InUse, "close DMA engine: %d copies are in flight", e.inFlight)
	}
	e.closed = true
	err := errors.Join(e.thread.stop(), e.close())
	e.device.discount(&e.device.engines)
	return err
}
