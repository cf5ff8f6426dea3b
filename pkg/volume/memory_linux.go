// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/blockcopy"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MemoryBackend keeps the content in memory, which is allocated as it is written. Close discards
// the content; the next volume gets a new UUID.
type MemoryBackend struct {
	Size uint64 // bytes
}

// zeroAtOnce is the most bytes that a queue zeroes on its own thread. Zeroing them takes about as
// long as copying the largest usual write.
const zeroAtOnce = 1 << 20

// clearStep is how many bytes clearInSteps clears between two points at which the garbage collector
// can stop the thread.
const clearStep = 1 << 20

func parseMemory(argument string) (Backend, error) {
	length, options := CutOptions(argument)
	if len(options) > 0 {
		return nil, UnknownOption("memory:"+length, options[0], "exclusive")
	}
	bytes, err := size.Parse(length)
	if err != nil {
		return nil, status.Errorf(status.InvalidValue, "memory:SIZE: %w", err)
	}
	return MemoryBackend{Size: uint64(bytes)}, nil
}

// String returns "memory:" and the size.
func (b MemoryBackend) String() string { return "memory:" + size.Bytes(b.Size).String() }

// Validate checks the size.
func (b MemoryBackend) Validate(spec *Spec) error { return spec.CheckNewSize(b.Size) }

// Open allocates the memory.
func (b MemoryBackend) Open(spec *Spec) (Volume, error) {
	region, err := memory.AllocReadOnly("zc-relay volume "+spec.Name, b.Size)
	if err != nil {
		return nil, fmt.Errorf("%w (this machine has no room for it: use a smaller volume, or one in a file)",
			err)
	}
	info := Info{
		Name: spec.Name, UUID: randomUUID(), Size: b.Size, BlockSize: spec.BlockSize,
		Capabilities: CanTrim | CanWriteZeroes | CanFUA | CanReportExtents,
	}
	m := &memoryStore{region: region}
	if m.background, err = startPool(1, 1, m.carryOutBatch); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	v := newStoreVolume(info, m, newHealth(spec)).watched()
	v.memory = region
	return v, nil
}

// randomUUID returns a version 4 UUID (RFC 9562, section 5.4).
func randomUUID() UUID {
	var u UUID
	_, _ = rand.Read(u[:]) // never fails
	return u.withVersion(4)
}

// memoryStore is the store of a volume in memory. Queues are not synchronized: as on a disk,
// concurrent writes to the same blocks may mix.
type memoryStore struct {
	region     *memory.Region
	background *pool // zeroes large ranges, and looks for holes
}

func (m *memoryStore) start(r *Request) carrier {
	switch r.Operation {
	case iomsg.OpRead:
		copy(r.Buffer, m.region.Bytes()[r.Offset:])
	case iomsg.OpWrite:
		blockcopy.Store(m.region.Bytes()[r.Offset:], r.Buffer)
	case iomsg.OpTrim, iomsg.OpWriteZeroes:
		if r.Length > zeroAtOnce {
			return m.background
		}
		r.Err = m.zero(r.Offset, r.Length)
	case iomsg.OpExtents:
		return m.background
	}
	return nil
}

// carryOutBatch carries out what would keep a queue's thread for long.
func (m *memoryStore) carryOutBatch(batch *requestList) {
	for r := batch.pop(); r != nil; r = batch.pop() {
		if r.Operation == iomsg.OpExtents {
			r.Err = findExtents(m.region.Descriptor(), r)
		} else {
			r.Err = m.zero(r.Offset, r.Length)
		}
		r.queue.complete(r)
	}
}

// inspect does nothing: memory is as the store left it.
func (m *memoryStore) inspect() {}

// resize fails: devices have registered the memory as it is.
func (m *memoryStore) resize(uint64) error {
	return status.Errorf(status.NotSupported, "a volume in memory keeps its size")
}

func (m *memoryStore) close() error { return errors.Join(m.background.stop(), m.region.Close()) }

// zero clears a range. It skips holes, so that trimming a large volume does not allocate it.
// Allocated pages stay: a device that has registered them would keep reading pages that were
// punched out.
func (m *memoryStore) zero(offset, length uint64) error {
	for end := offset + length; offset < end; {
		data, err := unix.Seek(m.region.Descriptor(), int64(offset), unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && uint64(data) >= end {
			return nil
		}
		if err != nil {
			return status.Errorf(status.IOFailed, "find data at offset %d: %w", offset, err)
		}
		hole, err := unix.Seek(m.region.Descriptor(), data, unix.SEEK_HOLE)
		if err != nil {
			return status.Errorf(status.IOFailed, "find hole at offset %d: %w", data, err)
		}
		offset = min(uint64(hole), end)
		clearInSteps(m.region.Bytes()[data:offset])
	}
	return nil
}

func clearInSteps(b []byte) {
	for len(b) > 0 {
		n := min(len(b), clearStep)
		clear(b[:n])
		b = b[n:]
	}
}
