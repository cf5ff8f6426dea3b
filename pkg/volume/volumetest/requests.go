package volumetest

import (
	"bytes"
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
		t.Errorf("size %d is not a multiple of the block size, or too small for the suite", info.Size)
	}
	if m := v.Memory(); m != nil && (!m.Mapped() || m.Len() != info.Size) {
		t.Errorf("memory has %d bytes, volume %d", m.Len(), info.Size)
	}
}

func testNew(t *testing.T, v volume.Volume) {
	content := readAll(t, v)
	if !bytes.Equal(content, make([]byte, len(content))) {
		t.Error("a new volume holds other bytes than zeroes")
	}
}

func testReadBack(t *testing.T, v volume.Volume) {
	block := uint64(v.Info().BlockSize)
	queue := newQueue(t, v, 4)
	defer closeQueue(t, queue)
	for _, c := range []struct{ offset, length uint64 }{
		{0, block},
		{3 * block, 5 * block},
		{v.Info().Size - block, block},
		{0, MinBlocks * block},
		{2 * block, 0},
	} {
		written, read := pattern(c.length, byte(c.offset/block)+1), make([]byte, c.length)
		w := volume.Request{Operation: iomsg.OpWrite, Offset: c.offset, Length: c.length, Buffer: written, UserData: 7}
		r := volume.Request{Operation: iomsg.OpRead, Offset: c.offset, Length: c.length, Buffer: read, UserData: 8}
		Do(t, queue, &w)
		Do(t, queue, &r)
		if w.Err != nil || r.Err != nil || w.UserData != 7 || r.UserData != 8 {
			t.Errorf("%d bytes at %d: write gave %v, read %v", c.length, c.offset, w.Err, r.Err)
		}
		if !bytes.Equal(written, read) {
			t.Errorf("%d bytes at %d did not read back", c.length, c.offset)
		}
		if m := v.Memory(); m != nil && !bytes.Equal(m.Bytes()[c.offset:c.offset+c.length], written) {
			t.Errorf("%d bytes at %d are not in the volume's memory", c.length, c.offset)
		}
	}
}

func testRefused(t *testing.T, v volume.Volume) {
	block, size := uint64(v.Info().BlockSize), v.Info().Size
	queue := newQueue(t, v, 4)
	defer closeQueue(t, queue)
	for name, r := range map[string]volume.Request{
		"read past the end":       {Operation: iomsg.OpRead, Offset: size, Length: block, Buffer: make([]byte, block)},
		"write across the end":    {Operation: iomsg.OpWrite, Offset: size - block, Length: 2 * block, Buffer: make([]byte, 2*block)},
		"overflowing range":       {Operation: iomsg.OpRead, Offset: math.MaxUint64 - block + 1, Length: block, Buffer: make([]byte, block)},
		"huge trim":               {Operation: iomsg.OpTrim, Offset: block, Length: math.MaxUint64 - block + 1},
		"unaligned offset":        {Operation: iomsg.OpRead, Offset: 1, Length: block, Buffer: make([]byte, block)},
		"unaligned length":        {Operation: iomsg.OpWrite, Length: block - 1, Buffer: make([]byte, block-1)},
		"short buffer":            {Operation: iomsg.OpRead, Length: 2 * block, Buffer: make([]byte, block)},
		"long buffer":             {Operation: iomsg.OpWrite, Length: block, Buffer: make([]byte, 2*block)},
		"no operation":            {Length: block, Buffer: make([]byte, block)},
		"unknown operation":       {Operation: 99, Length: block, Buffer: make([]byte, block)},
		"unaligned write zeroes":  {Operation: iomsg.OpWriteZeroes, Offset: block / 2, Length: block},
		"write zeroes off limits": {Operation: iomsg.OpWriteZeroes, Offset: size, Length: block},
	} {
		if err := queue.Submit(&r); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: Submit returned %v", name, err)
		}
	}
	if n := queue.Poll(make([]*volume.Request, 4)); n != 0 {
		t.Errorf("%d refused requests completed", n)
	}
}

func testDepth(t *testing.T, v volume.Volume) {
	if _, err := v.NewQueue(0); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a queue of depth 0 gave %v", err)
	}
	const depth = 3
	queue := newQueue(t, v, depth)
	defer closeQueue(t, queue)
	block := uint64(v.Info().BlockSize)
	var requests [depth + 1]volume.Request
	for round := range 3 {
		for i := range requests {
			requests[i] = volume.Request{Operation: iomsg.OpWrite, Offset: uint64(i) * block, Length: block, Buffer: pattern(block, byte(round))}
			err := queue.Submit(&requests[i])
			if i < depth && err != nil || i == depth && !errors.Is(err, status.Full) {
				t.Fatalf("request %d of round %d: Submit returned %v", i, round, err)
			}
		}
		seen := map[*volume.Request]bool{}
		for _, r := range Await(t, queue, depth) {
			seen[r] = true
		}
		if len(seen) != depth || seen[&requests[depth]] {
			t.Fatalf("round %d completed %d different requests", round, len(seen))
		}
	}
}

// pattern is content that differs by seed and by position.
func pattern(length uint64, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = seed ^ byte(i) ^ byte(i>>8)*3
	}
	return b
}

// readAll reads the part of a volume that the suite uses.
func readAll(t *testing.T, v volume.Volume) []byte {
	t.Helper()
	queue := newQueue(t, v, 1)
	defer closeQueue(t, queue)
	content := make([]byte, MinBlocks*uint64(v.Info().BlockSize))
	r := volume.Request{Operation: iomsg.OpRead, Length: uint64(len(content)), Buffer: content}
	Do(t, queue, &r)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return content
}
