// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A round writes all blocks with its number, flushes, and reads them again. Block i has buffer i of
// the data memory, and another copy of its content in the program, which a relay cannot reach.
const (
	blocks    = 16
	blockSize = 4096
)

// configure completes the configuration of a volume.
func configure(config client.Config) client.Config {
	config.Queues, config.Depth, config.BufferSize, config.SyncDepth = 1, blocks, blockSize, -1
	return config
}

// stage is what a round does at the moment.
type stage int

const (
	writing stage = iota
	flushing
	reading
)

// writer carries out one round after another.
type writer struct {
	volume   *client.Volume
	queue    *client.Queue
	flusher  *client.Flusher
	stage    stage
	todo     []uint64 // requests of the stage to submit: blocks, or flushTag
	left     int      // requests of the stage that have not succeeded
	rounds   atomic.Uint64
	isEnding bool // this round is the last one
	isOver   bool
	results  [blocks]client.Result
}

// flushTag is the tag of a flush; others are numbers of blocks.
const flushTag = blocks

func newWriter(v *client.Volume) *writer {
	w := &writer{volume: v, queue: v.Queue(0), flusher: v.NewFlusher()}
	w.begin(writing)
	return w
}

// begin begins a stage.
func (w *writer) begin(s stage) {
	w.stage, w.todo = s, w.todo[:0]
	if s == flushing {
		w.todo = append(w.todo, flushTag)
	} else {
		for i := range uint64(blocks) {
			w.todo = append(w.todo, i)
		}
	}
	w.left = len(w.todo)
}

// step does what can be done without waiting.
func (w *writer) step() error {
	for {
		if err := w.submit(); err != nil {
			return err
		}
		w.queue.Ring()
		n := w.queue.Poll(w.results[:])
		for i := range w.results[:n] {
			if err := w.finish(&w.results[i]); err != nil {
				return err
			}
		}
		switch {
		case w.left > 0 && n == 0:
			return w.volume.Err() // nothing to do until the next event
		case w.left > 0:
		case w.stage == reading:
			w.rounds.Add(1)
			if w.isOver = w.isEnding; w.isOver {
				return nil
			}
			w.begin(writing)
		default:
			w.begin(w.stage + 1)
		}
	}
}

// submit submits what the queue takes.
func (w *writer) submit() error {
	for len(w.todo) > 0 {
		tag := w.todo[len(w.todo)-1]
		r := client.Request{Type: client.Flush, Flusher: w.flusher, Tag: tag}
		if tag != flushTag {
			r = client.Request{Type: client.Write, Offset: tag * blockSize, Length: blockSize,
				Memory: tag * blockSize, Tag: tag}
			if w.stage == reading {
				r.Type = client.Read
			}
			w.fill(tag)
		}
		err := w.queue.Submit(&r)
		switch {
		case errors.Is(err, client.ErrMemoryReplaced):
			w.queue.SwitchMemory()
			continue
		case errors.Is(err, status.Again):
			return nil // until the next event
		case errors.Is(err, client.ErrWritesLost):
			w.begin(writing) // the round again
			continue
		case err != nil:
			return err
		}
		w.todo = w.todo[:len(w.todo)-1]
	}
	return nil
}

// fill prepares the buffer of a block: for a write with its content, for a read with another one.
func (w *writer) fill(block uint64) {
	buffer := w.queue.Memory()[block*blockSize:][:blockSize]
	for i := range blockSize / 8 {
		binary.BigEndian.PutUint64(buffer[8*i:], w.content(block, w.stage == writing))
	}
}

// content returns a number of which a block consists in this round, or one of no round.
func (w *writer) content(block uint64, isReal bool) uint64 {
	if !isReal {
		return ^uint64(0)
	}
	return w.rounds.Load()*blocks + block
}

// finish is called with the result of a request.
func (w *writer) finish(result *client.Result) error {
	switch {
	case result.Code == status.Success:
		w.left--
	case client.CanRepeat(result.Code) && w.volume.Err() == nil:
		w.todo = append(w.todo, result.Tag) // the session was lost
		return nil
	default:
		return fmt.Errorf("round %d: request %d: %w", w.rounds.Load(), result.Tag, result.Err())
	}
	if w.stage != reading {
		return nil
	}
	buffer := w.queue.Memory()[result.Tag*blockSize:][:blockSize]
	for i := range blockSize / 8 {
		got, want := binary.BigEndian.Uint64(buffer[8*i:]), w.content(result.Tag, true)
		if got != want {
			return fmt.Errorf("round %d: block %d has %d at %d, want %d", w.rounds.Load(),
				result.Tag, got, 8*i, want)
		}
	}
	return nil
}
