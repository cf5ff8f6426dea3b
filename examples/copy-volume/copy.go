// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The copy keeps depth pieces of pieceSize bytes in progress.
const (
	depth     = 16
	pieceSize = 256 << 10
)

// copier copies one volume to another. Both use the same memory, so a piece that was read is
// written from where it is.
type copier struct {
	from, to side
	memory   *memory.Region
	engine   *progress.Engine
	pieces   [depth]piece
	free     []uint64 // indexes of pieces
	rest     int64    // where the range begins that no piece has yet
	size     int64
	copied   int64
}

// side is one of the volumes.
type side struct {
	volume *client.Volume
	queue  *client.Queue
	kind   client.RequestType
	again  []uint64 // pieces whose request has to be submitted
}

// piece is a part of the volumes that is being copied, in its part of the memory.
type piece struct {
	offset int64
	length uint32
}

// open opens both volumes with one memory.
func open(ctx context.Context, from, to client.Config) (*copier, error) {
	shared, err := memory.Alloc("copy-volume", depth*pieceSize)
	if err != nil {
		return nil, err
	}
	c := &copier{memory: shared}
	for i := range uint64(depth) {
		c.free = append(c.free, i)
	}
	if c.engine, err = progress.NewEngine(progress.Policy{}); err != nil {
		return nil, errors.Join(err, shared.Close())
	}
	from.ReadOnly, to.Exclusive = true, true
	for _, s := range []struct {
		side   *side
		config client.Config
		kind   client.RequestType
	}{{&c.from, from, client.Read}, {&c.to, to, client.Write}} {
		s.config.Queues, s.config.Depth, s.config.BufferSize = 1, depth, pieceSize
		s.config.SyncDepth, s.config.Memory = -1, shared
		v, err := client.Open(ctx, s.config)
		if err != nil {
			return nil, errors.Join(err, c.close(ctx))
		}
		*s.side = side{volume: v, queue: v.Queue(0), kind: s.kind}
		if err := s.side.queue.Attach(c.engine); err != nil {
			return nil, errors.Join(err, c.close(ctx))
		}
	}
	if c.size = c.from.volume.Size(); c.to.volume.Size() < c.size {
		return nil, errors.Join(fmt.Errorf("the volume to write has %d bytes, %d are needed",
			c.to.volume.Size(), c.size), c.close(ctx))
	}
	return c, nil
}

// close closes both volumes, and frees the memory when no relay has it any more.
func (c *copier) close(ctx context.Context) error {
	var failures []error
	for _, s := range []*side{&c.from, &c.to} {
		if s.volume != nil {
			s.queue.Detach(c.engine)
			failures = append(failures, s.volume.Close(ctx))
		}
	}
	err := errors.Join(failures...)
	if !errors.Is(err, client.ErrQuarantined) {
		err = errors.Join(err, c.memory.Close())
	}
	return errors.Join(err, c.engine.Close())
}

// run copies everything from an offset on, which is a multiple of pieceSize. When ctx ends it
// finishes the pieces in progress, and starts no more. It returns where the next copy has to begin.
func (c *copier) run(ctx context.Context, start int64) (next int64, err error) {
	c.rest = start
	results := make([]client.Result, depth)
	for c.rest < c.size || len(c.free) < depth {
		if ctx.Err() == nil {
			c.startPieces()
		} else if len(c.free) == depth {
			return c.rest, context.Cause(ctx)
		}
		n := 0
		for _, s := range []*side{&c.from, &c.to} {
			got := s.queue.Poll(results)
			for i := range results[:got] {
				if err := c.finish(s, &results[i]); err != nil {
					return start, err
				}
			}
			if err := c.submit(s); err != nil {
				return start, err
			}
			s.queue.Ring()
			n += got
		}
		c.engine.Idle(n)
	}
	return c.size, nil
}

// startPieces gives every free piece the next part of the volume.
func (c *copier) startPieces() {
	for len(c.free) > 0 && c.rest < c.size {
		index := c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
		n := min(c.size-c.rest, pieceSize)
		c.pieces[index] = piece{c.rest, uint32(n)}
		c.rest += n
		c.from.again = append(c.from.again, index)
	}
}

// submit submits the requests of a side that wait for the queue, as far as it takes them.
func (c *copier) submit(s *side) error {
	for len(s.again) > 0 {
		index := s.again[len(s.again)-1]
		p := &c.pieces[index]
		err := s.queue.Submit(&client.Request{Type: s.kind, Offset: uint64(p.offset),
			Length: p.length, Memory: index * pieceSize, Tag: index})
		if errors.Is(err, status.Again) {
			return nil // the queue is full, or the volume is being reopened: poll
		}
		if err != nil {
			return fmt.Errorf("%v %d bytes at %d: %w", s.kind, p.length, p.offset, err)
		}
		s.again = s.again[:len(s.again)-1]
	}
	return nil
}

// finish carries on with a piece whose request has completed on one side.
func (c *copier) finish(s *side, result *client.Result) error {
	p := &c.pieces[result.Tag]
	switch {
	case result.Code == status.Success && s == &c.from:
		c.to.again = append(c.to.again, result.Tag)
	case result.Code == status.Success:
		c.copied += int64(p.length)
		c.free = append(c.free, result.Tag)
	case client.CanRepeat(result.Code) && s.volume.Err() == nil:
		s.again = append(s.again, result.Tag) // the session was lost
	default:
		return fmt.Errorf("%v %d bytes at %d: %w", s.kind, p.length, p.offset, result.Err())
	}
	return nil
}
