// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMemoryVolumeGetsANewUUIDEachTime(t *testing.T) {
	first := volumetest.MustOpen(t, openMemory(1<<20))
	second := volumetest.MustOpen(t, openMemory(1<<20))
	defer volumetest.CloseVolume(t, first)
	defer volumetest.CloseVolume(t, second)
	if first.Info().UUID == second.Info().UUID {
		t.Errorf("two volumes have the UUID %v", first.Info().UUID)
	}
	if text := first.Info().UUID.String(); len(text) != 36 || text[14] != '4' {
		t.Errorf("%q is not a version 4 UUID", text)
	}
}

func TestZeroingALargeMemoryVolumeAllocatesNothing(t *testing.T) {
	const bytes = 8 << 30
	v := volumetest.MustOpen(t, openMemory(bytes))
	defer volumetest.CloseVolume(t, v)
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	do(t, queue,
		&volume.Request{Operation: iomsg.OpWrite, Offset: bytes / 2, Length: 4096,
			Buffer: make([]byte, 4096)})
	before := allocatedBytes(t, v)
	do(t, queue, &volume.Request{Operation: iomsg.OpTrim, Length: bytes})
	do(t, queue, &volume.Request{Operation: iomsg.OpWriteZeroes, Length: 1 << 20})
	if after := allocatedBytes(t, v); before == 0 || after != before {
		t.Errorf("volume used %d bytes before and %d after", before, after)
	}
}

func TestLargeRangesOfMemoryAreZeroedExactly(t *testing.T) {
	const size = 8 << 20
	content := bytes.Repeat([]byte{0xa5}, size)
	for _, hole := range []uint64{4096, 3<<20 + 4096} {
		v := volumetest.MustOpen(t, openMemory(size))
		queue := volumetest.NewQueue(t, v, 1)
		before, behind := uint64(2<<20), 2<<20+hole
		do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: before,
			Buffer: content[:before]})
		do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: behind,
			Length: size - behind, Buffer: content[behind:]})
		do(t, queue,
			&volume.Request{Operation: iomsg.OpWriteZeroes, Offset: 4096, Length: size - 8192})
		got := make([]byte, size)
		do(t, queue, &volume.Request{Operation: iomsg.OpRead, Length: size, Buffer: got})
		want := make([]byte, size)
		copy(want[:4096], content)
		copy(want[size-4096:], content)
		if !bytes.Equal(got, want) {
			t.Errorf("with a hole of %d bytes, the range was not zeroed exactly", hole)
		}
		volumetest.CloseQueue(t, queue)
		volumetest.CloseVolume(t, v)
	}
}

func allocatedBytes(t *testing.T, v volume.Volume) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(v.Memory().Descriptor(), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}
