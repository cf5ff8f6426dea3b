// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// extentsOf describes a range with a table of the given number of entries.
func extentsOf(t *testing.T, v volume.Volume, offset, length uint64, entries int) []iomsg.Extent {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	r := volume.Request{Operation: iomsg.OpExtents, Offset: offset, Length: length,
		Buffer: bytes.Repeat([]byte{0xff}, entries*iomsg.ExtentSize)}
	do(t, queue, &r)
	extents, err := iomsg.DecodeExtents(nil, r.Buffer, length)
	if err != nil {
		t.Fatal(err)
	}
	return extents
}

// A layout is written in units of 64 KiB, which are whole blocks and pages everywhere.
func TestExtentsAreThoseOfTheFile(t *testing.T) {
	const unit, units = 64 << 10, 16
	data, hole := func(n uint64) iomsg.Extent { return iomsg.Extent{Length: n * unit} },
		func(n uint64) iomsg.Extent { return iomsg.Extent{Length: n * unit, Flags: iomsg.Hole} }
	kinds := map[string]volumetest.Open{"file": openFile(units * unit),
		"direct": openDirect(units * unit), "memory": openMemory(units * unit)}
	for _, c := range []struct {
		name           string
		written        []uint64 // units
		offset, length uint64   // in units
		entries        int
		want           []iomsg.Extent
	}{
		{"new", nil, 0, units, 4, []iomsg.Extent{hole(units)}},
		{"a hole at both ends", []uint64{3, 4, 5}, 0, units, 4,
			[]iomsg.Extent{hole(3), data(3), hole(10)}},
		{"data at both ends", []uint64{0, 15}, 0, units, 4,
			[]iomsg.Extent{data(1), hole(14), data(1)}},
		{"a part that begins and ends within extents", []uint64{2, 3, 4, 5}, 4, 4, 4,
			[]iomsg.Extent{data(2), hole(2)}},
		{"a part within one extent", []uint64{2, 3, 4, 5}, 3, 2, 4, []iomsg.Extent{data(2)}},
		{"a table that is too small", []uint64{2, 4, 6}, 0, units, 3,
			[]iomsg.Extent{hole(2), data(1), hole(1)}},
		{"a table with one entry", []uint64{2, 4, 6}, 2, 14, 1, []iomsg.Extent{data(1)}},
	} {
		for kind, openKind := range kinds {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				v := volumetest.MustOpen(t, openKind)
				defer volumetest.CloseVolume(t, v)
				queue := volumetest.NewQueue(t, v, 1)
				for _, n := range c.written {
					do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Offset: n * unit,
						Length: unit, Buffer: bytes.Repeat([]byte{1}, unit)})
				}
				volumetest.CloseQueue(t, queue)
				got := extentsOf(t, v, c.offset*unit, c.length*unit, c.entries)
				if !slices.Equal(got, c.want) {
					t.Errorf("extents are %v, want %v", got, c.want)
				}
			})
		}
	}
}

func TestABlockThatIsAHoleInPartIsData(t *testing.T) {
	const block = 256 << 10
	path := filepath.Join(t.TempDir(), "volume")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{block + 64<<10, 2*block + 128<<10, 5 * block} {
		if _, err := file.WriteAt(make([]byte, 64<<10), offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Truncate(8 * block); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	v := open(t, volume.Spec{Name: "v", BlockSize: block,
		Backend: volume.FileBackend{Path: path, ReadOnly: true}})
	defer volumetest.CloseVolume(t, v)
	want := []iomsg.Extent{{Length: block, Flags: iomsg.Hole}, {Length: 2 * block},
		{Length: 2 * block, Flags: iomsg.Hole}, {Length: block},
		{Length: 2 * block, Flags: iomsg.Hole}}
	if got := extentsOf(t, v, 0, 8*block, 8); !slices.Equal(got, want) {
		t.Errorf("extents are %v, want %v", got, want)
	}
}

func TestWhatWasCutOffIsNoHole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	v := open(t, fileSpec(path, 1<<20))
	if err := os.Truncate(path, 1<<19); err != nil {
		t.Fatal(err)
	}
	queue := volumetest.NewQueue(t, v, 1)
	r := volume.Request{Operation: iomsg.OpExtents, Length: 1 << 20,
		Buffer: make([]byte, iomsg.ExtentSize)}
	if volumetest.Do(t, queue, &r); status.CodeOf(r.Err) != status.IOFailed {
		t.Errorf("extents of a truncated volume: %v", r.Err)
	}
	volumetest.CloseQueue(t, queue)
	if err := v.Close(t.Context()); status.CodeOf(err) != status.IOFailed {
		t.Errorf("Close returned %v", err)
	}
}
