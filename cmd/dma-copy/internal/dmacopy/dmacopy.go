// Package dmacopy copies a file between a host and its DPU: control messages
// go over Comch, the data by DMA jobs of the DPU.
//
// The DPU is the Comch server ServiceName, the host its client. The side that
// has the file is the source.
//
//	host → DPU   offer: whether the host has the file, and its size
//	DPU → host   plan: direction, size, and how the window is divided
//	host → DPU   export: descriptor of the window, which is host memory
//	source       filled, for every chunk, when it is in its slot of the window
//	sink         released, for every chunk, when it is in the file
//	source       end: size and checksum of the whole
//	sink         status: success when the file has its name, and is on disk
//
// Chunk n uses slot n modulo the number of slots, so that several are under way
// at a time. The checksum is the CRC32C of the file so far: it goes with every
// chunk, and the sink sums what it writes. Either side may send a status with an
// error at any time, which ends the copy, and alive, which says that it is still
// there. An empty file has neither window nor chunks.
//
// With Config.Original, the messages are those of the DOCA DMA Copy
// application instead (original.go), which copies the whole file in one piece.
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

// ServiceName is the name of the Comch server.
const ServiceName = "dma copy server"

// Bounds of what either side lets the other ask for.
const (
	maxChunkSize = 64 << 20
	maxSlots     = 64
	maxWindow    = 1 << 30 // bytes
	// maxOriginalSize bounds a file in the original's messages, which is in
	// memory as a whole on both sides.
	maxOriginalSize = 1 << 30
)

// Defaults of Config.
const (
	DefaultChunkSize      = 1 << 20
	DefaultSlots          = 8
	DefaultTimeout        = 30 * time.Second
	DefaultConnectTimeout = time.Minute
)

// Config says what is copied, and how.
type Config struct {
	Comch comch.Provider
	// DMA is needed on the DPU only.
	DMA dma.Provider
	// Device is the PCI address of this side's device, Representor that of the
	// host function that the DPU serves.
	Device      string
	Representor string
	// Path is the file. The side where it exists is the source.
	Path string
	// ChunkSize in bytes and Slots are chosen by the DPU; a chunk is no larger
	// than what one of its DMA jobs can copy.
	ChunkSize uint64
	Slots     int
	// Original selects the messages of the DOCA DMA Copy application.
	Original bool
	// ConnectTimeout bounds the wait for the other side to appear, Timeout each
	// later wait for a word of it.
	ConnectTimeout time.Duration
	Timeout        time.Duration
	// Policy is how the DPU's thread waits for its DMA jobs.
	Policy progress.Policy
	// Observe, if not nil, is told how many bytes have arrived, by one
	// goroutine at a time.
	Observe func(moved, total uint64)
	Logger  *zap.Logger
}

// Direction is where a file goes.
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

// Result is what a successful copy has done.
type Result struct {
	Direction Direction
	Bytes     uint64
	// Checksum is the CRC32C of the file, as both sides have it; 0 with
	// Config.Original, which carries none.
	Checksum uint32
	Duration time.Duration // from the first message on
}

func (c *Config) validate() error {
	if c.ChunkSize < 1 || c.ChunkSize > maxChunkSize {
		return status.Errorf(status.InvalidValue, "chunks of %d bytes are not within 1 and %d", c.ChunkSize, maxChunkSize)
	}
	if c.Slots < 1 || c.Slots > maxSlots || c.ChunkSize*uint64(c.Slots) > maxWindow {
		return status.Errorf(status.InvalidValue, "%d slots of %d bytes are not within 1 and %d, or more than %d bytes", c.Slots, c.ChunkSize, maxSlots, maxWindow)
	}
	if c.Timeout <= 0 || c.ConnectTimeout <= 0 {
		return status.Errorf(status.InvalidValue, "time limits %v and %v must be positive", c.ConnectTimeout, c.Timeout)
	}
	return nil
}

func (c *Config) observe(moved, total uint64) {
	if c.Observe != nil {
		c.Observe(moved, total)
	}
}

// choose finds the direction of a copy, of which exactly one side must have
// the file.
func choose(onHost, onDPU bool) (Direction, error) {
	switch {
	case onHost && onDPU:
		return 0, status.Errorf(status.AlreadyExist, "the file exists on both sides: remove the copy that is to be replaced")
	case onHost:
		return ToDPU, nil
	case onDPU:
		return ToHost, nil
	}
	return 0, status.Errorf(status.NotFound, "the file exists on neither side")
}

// cause prefers the reason for which a context was cancelled.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// side is what both sides of a copy have.
type side struct {
	config *Config
	peer   *peer
	own    *input // nil if the other side has the file
	begun  time.Time
}

// run copies, in the messages of this package or of the original application,
// and tells the other side of a failure.
func (s *side) run(ctx context.Context, native, original func(context.Context) (Result, error)) (result Result, err error) {
	farewell := s.peer.farewell
	defer func() { s.peer.close(err, farewell) }()
	if s.config.Original {
		farewell = originalFarewell(s.peer)
		result, err = original(ctx)
	} else {
		s.peer.keepAlive(ctx)
		result, err = native(ctx)
	}
	result.Duration = time.Since(s.begun)
	return result, cause(ctx, err)
}
