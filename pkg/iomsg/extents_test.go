// SPDX-License-Identifier: Apache-2.0

package iomsg_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestATableOfExtentsHasTheDocumentedLayout(t *testing.T) {
	table := bytes.Repeat([]byte{0xff}, 3*iomsg.ExtentSize)
	iomsg.EncodeExtents(table, []iomsg.Extent{{Length: 0x0102030405060708, Flags: iomsg.Hole},
		{Length: 0x1112131415161718}})
	want := make([]byte, 3*iomsg.ExtentSize)
	copy(want, []byte{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1})
	copy(want[iomsg.ExtentSize:], []byte{0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18})
	if !bytes.Equal(table, want) {
		t.Errorf("encoded\n%x, want\n%x", table, want)
	}
}

func TestExtentsSurviveEncodingAsFarAsTheTableHasRoom(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		extents := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) iomsg.Extent {
			return iomsg.Extent{Length: rapid.Uint64Range(1, 1<<50).Draw(t, "length"),
				Flags: iomsg.ExtentFlags(rapid.Uint32Range(0, 1).Draw(t, "flags"))}
		}), 1, 9).Draw(t, "extents")
		room := rapid.IntRange(1, 9).Draw(t, "room")
		var total uint64
		for _, e := range extents {
			total += e.Length
		}
		table := make([]byte, room*iomsg.ExtentSize)
		iomsg.EncodeExtents(table, extents)
		got, err := iomsg.DecodeExtents(nil, table, total)
		if err != nil || !slices.Equal(got, extents[:min(room, len(extents))]) {
			t.Fatalf("%v became %v: %v", extents, got, err)
		}
	})
}

func TestTablesThatCannotBeTrueAreRefused(t *testing.T) {
	encode := func(lengths ...uint64) []byte {
		var table []byte
		for _, length := range lengths {
			table = binary.BigEndian.AppendUint64(table, length)
			table = append(table, make([]byte, iomsg.ExtentSize-8)...)
		}
		return table
	}
	for name, table := range map[string][]byte{
		"no table": nil, "a part of an entry": encode(5)[:iomsg.ExtentSize-1],
		"nothing": encode(0, 5), "more than the range": encode(4, 7),
		"lengths that wrap": encode(1, ^uint64(0)),
	} {
		if got, err := iomsg.DecodeExtents(nil, table, 10); !errors.Is(err, status.Unexpected) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// Whatever a peer sends, the extents describe at least one byte and at most what was asked for.
func FuzzDecodeExtents(f *testing.F) {
	table := make([]byte, 3*iomsg.ExtentSize)
	iomsg.EncodeExtents(table, []iomsg.Extent{{Length: 4096, Flags: iomsg.Hole}, {Length: 8192}})
	f.Add(table, uint64(12288))
	f.Add(table, uint64(4096))
	f.Add(bytes.Repeat([]byte{0xff}, 40), uint64(1<<63))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, table []byte, length uint64) {
		extents, err := iomsg.DecodeExtents(nil, table, length)
		if err != nil {
			return
		}
		var total uint64
		for _, e := range extents {
			if e.Length == 0 || e.Length > length-total || e.Flags&^iomsg.Hole != 0 {
				t.Fatalf("%+v of %v, of %d bytes", e, extents, length)
			}
			total += e.Length
		}
		if total == 0 {
			t.Fatal("no extents")
		}
	})
}
