// SPDX-License-Identifier: Apache-2.0

package software

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/internal/users"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// inlineEngine implements dma.Engine on the thread that polls it.
type inlineEngine struct {
	device    *device
	submitted fifo.Queue[*dma.Copy]
	// descriptor is an eventfd that never becomes readable: an engine with copies cannot be armed,
	// and nothing happens to one without.
	descriptor int
	closed     bool
}

// bytesPerPoll bounds how much one Poll copies, except that it always executes one copy.
const bytesPerPoll = 256 << 10

func newInlineEngine(d *device, capacity int) (*inlineEngine, error) {
	descriptor, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create DMA engine: create eventfd: %w", err)
	}
	return &inlineEngine{device: d, submitted: fifo.New[*dma.Copy](capacity),
		descriptor: descriptor}, nil
}

func (e *inlineEngine) Submit(c *dma.Copy) error {
	if e.closed {
		return status.Errorf(status.BadState, "submit copy: the DMA engine is closed")
	}
	place := e.submitted.Push()
	if place == nil {
		return status.Errorf(status.Full,
			"submit copy: the DMA engine has the maximum of %d copies in flight", e.submitted.Len())
	}
	*place = c
	return nil
}

func (e *inlineEngine) Poll(done []*dma.Copy) int {
	n := 0
	for copied := uint64(0); n < len(done) && e.submitted.Len() > 0 && copied < bytesPerPoll; n++ {
		c := e.submitted.Pop()
		c.Err = copyAll(c)
		copied += c.Destination.Length
		done[n] = c
	}
	return n
}

func (e *inlineEngine) Descriptor() int { return e.descriptor }

func (e *inlineEngine) Arm() bool { return e.submitted.Len() == 0 }

func (e *inlineEngine) Disarm() {}

func (e *inlineEngine) Clear() {}

func (e *inlineEngine) Close() error {
	if e.closed {
		return nil
	}
	if n := e.submitted.Len(); n > 0 {
		return status.Errorf(status.InUse, "close DMA engine: %d copies are in flight", n)
	}
	e.closed = true
	e.device.users.Remove(users.Engine)
	return unix.Close(e.descriptor)
}
