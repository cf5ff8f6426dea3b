// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func testInfo(t *testing.T, v volume.Volume) {
	info := v.Info()
	if info.Name == "" || info.UUID == (volume.UUID{}) || info.ReadOnly {
		t.Errorf("name %q, UUID %v, read-only %v", info.Name, info.UUID, info.ReadOnly)
	}
	if info.BlockSize == 0 || info.BlockSize&(info.BlockSize-1) != 0 {
		t.Errorf("block size %d is not a power of two", info.BlockSize)
	}
	if info.Size < MinBlocks*uint64(info.BlockSize) || info.Size%uint64(info.BlockSize) != 0 {
		t.Errorf("size %d is not a multiple of the block size, or is too small for the suite",
			info.Size)
	}
	if m := v.Memory(); m != nil && (!m.Mapped() || m.Len() != info.Size) {
		t.Errorf("memory has %d bytes, the volume %d", m.Len(), info.Size)
	}
}

func testNew(t *testing.T, v volume.Volume) {
	content := readAll(t, v)
	if !bytes.Equal(content, make([]byte, len(content))) {
		t.Error("a new volume does not read as zeroes")
	}
}

func testReadBack(t *testing.T, v volume.Volume) {
	block := uint64(v.Info().BlockSize)
	queue := NewQueue(t, v, 4)
	defer CloseQueue(t, queue)
	for _, c := range []struct{ offset, length uint64 }{
		{0, block},
		{3 * block, 5 * block},
		{v.Info().Size - block, block},
		{0, MinBlocks * block},
		{2 * block, 0},
	} {
		written, read := pattern(c.length, byte(c.offset/block)+1), make([]byte, c.length)
		w := volume.Request{Operation: iomsg.OpWrite, Offset: c.offset, Length: c.length,
			Buffer: written, UserData: 7}
		r := volume.Request{Operation: iomsg.OpRead, Offset: c.offset, Length: c.length,
			Buffer: read, UserData: 8}
		Do(t, queue, &w)
		Do(t, queue, &r)
		if w.Err != nil || r.Err != nil || w.UserData != 7 || r.UserData != 8 {
			t.Errorf("%d bytes at %d: write returned %v, read returned %v", c.length, c.offset,
				w.Err, r.Err)
		}
		if !bytes.Equal(written, read) {
			t.Errorf("%d bytes at %d did not read back", c.length, c.offset)
		}
		if m := v.Memory(); m != nil &&
			!bytes.Equal(m.Bytes()[c.offset:c.offset+c.length], written) {
			t.Errorf("%d bytes at %d are not in the volume's memory", c.length, c.offset)
		}
	}
}

func testRejected(t *testing.T, v volume.Volume) {
	block, size := uint64(v.Info().BlockSize), v.Info().Size
	queue := NewQueue(t, v, 4)
	defer CloseQueue(t, queue)
	for name, r := range map[string]volume.Request{
		"read past the end": {Operation: iomsg.OpRead,
			Offset: size, Length: block, Buffer: make([]byte, block)},
		"write across the end": {Operation: iomsg.OpWrite,
			Offset: size - block, Length: 2 * block, Buffer: make([]byte, 2*block)},
		"overflowing range": {Operation: iomsg.OpRead,
			Offset: math.MaxUint64 - block + 1, Length: block, Buffer: make([]byte, block)},
		"huge trim": {Operation: iomsg.OpTrim,
			Offset: block, Length: math.MaxUint64 - block + 1},
		"unaligned offset": {Operation: iomsg.OpRead,
			Offset: 1, Length: block, Buffer: make([]byte, block)},
		"unaligned length": {Operation: iomsg.OpWrite,
			Length: block - 1, Buffer: make([]byte, block-1)},
		"short buffer": {Operation: iomsg.OpRead,
			Length: 2 * block, Buffer: make([]byte, block)},
		"long buffer": {Operation: iomsg.OpWrite,
			Length: block, Buffer: make([]byte, 2*block)},
		"no operation":      {Length: block, Buffer: make([]byte, block)},
		"unknown operation": {Operation: 99, Length: block, Buffer: make([]byte, block)},
		"unaligned write zeroes": {Operation: iomsg.OpWriteZeroes,
			Offset: block / 2, Length: block},
		"write zeroes off limits": {Operation: iomsg.OpWriteZeroes, Offset: size, Length: block},
		"extents past the end": {Operation: iomsg.OpExtents,
			Offset: size - block, Length: 2 * block, Buffer: make([]byte, iomsg.ExtentSize)},
		"unaligned extents": {Operation: iomsg.OpExtents,
			Offset: block / 2, Length: block, Buffer: make([]byte, iomsg.ExtentSize)},
	} {
		if err := queue.Submit(&r); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: Submit returned %v", name, err)
		}
	}
	if n := queue.Poll(make([]*volume.Request, 4)); n != 0 {
		t.Errorf("%d rejected requests completed", n)
	}
}

func testDepth(t *testing.T, v volume.Volume) {
	if _, err := v.NewQueue(0); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a queue of depth 0: NewQueue returned %v", err)
	}
	const depth = 3
	queue := NewQueue(t, v, depth)
	defer CloseQueue(t, queue)
	block := uint64(v.Info().BlockSize)
	var requests [depth + 1]volume.Request
	for round := range 3 {
		for i := range requests {
			requests[i] = volume.Request{Operation: iomsg.OpWrite, Offset: uint64(i) * block,
				Length: block, Buffer: pattern(block, byte(round))}
			err := queue.Submit(&requests[i])
			if i < depth && err != nil || i == depth && !errors.Is(err, status.Again) {
				t.Fatalf("request %d of round %d: Submit returned %v", i, round, err)
			}
		}
		seen := map[*volume.Request]bool{}
		for _, r := range Await(t, queue, depth) {
			seen[r] = true
		}
		if len(seen) != depth || seen[&requests[depth]] {
			t.Fatalf("round %d completed %d distinct requests", round, len(seen))
		}
	}
}

func testWriteZeroes(t *testing.T, v volume.Volume) {
	testClearing(t, v, iomsg.OpWriteZeroes, volume.CanWriteZeroes, func(b, _ []byte) bool {
		return bytes.Equal(b, make([]byte, len(b)))
	})
}

func testTrim(t *testing.T, v volume.Volume) {
	testClearing(t, v, iomsg.OpTrim, volume.CanTrim, func(b, before []byte) bool {
		return bytes.Equal(b, make([]byte, len(b))) || bytes.Equal(b, before)
	})
}

// testClearing checks that an operation leaves acceptable content in every block of its range and
// changes nothing else.
func testClearing(
	t *testing.T, v volume.Volume, operation iomsg.Operation, needs volume.Capability,
	acceptable func(b, before []byte) bool,
) {
	info := v.Info()
	block := uint64(info.BlockSize)
	queue := NewQueue(t, v, 1)
	defer CloseQueue(t, queue)
	clearing := volume.Request{Operation: operation, Offset: 3 * block,
		Length: (MinBlocks - 7) * block}
	if !info.Capabilities.Has(needs) {
		if err := queue.Submit(&clearing); !errors.Is(err, status.NotSupported) {
			t.Errorf("submitting an unsupported operation returned %v, want NotSupported", err)
		}
		return
	}
	before := pattern(MinBlocks*block, 0x5a)
	w := volume.Request{Operation: iomsg.OpWrite, Length: uint64(len(before)), Buffer: before}
	Do(t, queue, &w)
	Do(t, queue, &clearing)
	if w.Err != nil || clearing.Err != nil {
		t.Fatalf("write: %v; %v: %v", w.Err, operation, clearing.Err)
	}
	after := readAll(t, v)
	for i := uint64(0); i < uint64(len(after)); i += block {
		got, was := after[i:i+block], before[i:i+block]
		inside := i >= clearing.Offset && i < clearing.Offset+clearing.Length
		if inside && !acceptable(got, was) || !inside && !bytes.Equal(got, was) {
			t.Fatalf("after %v, block %d (inside the range: %v) holds %x...", operation, i/block,
				inside, got[:8])
		}
	}
}

// testExtents checks that a volume tells no holes where data is. Whether it tells the others is its
// choice: file systems differ.
func testExtents(t *testing.T, v volume.Volume) {
	info := v.Info()
	block := uint64(info.BlockSize)
	queue := NewQueue(t, v, 4)
	defer CloseQueue(t, queue)
	whole := volume.Request{Operation: iomsg.OpExtents, Length: MinBlocks * block,
		Buffer: make([]byte, 4*MinBlocks*iomsg.ExtentSize)}
	if !info.Capabilities.Has(volume.CanReportExtents) {
		if err := queue.Submit(&whole); !errors.Is(err, status.NotSupported) {
			t.Errorf("submitting an unsupported operation returned %v, want NotSupported", err)
		}
		return
	}
	for name, r := range map[string]volume.Request{
		"no range": {Operation: iomsg.OpExtents, Buffer: make([]byte, iomsg.ExtentSize)},
		"no table": {Operation: iomsg.OpExtents, Length: block},
		"a part of an entry": {Operation: iomsg.OpExtents, Length: block,
			Buffer: make([]byte, iomsg.ExtentSize+1)},
	} {
		if err := queue.Submit(&r); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: Submit returned %v", name, err)
		}
	}
	written := map[uint64]bool{}
	for _, number := range []uint64{0, 7, 8, 9, 20, MinBlocks - 2} {
		w := volume.Request{Operation: iomsg.OpWrite, Offset: number * block, Length: block,
			Buffer: pattern(block, byte(number))}
		if Do(t, queue, &w); w.Err != nil {
			t.Fatal(w.Err)
		}
		written[number] = true
	}
	for _, entries := range []int{1, 2, 4 * MinBlocks} {
		for position := uint64(0); position < MinBlocks*block; {
			r := volume.Request{Operation: iomsg.OpExtents, Offset: position,
				Length: MinBlocks*block - position, Buffer: make([]byte, entries*iomsg.ExtentSize)}
			if Do(t, queue, &r); r.Err != nil {
				t.Fatalf("extents from %d on: %v", position, r.Err)
			}
			extents, err := iomsg.DecodeExtents(nil, r.Buffer, r.Length)
			if err != nil {
				t.Fatalf("extents from %d on: %v", position, err)
			}
			for _, e := range extents {
				if e.Length%block != 0 {
					t.Errorf("an extent of %d bytes at %d is not made of blocks", e.Length, position)
				}
				for end := position + e.Length; position < end; position += block {
					if e.Flags&iomsg.Hole != 0 && written[position/block] {
						t.Errorf("with %d entries, block %d is told to be a hole", entries,
							position/block)
					}
				}
			}
		}
	}
}

func testDurable(t *testing.T, v volume.Volume) {
	block := uint64(v.Info().BlockSize)
	queue := NewQueue(t, v, 8)
	defer CloseQueue(t, queue)
	requests := []*volume.Request{{Operation: iomsg.OpFlush}, {Operation: iomsg.OpFlush}}
	if v.Info().Capabilities.Has(volume.CanFUA) {
		requests = append(requests, &volume.Request{
			Operation: iomsg.OpWrite, ForceUnitAccess: true, Length: block, Buffer: pattern(block,
				1),
		})
	}
	if v.Info().Capabilities.Has(volume.CanFUA | volume.CanWriteZeroes) {
		requests = append(requests, &volume.Request{
			Operation: iomsg.OpWriteZeroes, ForceUnitAccess: true, Offset: block, Length: block,
		})
	}
	Do(t, queue, requests...)
	for _, r := range requests {
		if r.Err != nil {
			t.Errorf("%v with forced unit access %v: %v", r.Operation, r.ForceUnitAccess, r.Err)
		}
	}
}

// testWake makes a queue sleep for each of many single requests. A queue may wake its thread too
// often, but never too late.
func testWake(t *testing.T, v volume.Volume) {
	queue := NewQueue(t, v, 1)
	defer CloseQueue(t, queue)
	if !queue.Arm() || !queue.Arm() {
		t.Fatal("an idle queue could not be armed twice in a row")
	}
	queue.Disarm()
	block := uint64(v.Info().BlockSize)
	operations := []iomsg.Operation{iomsg.OpWrite, iomsg.OpFlush, iomsg.OpRead}
	if v.Info().Capabilities.Has(volume.CanWriteZeroes) {
		operations = append(operations, iomsg.OpWriteZeroes)
	}
	for i := range 400 {
		r := volume.Request{Operation: operations[i%len(operations)], Length: block,
			Buffer: pattern(block, byte(i))}
		if err := queue.Submit(&r); err != nil {
			t.Fatal(err)
		}
		sleep(t, queue) // fails if nothing ever wakes it
		if done := Await(t, queue, 1); done[0] != &r || r.Err != nil {
			t.Fatalf("request %d: %v", i, r.Err)
		}
	}
}

func testClose(t *testing.T, v volume.Volume) {
	queue := NewQueue(t, v, 1)
	if err := v.Close(context.Background()); !errors.Is(err, status.InUse) {
		t.Errorf("volume with an open queue: Close returned %v", err)
	}
	r := volume.Request{Operation: iomsg.OpFlush}
	if err := queue.Submit(&r); err != nil {
		t.Fatal(err)
	}
	if err := queue.Close(); !errors.Is(err, status.InUse) {
		t.Errorf("queue with a running request: Close returned %v", err)
	}
	Await(t, queue, 1)
	if err := errors.Join(queue.Close(), queue.Close()); err != nil {
		t.Errorf("idle queue: Close returned %v", err)
	}
	if err := queue.Submit(&r); !errors.Is(err, status.ErrClosed) {
		t.Errorf("closed queue: Submit returned %v", err)
	}
	for range 2 {
		CloseVolume(t, v)
	}
	_, err := v.NewQueue(1)
	for name, err := range map[string]error{
		"NewQueue": err, "Resize": v.Resize(1<<20, false), "CheckOwner": v.CheckOwner(t.Context()),
	} {
		if !errors.Is(err, status.ErrClosed) {
			t.Errorf("closed volume: %s returned %v", name, err)
		}
	}
	if v.Memory() != nil {
		t.Error("a closed volume has memory")
	}
}
