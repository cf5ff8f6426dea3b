// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// ErrAnotherVolume means that a volume cannot be reopened because the relay now offers a different
// one. It matches status.NotFound.
var ErrAnotherVolume = status.Errorf(status.NotFound, "the relay offers a different volume")

// terms are what a program has asked for, and the relay has agreed to. The first session determines
// the volume, and each later one must offer the same.
type terms struct {
	config Config
	info   Info          // as negotiated by Open
	size   atomic.Uint64 // of the volume in bytes; 0 until info is valid
	grown  signal        // of size
	// spareSlots are those of the blocking methods beyond SyncDepth.
	spareSlots int
}

// negotiate checks what the relay offers in a session, counted from 1, and completes its info.
func (t *terms) negotiate(number uint64, info *Info, reply *controlmsg.OpenVolumeReply) error {
	if number > 1 {
		return t.checkSameVolume(info, reply)
	}
	if err := t.checkLimits(reply); err != nil {
		return err
	}
	c := &t.config
	info.Queues, info.BufferSize = c.Queues, c.BufferSize
	if info.Depth = c.depth(); c.SyncDepth > 0 {
		// As many spare slots as slots, if the relay has room for them.
		info.Depth = min(max(info.Depth, 2*c.SyncDepth), int(reply.MaxDepth))
		t.spareSlots = min(c.SyncDepth, info.Depth-c.SyncDepth)
	}
	t.info = *info
	t.size.Store(info.Size) // last: see grow
	return nil
}

// checkLimits checks the configuration against what relay and target offer.
func (t *terms) checkLimits(reply *controlmsg.OpenVolumeReply) error {
	c := &t.config
	switch {
	case reply.BlockSize == 0 || reply.BlockSize&(reply.BlockSize-1) != 0 ||
		reply.Size%uint64(reply.BlockSize) != 0 || reply.Size > math.MaxInt64:
		return status.Errorf(status.Unexpected,
			"relay offers an invalid volume of %d bytes in blocks of %d",
			reply.Size, reply.BlockSize)
	case c.Queues < 0 || uint32(c.queueCount()) > reply.MaxQueues:
		return status.Errorf(status.TooBig,
			"%d queues exceed the limit of %d (limits.queues of the relay's channel)",
			c.queueCount(), reply.MaxQueues)
	case c.queueCount() == 0:
		return status.Errorf(status.InvalidValue,
			"Queues is 0 and SyncDepth is negative: nothing could submit requests")
	case c.Depth < 0 || uint32(c.depth()) > reply.MaxDepth:
		return status.Errorf(status.TooBig,
			"depth %d exceeds the limit of %d (limits.depth of the relay's channel)",
			c.depth(), reply.MaxDepth)
	case c.BufferSize > reply.MaxBufferSize:
		return status.Errorf(status.TooBig,
			"buffer size %d exceeds the limit of %d (limits.buffer_size of the relay's channel)",
			c.BufferSize, reply.MaxBufferSize)
	case c.BufferSize%reply.BlockSize != 0:
		return status.Errorf(status.InvalidValue,
			"buffer size %d is not a multiple of the volume's block size %d",
			c.BufferSize, reply.BlockSize)
	}
	return nil
}

// checkSameVolume returns an error unless a new session offers the volume that Open opened.
func (t *terms) checkSameVolume(info *Info, reply *controlmsg.OpenVolumeReply) error {
	switch {
	case reply.UUID != t.info.UUID:
		return fmt.Errorf("%w: its UUID is %v, expected %v "+
			"(a volume in memory is lost when its target restarts)",
			ErrAnotherVolume, volume.UUID(reply.UUID), t.info.UUID)
	case reply.BlockSize != t.info.BlockSize || reply.Size < t.size.Load():
		return fmt.Errorf("%w: it has %d bytes in blocks of %d, expected %d in blocks of %d",
			ErrAnotherVolume, reply.Size, reply.BlockSize, t.size.Load(), t.info.BlockSize)
	}
	t.grow(reply.Size)
	info.Queues = t.info.Queues
	info.Depth, info.BufferSize = t.info.Depth, t.info.BufferSize
	return t.checkLimits(reply)
}

// grow raises the size to what the relay has announced, in bytes. It ignores what cannot be the
// size of the volume, and a relay that announces before the volume is open.
func (t *terms) grow(size uint64) {
	for now := t.size.Load(); now > 0 && size > now &&
		size%uint64(t.info.BlockSize) == 0 && size <= math.MaxInt64; now = t.size.Load() {
		if t.size.CompareAndSwap(now, size) {
			t.logger().Info("volume has grown", zap.Uint64("size_bytes", size))
			t.grown.send()
			return
		}
	}
}

// signal tells any number of goroutines that something has changed.
type signal struct {
	mu   sync.Mutex
	next chan struct{} // closed by send; nil if nobody waits
}

// wait returns a channel that is closed by the next send.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// logger returns the program's logger with the volume's name.
func (t *terms) logger() *zap.Logger {
	return t.config.Logger.With(zap.String("volume", t.info.Name))
}

// stagingSize is the size in bytes of the memory of the blocking methods.
func (t *terms) stagingSize() uint64 {
	return uint64(max(t.config.SyncDepth, 0)+t.spareSlots) * uint64(t.config.BufferSize)
}

func infoOf(reply *controlmsg.OpenVolumeReply) Info {
	capabilities := volume.Capability(reply.Capabilities)
	return Info{
		Name: reply.Volume, UUID: reply.UUID, Size: reply.Size, BlockSize: reply.BlockSize,
		ReadOnly: reply.ReadOnly, Exclusive: reply.Exclusive,
		CanTrim:          !reply.ReadOnly && capabilities.Has(volume.CanTrim),
		CanWriteZeroes:   !reply.ReadOnly && capabilities.Has(volume.CanWriteZeroes),
		CanFUA:           !reply.ReadOnly && capabilities.Has(volume.CanFUA),
		CanReportExtents: capabilities.Has(volume.CanReportExtents),
		WriteVerifier:    reply.WriteVerifier, Transport: reply.Transport,
		Sessions: int(reply.Sessions), Holder: reply.Holder, HolderID: reply.HolderID.String(),
	}
}
