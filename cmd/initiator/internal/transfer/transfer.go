// Package transfer moves byte streams to and from a volume through queues,
// with many requests outstanding and no copy between the stream's reads or
// writes and the data memory.
package transfer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Volume is what a transfer needs of an opened volume.
type Volume interface {
	Info() client.Info
	// Memory is the data memory that the queues' requests refer to.
	Memory() []byte
	// WriteAt and Flush are used by Put only.
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
}

// Queue is what a transfer needs of a client.Queue.
type Queue interface {
	Submit(request *client.Request) error
	Flush()
	Poll(results []client.Result) int
	Attach(engine *progress.Engine) error
	Detach(engine *progress.Engine)
}

// Config is what a transfer works with.
type Config struct {
	Volume Volume
	// Queues are used by nobody else. Each has Depth requests of at most
	// BufferSize bytes outstanding, for which Volume.Memory has room.
	Queues     []Queue
	Depth      int
	BufferSize uint32
	Policy     progress.Policy
	// DrainTimeout bounds the wait for outstanding requests after a failure.
	DrainTimeout time.Duration
	// Observe is told now and then how many bytes were moved; may be nil.
	Observe func(bytes uint64)
}

// extent is a range of whole blocks of the volume.
type extent struct {
	offset uint64
	length uint32
}

// job is one transfer, shared by the threads of all queues.
type job interface {
	// kind is iomsg.Read or iomsg.Write.
	kind() iomsg.Type
	// next takes the next extent and fills the buffer if it is to be written.
	// Length 0 is the end.
	next(buffer []byte) (extent, error)
	// done is called in the order of next, for one queue, when the data of an
	// extent has been moved.
	done(e extent, data []byte) error
}

// carryOut does a job on all queues.
func (c *Config) carryOut(ctx context.Context, j job, moved *atomic.Uint64) error {
	run := supervisor.New(running, 0, c.DrainTimeout)
	workers := make([]*worker, len(c.Queues))
	size := uint64(c.Depth) * uint64(c.BufferSize)
	for i := range workers {
		memory := uint64(i) * size
		workers[i] = &worker{
			queue: c.Queues[i], run: run, job: j,
			buffers: c.Volume.Memory()[memory:][:size], memory: memory, bufferSize: uint64(c.BufferSize),
			slots: make([]slot, c.Depth),
		}
		if err := run.Threads().Go(affinity.AnyCPU, c.Policy, workers[i].body); err != nil {
			workers[i].fail(err)
			workers = workers[:i+1]
			break
		}
	}
	err := run.Wait(ctx, func() { c.observe(moved) })
	for _, w := range workers {
		if err == nil {
			err = w.failure
		}
	}
	if err == nil && run.Interrupted() {
		err = context.Cause(ctx)
	}
	return err
}

func (c *Config) observe(moved *atomic.Uint64) {
	if c.Observe != nil {
		c.Observe(moved.Load())
	}
}

// incomplete says of a transfer that failed how far it was.
func incomplete(what string, moved *atomic.Uint64, err error) error {
	return fmt.Errorf("%s: broke off after %d bytes: %w", what, moved.Load(), err)
}
