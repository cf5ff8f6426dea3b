// SPDX-License-Identifier: Apache-2.0

// Package dmacopy copies a file between a host and its DPU: control messages
// go over Comch, and DMA jobs of the DPU move the data.
//
// The DPU is the Comch server serviceName, the host its client. The side that
// has the file is the source.
//
//	host → DPU   offer: whether the host has the file, and its size
//	DPU → host   plan: direction, size, and how the window is divided
//	host → DPU   export: descriptor of the window, which is host memory
//	source       filled, for each chunk that is in its slot of the window
//	sink         released, for each chunk that is in the file
//	source       end: size and checksum of the whole file
//	sink         status: success, once the file has its name and is on disk
//
// Chunk n uses slot n modulo the number of slots, so that several chunks are in flight at a time.
// Every chunk carries the CRC32C of the file so far, and the sink computes the same over what it
// writes. At any time, either side may send a status with an error, which ends the copy, or alive,
// which restarts the peer's timeout. An empty file has neither window nor chunks.
//
// With Config.Original, both sides speak the messages of the DOCA DMA Copy application instead
// (original.go), which copies the whole file in one piece.
package dmacopy

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// serviceName is the name of the Comch server.
const serviceName = "dma copy server"

// Limits on what a side accepts from its peer.
const (
	maxChunkSize = 64 << 20
	maxSlots     = 64
	maxWindow    = 1 << 30 // bytes
	// maxOriginalSize bounds a file in the original's messages, which both sides hold in memory
	// as a whole, in bytes.
	maxOriginalSize = 1 << 30
)

// Defaults of Config.
const (
	DefaultChunkSize      = 1 << 20
	DefaultSlots          = 8
	DefaultTimeout        = 30 * time.Second
	DefaultConnectTimeout = time.Minute
)

// Config describes a copy.
type Config struct {
	Comch comch.Provider
	// DMA is needed on the DPU only.
	DMA dma.Provider
	// Device is the PCI address of this side's device. Representor is the PCI address of the host
	// function that the DPU serves.
	Device      string
	Representor string
	// Path is the file. The side where it exists is the source.
	Path string
	// The DPU chooses ChunkSize, in bytes, and Slots. A chunk is at most what one DMA job of its
	// device can copy.
	ChunkSize uint64
	Slots     int
	// Original selects the messages of the DOCA DMA Copy application.
	Original bool
	// ConnectTimeout bounds the wait for the peer to appear, Timeout each later wait for a message
	// from it.
	ConnectTimeout time.Duration
	Timeout        time.Duration
	// Policy is how the DPU's thread waits for its DMA jobs.
	Policy progress.Policy
	// Observe, if not nil, is called with the number of bytes that have arrived, by one goroutine
	// at a time.
	Observe func(moved, total uint64)
	Logger  *zap.Logger
}

// Direction is the way in which a file is copied.
type Direction uint8

// The directions.
const (
	ToDPU Direction = iota + 1
	ToHost
)

// String names the direction.
func (d Direction) String() string {
	switch d {
	case ToDPU:
		return "host to DPU"
	case ToHost:
		return "DPU to host"
	}
	return "nowhere"
}

// Result describes a successful copy.
type Result struct {
	Direction Direction
	Bytes     uint64
	// Checksum is the CRC32C of the file, equal on both sides; 0 with Config.Original, whose
	// messages carry none.
	Checksum uint32
	Duration time.Duration // since the first message
}

func (c *Config) validate() error {
	if c.ChunkSize < 1 || c.ChunkSize > maxChunkSize {
		return status.Errorf(status.InvalidValue, "--chunk-size %d is not between 1 and %d bytes",
			c.ChunkSize, maxChunkSize)
	}
	if c.Slots < 1 || c.Slots > maxSlots || c.ChunkSize*uint64(c.Slots) > maxWindow {
		return status.Errorf(status.InvalidValue,
			"--jobs %d with --chunk-size %d: from 1 to %d jobs are allowed, and %d bytes in all",
			c.Slots, c.ChunkSize, maxSlots, maxWindow)
	}
	if c.Timeout <= 0 || c.ConnectTimeout <= 0 {
		return status.Errorf(status.InvalidValue, "--timeout %v and --connect-timeout %v must be "+
			"positive", c.Timeout, c.ConnectTimeout)
	}
	return nil
}

func (c *Config) observe(moved, total uint64) {
	if c.Observe != nil {
		c.Observe(moved, total)
	}
}

// choose returns the direction of a copy. Exactly one side must have the file.
func choose(onHost, onDPU bool) (Direction, error) {
	switch {
	case onHost && onDPU:
		return 0, status.Errorf(status.AlreadyExist,
			"the file exists on both sides: remove the copy to be replaced")
	case onHost:
		return ToDPU, nil
	case onDPU:
		return ToHost, nil
	}
	return 0, status.Errorf(status.NotFound, "the file exists on neither side")
}

// cause returns the reason why ctx was cancelled, if it was, instead of err.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// side is the common part of host and DPU.
type side struct {
	config *Config
	peer   *peer
	input  *input // nil if the peer has the file
	begun  time.Time
}

// run copies the file, with the messages of this package or of the original application, and
// reports a failure to the peer.
func (s *side) run(ctx context.Context, native, original func(context.Context) (Result,
	error)) (result Result, err error) {
	sendFailure := s.peer.sendFailure
	defer func() { s.peer.close(err, sendFailure) }()
	if s.config.Original {
		sendFailure = sendOriginalFailure(s.peer)
		result, err = original(ctx)
	} else {
		s.peer.keepAlive(ctx)
		result, err = native(ctx)
	}
	result.Duration = time.Since(s.begun)
	return result, cause(ctx, err)
}
