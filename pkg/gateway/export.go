// SPDX-License-Identifier: Apache-2.0

// Package gateway lets the users of front ends use a volume: it is the link between pkg/blockio,
// which pkg/nbd and pkg/ublk serve, and the queues of pkg/client.
//
// Users may ask for any offset and length, queues take whole blocks of limited length. So the
// gateway splits requests, and changes a part of a block by reading, changing, and writing back the
// block while it keeps others from changing it. It repeats what a lost session has left unfinished.
//
// A session is an NBD connection, or a queue of a kernel's block device. Its end is a barrier. What
// the session has not sent to the volume is dropped. What it has sent is an orphan: whatever
// overlaps it, and every flush, waits for its end, and so does every new connection. If that takes
// too long, the export has the volume reopened, because no request of a session of the volume has
// an effect once the next one has begun.
package gateway

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Volume is the part of a client.Volume that an export uses. Its size may grow.
type Volume interface {
	Info() client.Info
	Memory() []byte
	Err() error
	NewFlusher() *client.Flusher
	Reopen(reason error) error
}

// Queue is the part of a client.Queue that a disk uses.
type Queue interface {
	Submit(request *client.Request) error
	Ring()
	Poll(results []client.Result) int
	Attach(engine *progress.Engine) error
	Detach(engine *progress.Engine)
	SwitchMemory() []byte
	Session() uint64
}

// Config configures an Export.
type Config struct {
	// Volume is what to export, and Queues has a queue of it for each worker of the server. The
	// volume must stay open until the server is closed, whose connections use its memory.
	Volume Volume
	Queues []Queue
	// Sessions is the number of connections that may be open. They share the data memory of the
	// volume equally.
	Sessions int
	// ReadOnly exports the volume read-only even if it is not.
	ReadOnly bool
	// Repeat makes operations wait for a volume that is being reopened. RepeatFor is how long that
	// may take after each loss: see retry.Repeats.
	Repeat    bool
	RepeatFor retry.Bound
	// OrphanPatience is how long orphans may be in progress before the volume is reopened to end
	// them; 0 means DefaultOrphanPatience.
	OrphanPatience time.Duration
}

// DefaultOrphanPatience is the default of Config.OrphanPatience.
const DefaultOrphanPatience = 10 * time.Second

// Export is a volume as an export of a front end. Any goroutine may call its methods.
type Export struct {
	config  Config
	info    client.Info
	ranges  rangelock.Locks
	orphans orphans
	// share is the data memory of each session, in bytes: whole buffers.
	share uint64
	// perQueue is the number of sessions of each queue.
	perQueue int
}

// minBuffers is the least number of buffers in each session's share of the memory. With one, a
// write could not be received while another is carried out.
const minBuffers = 2

// scratchBlocks is how many blocks a write with parts of blocks needs besides its data: scratch
// space for two, and what is around the data in the first and in the last block.
const scratchBlocks = 4

// minBlocks is the least number of the volume's blocks in a buffer: a part of a block on both sides
// of a whole one, and scratch space for the two.
const minBlocks = 8

// MemorySize returns the size of the data memory, in bytes, for sessions connections that get
// perSession bytes each. It is 0 if there are no sessions or no queues.
func MemorySize(sessions, queues int, perSession uint64) uint64 {
	return uint64(sessionsPerQueue(sessions, queues)) * uint64(queues) * perSession
}

func sessionsPerQueue(sessions, queues int) int {
	if sessions <= 0 || queues <= 0 {
		return 0
	}
	return (sessions-1)/queues + 1
}

// check returns an error for a configuration that no volume fits.
func (c *Config) check() error {
	switch {
	case c.Volume == nil:
		return status.Errorf(status.InvalidValue, "Config.Volume is nil")
	case len(c.Queues) == 0:
		return status.Errorf(status.InvalidValue,
			"Config.Queues is empty: each worker of the server needs a queue of the volume")
	case c.Sessions < 1:
		return status.Errorf(status.InvalidValue,
			"Config.Sessions is %d: it has to be 1 or more connections", c.Sessions)
	case c.Sessions > maxSessions:
		return status.Errorf(status.TooBig, "Config.Sessions is %d connections, the limit is %d",
			c.Sessions, maxSessions)
	case c.OrphanPatience < 0:
		return status.Errorf(status.InvalidValue, "Config.OrphanPatience is %v, which is negative",
			c.OrphanPatience)
	}
	for i, queue := range c.Queues {
		if queue == nil {
			return status.Errorf(status.InvalidValue, "Config.Queues[%d] is nil", i)
		}
		if former := slices.Index(c.Queues, queue); former < i {
			return status.Errorf(status.InUse, "Config.Queues[%d] is the same queue as "+
				"Config.Queues[%d]: each worker needs one of its own", i, former)
		}
	}
	return nil
}

// defaultSessions is the number of sessions of an export that Of returns, if the memory suffices.
const defaultSessions = 16

// maxSessions bounds Config.Sessions so that no number of operations overflows.
const maxSessions = 1 << 20

// New returns an export of a volume.
func New(config Config) (*Export, error) {
	e, err := newExport(config)
	if err != nil {
		return nil, fmt.Errorf("export a volume: %w", err)
	}
	return e, nil
}

// Of returns an export of all queues of a volume, with an equal part of its memory for each
// connection, of which there may be 16 if the memory suffices. The server needs a worker for each
// queue (client.Info.Queues), and the volume must stay open until the server is closed. What a lost
// session has left unfinished is repeated if the volume comes back, for
// client.DefaultReconnectTotal after each loss.
func Of(v *client.Volume) (*Export, error) {
	if v == nil {
		return nil, status.Errorf(status.InvalidValue, "export a volume: the volume is nil")
	}
	info := v.Info()
	if info.Queues == 0 {
		return nil, status.Errorf(status.InvalidValue, "export volume %q: it was opened without "+
			"queues: set client.Config.Queues", info.Name)
	}
	queues := make([]Queue, info.Queues)
	for i := range queues {
		queues[i] = v.Queue(i)
	}
	room := uint64(len(v.Memory())) / (minBuffers * uint64(info.BufferSize))
	perQueue := max(min(int(room), defaultSessions)/len(queues), 1)
	return New(Config{Volume: v, Queues: queues, Sessions: perQueue * len(queues),
		Repeat: true, RepeatFor: retry.Within(client.DefaultReconnectTotal)})
}

func newExport(config Config) (*Export, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if err := config.Volume.Err(); err != nil {
		return nil, err
	}
	e := &Export{config: config, info: config.Volume.Info()}
	e.orphans.patience = cmp.Or(config.OrphanPatience, DefaultOrphanPatience)
	e.orphans.reopen = e.endOrphans
	buffer, block := uint64(e.info.BufferSize), uint64(e.info.BlockSize)
	if bits.OnesCount64(buffer) != 1 || buffer < minBlocks*block {
		return nil, status.Errorf(status.InvalidValue,
			"buffer size %d is not a power of two and at least %d blocks of %d bytes",
			buffer, minBlocks, block)
	}
	e.perQueue = sessionsPerQueue(config.Sessions, len(config.Queues))
	sessions := uint64(e.perQueue * len(config.Queues))
	e.share = uint64(len(config.Volume.Memory())) / sessions / buffer * buffer
	if e.share < minBuffers*buffer {
		return nil, status.Errorf(status.InvalidValue,
			"%d bytes of memory for each of %d connections are less than %d buffers of %d bytes",
			uint64(len(config.Volume.Memory()))/sessions, sessions, minBuffers, buffer)
	}
	return e, nil
}

// preferredBlock is the block size that clients are told to prefer, unless that of the volume is
// larger: that of file systems.
const preferredBlock = 4096

// Info describes the volume as it is now (blockio.Export).
func (e *Export) Info() blockio.Info {
	return blockio.Info{
		Description:    fmt.Sprintf("volume %s through %s", e.info.Name, e.info.Relay),
		Size:           e.config.Volume.Info().Size,
		BlockSize:      e.info.BlockSize,
		PreferredBlock: max(preferredBlock, e.info.BlockSize),
		LargestAligned: e.info.BufferSize,
		LargestAny:     e.info.BufferSize - scratchBlocks*e.info.BlockSize,
		ReadOnly:       e.config.ReadOnly || e.info.ReadOnly,
		CanTrim:        e.info.CanTrim, CanWriteZeroes: e.info.CanWriteZeroes,
		CanReportExtents: e.info.CanReportExtents,
	}
}

// Barrier waits until no operation of a connection that has ended is in progress (blockio.Export).
func (e *Export) Barrier(ctx context.Context) error { return e.orphans.wait(ctx) }

// endOrphans ends all requests in progress. Those of living connections are repeated.
func (e *Export) endOrphans() {
	_ = e.config.Volume.Reopen(status.Errorf(status.TimeOut, "requests of clients that have "+
		"gone are still in progress after %v", e.orphans.patience)) // Barrier reports what is left
}

// Attach opens queue i for the calling thread (blockio.Export).
func (e *Export) Attach(i int, engine *progress.Engine) (blockio.Disk, error) {
	if i < 0 || i >= len(e.config.Queues) {
		return nil, status.Errorf(status.TooBig, "worker %d has no queue: Config.Queues has %d, "+
			"and there must not be more workers", i, len(e.config.Queues))
	}
	if engine == nil {
		return nil, status.Errorf(status.InvalidValue, "the engine is nil")
	}
	d := newDisk(e, i, engine)
	if err := d.queue.Attach(engine); err != nil {
		return nil, err
	}
	return d, nil
}
