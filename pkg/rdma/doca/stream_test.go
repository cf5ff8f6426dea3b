// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestFramesAreReadAsTheyWereWritten(t *testing.T) {
	want := introduction{inboundReads: 3, outboundReads: maxReadDepth,
		privateData: bytes.Repeat([]byte{7}, rdma.MaxPrivateData), details: []byte("details")}
	f := frame{frameRequest, want.encode()}
	encoded := f.encode()
	got, err := readFrame(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	read, err := parseIntroduction(got.payload)
	if err != nil || got.kind != frameRequest ||
		!cmp.Equal(want, read, cmp.AllowUnexported(introduction{})) {
		t.Errorf("kind %d, %+v, %v", got.kind, read, err)
	}
	for n := range encoded {
		if f, err := readFrame(bytes.NewReader(encoded[:n])); err == nil {
			t.Errorf("%d of %d bytes are read as %+v", n, len(encoded), f)
		}
	}
}

func TestAnEndTellsItsReason(t *testing.T) {
	if err := parseEnd(encodeEnd(nil).payload); err != nil {
		t.Errorf("an orderly end is read as %v", err)
	}
	long := status.Errorf(status.TooBig, "%s", bytes.Repeat([]byte{'x'}, 1<<20))
	f := encodeEnd(long)
	if err := parseEnd(f.payload); !errors.Is(err, status.TooBig) {
		t.Errorf("the end is read as %v", err)
	}
	if len(f.payload) > maxFrame {
		t.Errorf("the end has %d bytes", len(f.payload))
	}
	unknown := binary.LittleEndian.AppendUint32(nil, 1<<31)
	if err := parseEnd(unknown); !errors.Is(err, status.Unknown) {
		t.Errorf("an unknown code is read as %v", err)
	}
}

func TestMalformedFramesAreRejected(t *testing.T) {
	good := frame{frameAsk, []byte{1, 2, 3, 4}}
	for name, spoil := range map[string]func(b []byte) []byte{
		"magic":   func(b []byte) []byte { b[0]++; return b },
		"version": func(b []byte) []byte { b[4]++; return b },
		"kind 0":  func(b []byte) []byte { b[5] = 0; return b },
		"kind 7":  func(b []byte) []byte { b[5] = 7; return b },
		"length": func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[6:], maxFrame+1)
			return append(b, make([]byte, maxFrame)...)
		},
	} {
		if f, err := readFrame(bytes.NewReader(spoil(good.encode()))); err == nil {
			t.Errorf("%s: read as %+v", name, f)
		}
	}
	for name, b := range map[string][]byte{
		"empty":        nil,
		"private data": {0, 0, 0, 0, 1},
		"too much private data": append([]byte{0, 0, 0, 0, rdma.MaxPrivateData + 1},
			make([]byte, 100)...),
		"read depth": {0xff, 0xff, 0, 0, 0},
	} {
		if i, err := parseIntroduction(b); err == nil {
			t.Errorf("introduction, %s: read as %+v", name, i)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	for kind := frameRequest; kind <= frameEnd; kind++ {
		seed := frame{kind, (&introduction{1, 2, []byte("data"), []byte("details")}).encode()}
		f.Add(seed.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		from := bytes.NewReader(b)
		for {
			read, err := readFrame(from)
			testkit.CheckBounded(t, err)
			if err != nil {
				if errors.Is(err, io.EOF) && from.Len() > 0 {
					t.Errorf("%d bytes are left", from.Len())
				}
				return
			}
			if len(read.payload) > maxFrame {
				t.Errorf("a frame of %d bytes", len(read.payload))
			}
			if i, err := parseIntroduction(read.payload); err == nil {
				again, err := parseIntroduction(i.encode())
				if err != nil || !cmp.Equal(i, again, cmp.AllowUnexported(introduction{})) {
					t.Errorf("%+v is read as %+v, %v", i, again, err)
				}
			}
			testkit.CheckBounded(t, parseEnd(read.payload))
			testkit.CheckBounded(t, &rdma.RejectedError{Reason: read.payload})
		}
	})
}
