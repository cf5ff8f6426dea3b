// SPDX-License-Identifier: Apache-2.0

package iomsg_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The files hold messages as encoded by the DOCA 3.2 and 3.3 applications.
func TestMessagesAreTheSameAsThoseOfTheDOCAApplications(t *testing.T) {
	for name, want := range map[string]iomsg.Message{
		"b33_io_read_request.bin": {
			Type: iomsg.Read, UserData: 7, IOSize: 4096, RequesterOffset: 0x7000,
			StorageOffset: 0x123456000,
		},
		"b33_io_write_request.bin": {
			Type: iomsg.Write, UserData: 63, IOSize: 8192, RequesterOffset: 0x3f000,
			StorageOffset: 0x40000,
		},
		"b33_io_result_ok.bin": {
			Type: iomsg.Result, UserData: 7, IOSize: 4096, RequesterOffset: 0x7000,
			StorageOffset: 0x123456000,
		},
		"b33_io_result_io_failed.bin": {
			Type: iomsg.Result, UserData: 63, Result: status.IOFailed, IOSize: 8192,
			RequesterOffset: 0x3f000, StorageOffset: 0x40000,
		},
	} {
		golden := readGolden(t, name)
		var got iomsg.Message
		iomsg.Decode(golden, &got)
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s decodes differently (-want +got):\n%s", name, difference)
		}
		encoded := bytes.Repeat([]byte{0xff}, iomsg.Size)
		iomsg.Encode(encoded, &want)
		if !bytes.Equal(encoded, golden) {
			t.Errorf("%s: encoded\n%x, want\n%x", name, encoded, golden)
		}
	}
}

func readGolden(t testing.TB, name string) []byte {
	t.Helper()
	golden, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return golden
}

func TestEveryFieldHasItsOwnBytes(t *testing.T) {
	want := []byte{
		0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
		0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10,
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
		0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20,
		0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
		0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x30,
		0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
		0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f, 0x40,
	}
	m := iomsg.Message{
		Type: 0x01020304, Trace: 0x05060708, UserData: 0x090a0b0c0d0e0f10,
		Result: 0x11121314, IOSize: 0x15161718,
		RequesterOffset: 0x191a1b1c1d1e1f20, StorageOffset: 0x2122232425262728,
		Slot: 0x292a2b2c, Generation: 0x2d2e2f30, Flags: 0x31323334,
		Cause: 0x35363738, Range: 0x393a3b3c3d3e3f40,
	}
	got := bytes.Repeat([]byte{0xff}, iomsg.Size)
	iomsg.Encode(got, &m)
	if !bytes.Equal(got, want) {
		t.Errorf("encoded\n%x, want\n%x", got, want)
	}
}

func TestMessagesSurviveEncodingAndDecoding(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		want := iomsg.Message{
			Type: iomsg.Type(rapid.Uint32().Draw(t, "type")), Trace: rapid.Uint32().Draw(t,
				"reserved"),
			UserData: rapid.Uint64().Draw(t,
				"user data"), Result: status.Code(rapid.Uint32().Draw(t, "result")),
			IOSize: rapid.Uint32().Draw(t, "size"), RequesterOffset: rapid.Uint64().Draw(t,
				"requester offset"),
			StorageOffset: rapid.Uint64().Draw(t, "storage offset"), Slot: rapid.Uint32().Draw(t,
				"slot"),
			Generation: rapid.Uint32().Draw(t,
				"generation"), Flags: iomsg.Flags(rapid.Uint32().Draw(t, "flags")),
			Cause: status.Cause(rapid.Uint32().Draw(t, "cause")),
			Range: rapid.Uint64().Draw(t, "range"),
		}
		var encoded [iomsg.Size]byte
		iomsg.Encode(encoded[:], &want)
		var got iomsg.Message
		iomsg.Decode(encoded[:], &got)
		if got != want {
			t.Fatalf("%+v became %+v", want, got)
		}
	})
}

func TestStampedTagIsWhatDecodes(t *testing.T) {
	buf := readGolden(t, "b33_io_write_request.bin")
	var want, got iomsg.Message
	iomsg.Decode(buf, &want)
	want.Slot, want.Generation = 0xa1a2a3a4, 0xb1b2b3b4
	iomsg.StampTag(buf, want.Slot, want.Generation)
	if iomsg.Decode(buf, &got); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestResultKeepsTheRequestExceptTypeAndOutcome(t *testing.T) {
	request := make([]byte, iomsg.Size)
	for i := range request {
		request[i] = byte(i + 1)
	}
	response := bytes.Clone(request)
	iomsg.TurnIntoResult(response, status.TooBig)
	want := bytes.Clone(request)
	copy(want[0:4], []byte{0, 0, 0, 0})
	copy(want[16:20], []byte{0, 0, 0, 27})
	if !bytes.Equal(response, want) {
		t.Errorf("response is\n%x, want\n%x", response, want)
	}
}

func TestTypesAreClassified(t *testing.T) {
	for _, c := range []struct {
		t                              iomsg.Type
		name                           string
		movesData, hasRange, isRequest bool
	}{
		{iomsg.Result, "result", false, false, false},
		{iomsg.Read, "read", true, true, true},
		{iomsg.Write, "write", true, true, true},
		{iomsg.Stop, "stop", false, false, false},
		{iomsg.Hello, "hello", false, false, false},
		{iomsg.Flush, "flush", false, false, true},
		{iomsg.Trim, "trim", false, true, true},
		{iomsg.WriteZeroes, "write_zeroes", false, true, true},
		{iomsg.Extents, "extents", true, true, true},
		{5, "unknown", false, false, false},
		{0xffffffff, "unknown", false, false, false},
	} {
		operation := c.t.Operation()
		if c.t.String() != c.name || operation.MovesData() != c.movesData ||
			operation.HasRange() != c.hasRange || c.t.IsRequest() != c.isRequest {
			t.Errorf("type %d: %v, moves data %v, has range %v, is request %v", uint32(c.t), c.t,
				operation.MovesData(), operation.HasRange(), c.t.IsRequest())
		}
	}
}

func TestShortBuffersPanicInsteadOfReachingBeyond(t *testing.T) {
	short := make([]byte, iomsg.Size-1, 2*iomsg.Size)
	for name, use := range map[string]func(){
		"Encode":         func() { iomsg.Encode(short, &iomsg.Message{}) },
		"Decode":         func() { iomsg.Decode(short, &iomsg.Message{}) },
		"StampTag":       func() { iomsg.StampTag(short, 1, 2) },
		"TurnIntoResult": func() { iomsg.TurnIntoResult(short, status.Success) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepted %d bytes", name, len(short))
				}
			}()
			use()
		}()
	}
}

func TestCodingDoesNotAllocate(t *testing.T) {
	buf := make([]byte, iomsg.Size)
	var m iomsg.Message
	n := testing.AllocsPerRun(100, func() { iomsg.Decode(buf, &m); iomsg.Encode(buf, &m) })
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// All bytes belong to fields.
func FuzzDecode(f *testing.F) {
	names, err := filepath.Glob("testdata/*.bin")
	if err != nil || len(names) == 0 {
		f.Fatalf("no golden files: %v", err)
	}
	for _, name := range names {
		f.Add(readGolden(f, filepath.Base(name)))
	}
	f.Add(bytes.Repeat([]byte{0xff}, iomsg.Size))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < iomsg.Size {
			return
		}
		var m iomsg.Message
		iomsg.Decode(data, &m)
		encoded := bytes.Repeat([]byte{0xff}, iomsg.Size)
		iomsg.Encode(encoded, &m)
		if !bytes.Equal(encoded, data[:iomsg.Size]) {
			t.Fatalf("%x became %x", data[:iomsg.Size], encoded)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	buf := make([]byte, iomsg.Size)
	m := iomsg.Message{Type: iomsg.Read, UserData: 1, IOSize: 4096, StorageOffset: 1 << 30}
	b.ReportAllocs()
	for b.Loop() {
		iomsg.Encode(buf, &m)
	}
}

func BenchmarkDecode(b *testing.B) {
	buf := readGolden(b, "b33_io_read_request.bin")
	var m iomsg.Message
	b.ReportAllocs()
	for b.Loop() {
		iomsg.Decode(buf, &m)
	}
}
