// SPDX-License-Identifier: Apache-2.0

package dialects_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// versionsOf returns the versions that have a golden file's bytes. The files were made with the
// codecs of the applications themselves, and their names begin with the release. Control messages
// are the same in all of 3.x, except that init_storage of 3.0 differs from the later ones.
func versionsOf(name string) []dialects.Version {
	release, message, _ := strings.Cut(name, "_")
	is3 := strings.HasPrefix(message, "ctl_") && release != "a210"
	isInit := strings.HasPrefix(message, "ctl_init_storage_request")
	switch {
	case release == "a210":
		return []dialects.Version{dialects.DOCA2_10}
	case release == "b30":
		return []dialects.Version{dialects.DOCA3_0}
	case isInit:
		return []dialects.Version{dialects.DOCA3_1, dialects.DOCA3_2}
	case is3:
		return []dialects.Version{dialects.DOCA3_0, dialects.DOCA3_1, dialects.DOCA3_2}
	case release == "b31":
		return []dialects.Version{dialects.DOCA3_1}
	}
	return []dialects.Version{dialects.DOCA3_2}
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/golden", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// names returns the names of golden files with control messages ("ctl") or IO messages ("io").
func names(t testing.TB, kind string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("testdata/golden/[ab]*.bin")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".bin")
		if strings.Split(name, "_")[1] == kind {
			found = append(found, name)
		}
	}
	return found
}

// counting returns the bytes from first to last.
func counting(first, last byte) (b []byte) {
	for n := first; n <= last; n++ {
		b = append(b, n)
	}
	return b
}

var export = counting(0x10, 0x2f)

// meanings holds what the golden control messages say.
var meanings = map[string]dialects.Envelope{
	"a210_ctl_configure_data_path": {Correlation: 1, Message: &dialects.InitStorage{Count: 64,
		BufferSize: 4096, BatchSize: 32, Export: export}},
	"a210_ctl_configure_data_path_empty_blob": {Correlation: 2, Message: &dialects.InitStorage{
		Count: 1, BufferSize: 64, BatchSize: 1, Export: []byte{}}},
	"a210_ctl_create_rdma_connection_request_ctrl": {Correlation: 2,
		Message: &dialects.CreateConnection{Role: dialects.RoleControl,
			Details: counting(0xa0, 0xb7)}},
	"a210_ctl_create_rdma_connection_request_data": {Correlation: 2,
		Message: &dialects.CreateConnection{Details: counting(0xb0, 0xc7)}},
	"a210_ctl_create_rdma_connection_response_ctrl": {Correlation: 2,
		Message: &dialects.CreateConnectionReply{Role: dialects.RoleControl,
			Details: counting(0xc0, 0xd7)}},
	"a210_ctl_create_rdma_connection_response_data": {Correlation: 2,
		Message: &dialects.CreateConnectionReply{Details: counting(0xd0, 0xe7)}},
	"a210_ctl_destroy_objects": {Correlation: 4, Message: &dialects.Shutdown{}},
	"a210_ctl_response_error": {Correlation: 0x1020304, Message: &dialects.Response{
		Result: status.Unknown, Text: "Failed during configure storage process"}},
	"a210_ctl_response_ok":                 {Correlation: 1, Message: &dialects.Response{}},
	"a210_ctl_start_data_path_connections": {Correlation: 2, Message: &dialects.StartConnections{}},
	"a210_ctl_start_storage":               {Correlation: 3, Message: &dialects.StartStorage{}},
	"b30_ctl_init_storage_request": {ID: 1, Correlation: 1, Message: &dialects.InitStorage{
		Count: 64, BatchSize: 4, Cores: 2, Export: export}},
	"b31_ctl_init_storage_request": {ID: 1, Correlation: 1, Message: &dialects.InitStorage{
		Count: 66, Cores: 2, Export: export}},
	"b33_ctl_create_rdma_connection_request_io_control": {ID: 3, Correlation: 1,
		Message: &dialects.CreateConnection{Role: dialects.RoleControl,
			Details: counting(0xb0, 0xc7)}},
	"b33_ctl_create_rdma_connection_request_io_data": {ID: 2, Correlation: 1,
		Message: &dialects.CreateConnection{Details: counting(0xa0, 0xb7)}},
	"b33_ctl_create_rdma_connection_response_io_control": {ID: 3, Correlation: 1,
		Message: &dialects.CreateConnectionReply{Context: 1, Role: dialects.RoleControl,
			Details: counting(0xd0, 0xe7)}},
	"b33_ctl_create_rdma_connection_response_io_data": {ID: 2, Correlation: 1,
		Message: &dialects.CreateConnectionReply{Details: counting(0xc0, 0xd7)}},
	"b33_ctl_error_response": {ID: 1, Correlation: 1, Message: &dialects.Response{
		Result: status.InvalidValue, Text: "Failed"}},
	"b33_ctl_error_response_empty_text": {ID: 0x1020304, Correlation: 0x5060708,
		Message: &dialects.Response{Result: status.Unexpected}},
	"b33_ctl_init_storage_request": {ID: 1, Correlation: 1, Message: &dialects.InitStorage{
		Count: 64, Cores: 2, Export: export}},
	"b33_ctl_init_storage_request_relayed": {ID: 1, Correlation: 1, Message: &dialects.InitStorage{
		Count: 128, Cores: 2, Export: counting(0x40, 0x67)}},
	"b33_ctl_init_storage_response": {ID: 1, Correlation: 1, Message: &dialects.InitStorageReply{}},
	"b33_ctl_query_storage_request": {Message: &dialects.QueryStorage{}},
	"b33_ctl_query_storage_response": {Message: &dialects.QueryStorageReply{TotalSize: 524288,
		BlockSize: 4096}},
	"b33_ctl_query_storage_response_big": {Message: &dialects.QueryStorageReply{
		TotalSize: 78187491328, BlockSize: 512}},
	"b33_ctl_shutdown_request":       {ID: 4, Correlation: 4, Message: &dialects.Shutdown{}},
	"b33_ctl_shutdown_response":      {ID: 4, Correlation: 4, Message: &dialects.ShutdownReply{}},
	"b33_ctl_start_storage_request":  {ID: 2, Correlation: 2, Message: &dialects.StartStorage{}},
	"b33_ctl_start_storage_response": {ID: 2, Correlation: 2, Message: &dialects.StartStorageReply{}},
	"b33_ctl_stop_storage_request":   {ID: 3, Correlation: 3, Message: &dialects.StopStorage{}},
	"b33_ctl_stop_storage_response":  {ID: 3, Correlation: 3, Message: &dialects.StopStorageReply{}},
}

func TestControlMessagesAreThoseOfTheApplications(t *testing.T) {
	for _, name := range names(t, "ctl") {
		b := golden(t, name)
		want, known := meanings[name]
		if !known {
			t.Errorf("nothing says what %s means", name)
			continue
		}
		for _, v := range versionsOf(name) {
			got, err := dialects.Decode(v, b)
			if err != nil {
				t.Errorf("%v: %s: %v", v, name, err)
				continue
			}
			if difference := cmp.Diff(&want, got); difference != "" {
				t.Errorf("%v: %s: %s", v, name, difference)
			}
			encoded, err := dialects.Encode(v, got)
			if err != nil || !bytes.Equal(encoded, b) {
				t.Errorf("%v: %s is encoded as %x, %v", v, name, encoded, err)
			}
			for n := range b {
				if _, err := dialects.Decode(v, b[:n]); err == nil {
					t.Errorf("%v: %d of %d bytes of %s were accepted", v, n, len(b), name)
				}
			}
			if _, err := dialects.Decode(v, append(bytes.Clone(b), 0)); err == nil {
				t.Errorf("%v: %s was accepted with a byte too many", v, name)
			}
		}
	}
}

func TestTheFirstBytesTellTheFraming(t *testing.T) {
	check := func(what string, stream []byte, want controlmsg.Framing) {
		t.Helper()
		got := dialects.DetectFraming([controlmsg.DetectedBytes]byte(stream))
		if got != want {
			t.Errorf("%s begins with %x, which is taken for %v", what, stream[:8], got)
		}
	}
	for _, name := range names(t, "ctl") {
		want := dialects.DOCA3_2
		if strings.HasPrefix(name, "a210_") {
			want = dialects.DOCA2_10
		}
		check(name, golden(t, name), want)
	}
	for length := range uint32(1 << 16) {
		for _, first := range []byte{8, 10, 255} {
			b := binary.BigEndian.AppendUint32(nil, length)
			check("our protocol", append(b, first, 0, 0, 0), nil)
		}
	}
	check("TLS", []byte{22, 3, 1, 2, 0, 1, 0, 1}, nil)
	check("HTTP", []byte("GET / HT"), nil)
}

func TestTheFirstMessageTellsTheGeneration(t *testing.T) {
	for _, name := range names(t, "ctl") {
		b := golden(t, name)
		want := dialects.DOCA3_2
		if strings.HasPrefix(name, "a210_") {
			want = dialects.DOCA2_10
		}
		if got := dialects.Detect(b); got != want {
			t.Errorf("%s is taken for %v", name, got)
		}
	}
	for name, want := range map[string]dialects.Version{
		"b30_ctl_init_storage_request":         dialects.DOCA3_0,
		"b31_ctl_init_storage_request":         dialects.DOCA3_2,
		"b33_ctl_init_storage_request_relayed": dialects.DOCA3_2,
		"b33_ctl_start_storage_request":        dialects.None,
		"a210_ctl_configure_data_path":         dialects.None,
	} {
		if got := dialects.DetectInit(golden(t, name)); got != want {
			t.Errorf("%s is taken for %v", name, got)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 8}, make([]byte, 16), {8, 1, 26, 0, 0, 0, 0, 0}} {
		if got := dialects.Detect(b); got != dialects.None {
			t.Errorf("%x is taken for %v", b, got)
		}
	}
}

func TestMessagesThatAVersionCannotCarryAreRejected(t *testing.T) {
	for _, c := range []struct {
		version dialects.Version
		message dialects.Message
	}{
		{dialects.DOCA2_10, &dialects.QueryStorage{}},
		{dialects.DOCA2_10, &dialects.ShutdownReply{}},
		{dialects.DOCA2_10, &dialects.InitStorage{Export: make([]byte, 1001)}},
		{dialects.DOCA3_2, &dialects.StartConnections{}},
		{dialects.DOCA3_2, &dialects.Response{Text: string(make([]byte, 4096))}},
	} {
		b, err := dialects.Encode(c.version, &dialects.Envelope{Message: c.message})
		if err == nil {
			t.Errorf("%v: %s is encoded as %d bytes", c.version, c.message.Name(), len(b))
		}
	}
	_, err := dialects.Encode(dialects.DOCA2_10, &dialects.Envelope{
		Message: &dialects.InitStorage{Export: make([]byte, 1000)}})
	if err != nil {
		t.Errorf("the largest message of 2.10: %v", err)
	}
}

func TestVersionsHaveNames(t *testing.T) {
	for _, v := range []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_0, dialects.DOCA3_1,
		dialects.DOCA3_2} {
		if got, err := dialects.ParseVersion(v.String()); err != nil || got != v {
			t.Errorf("%v is parsed as %v, %v", v, got, err)
		}
	}
	if v, err := dialects.ParseVersion("none"); err == nil {
		t.Errorf("none is parsed as %v", v)
	}
}

const base = 0x7f1234560000

// translations holds where the data of golden requests lies, in the initiator's memory and in the
// storage.
var translations = map[string][2]uint64{
	"a210_io_read_request":  {0, 0},
	"a210_io_write_request": {0x10000, 0x10000},
	"b30_io_read_request":   {0, 0},
	"b30_io_write_request":  {0x12000, 0x10000},
	"b31_io_read_request":   {0x7000, 0x123456000},
	"b31_io_write_request":  {0x3f000, 0x40000},
	"b33_io_read_request":   {0x7000, 0x123456000},
	"b33_io_write_request":  {0x3f000, 0x40000},
}

func TestIOMessagesAreTranslatedAndBack(t *testing.T) {
	translated := 0
	for _, name := range names(t, "io") {
		b := golden(t, name)
		translator := dialects.NewInitiatorTranslator(versionsOf(name)[0], base)
		var before, after iomsg.Message
		iomsg.Decode(b, &before)
		encoded := make([]byte, iomsg.Size)
		if iomsg.Encode(encoded, &before); !bytes.Equal(encoded, b) {
			t.Errorf("%s is encoded as %x", name, encoded)
		}
		message := bytes.Clone(b)
		for i := 40; i < iomsg.Size; i++ {
			message[i] = 0xff // not initialized by the applications
		}
		translator.FromClient(message)
		iomsg.Decode(message, &after)
		if after.Result != 0 || after.Flags != 0 || after.Slot != 0 || after.Generation != 0 ||
			after.IOSize != before.IOSize || after.UserData != before.UserData ||
			after.Trace != before.Trace {
			t.Errorf("%s became %+v", name, after)
		}
		want, isRequest := translations[name]
		switch {
		case isRequest:
			translated++
			if after.Type != before.Type || after.RequesterOffset != want[0] ||
				after.StorageOffset != want[1] {
				t.Errorf("%s became %+v", name, after)
			}
		case name == "a210_io_stop":
			if after.Type != iomsg.Stop {
				t.Errorf("%s became %+v", name, after)
			}
		case after.Type.IsRequest() || after.Type == iomsg.Stop:
			t.Errorf("%s became the request %+v", name, after)
		}
		translator.ToClient(message)
		iomsg.TurnIntoResult(message, before.Result)
		wantBack := bytes.Clone(b)
		iomsg.TurnIntoResult(wantBack, before.Result)
		if !bytes.Equal(message, wantBack) {
			t.Errorf("%s came back as %x", name, message)
		}
	}
	if translated != len(translations) {
		t.Errorf("%d of %d requests were translated", translated, len(translations))
	}
}

func TestTheNativeTypesAreNotInTheDialects(t *testing.T) {
	for _, v := range []dialects.Version{dialects.DOCA2_10, dialects.DOCA3_2} {
		for _, native := range []iomsg.Type{iomsg.Flush, iomsg.Trim, iomsg.WriteZeroes,
			iomsg.Hello, 99} {
			message := make([]byte, iomsg.Size)
			iomsg.Encode(message, &iomsg.Message{Type: native, Flags: iomsg.FUA})
			dialects.NewInitiatorTranslator(v, 0).FromClient(message)
			var m iomsg.Message
			if iomsg.Decode(message, &m); m.Type.IsRequest() || m.Type == iomsg.Stop ||
				m.Type == iomsg.Hello {
				t.Errorf("%v: type %v became %v", v, native, m.Type)
			}
		}
	}
}

func fuzz(f *testing.F, v dialects.Version) {
	for _, name := range names(f, "ctl") {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := dialects.Decode(v, b)
		testkit.CheckBounded(t, err)
		if err != nil {
			return
		}
		encoded, err := dialects.Encode(v, e)
		if err != nil {
			t.Fatalf("%+v was decoded and cannot be encoded: %v", e, err)
		}
		again, err := dialects.Decode(v, encoded)
		if err != nil || !cmp.Equal(e, again) {
			t.Errorf("%+v came back as %+v, %v", e, again, err)
		}
		if generation := dialects.Detect(b); (generation == dialects.DOCA2_10) !=
			(v == dialects.DOCA2_10) {
			t.Errorf("a message of %v is taken for %v", v, generation)
		}
	})
}

func FuzzDecode2_10(f *testing.F) { fuzz(f, dialects.DOCA2_10) }
func FuzzDecode3_0(f *testing.F)  { fuzz(f, dialects.DOCA3_0) }
func FuzzDecode3_1(f *testing.F)  { fuzz(f, dialects.DOCA3_1) }
func FuzzDecode3_2(f *testing.F)  { fuzz(f, dialects.DOCA3_2) }

func FuzzInitiatorTranslator(f *testing.F) {
	for _, name := range names(f, "io") {
		f.Add(golden(f, name), uint8(len(name)%4), uint64(base))
	}
	f.Fuzz(func(t *testing.T, b []byte, version uint8, base uint64) {
		if len(b) != iomsg.Size {
			return
		}
		translator := dialects.NewInitiatorTranslator(dialects.Version(version%4+1), base)
		message := bytes.Clone(b)
		translator.FromClient(message)
		var m iomsg.Message
		iomsg.Decode(message, &m)
		if m.Flags != 0 || m.Slot != 0 || m.Generation != 0 || m.Result != 0 ||
			m.Type == iomsg.Hello || m.Type.IsRequest() && !m.Type.Operation().MovesData() {
			t.Errorf("%x became %+v", b, m)
		}
		translator.ToClient(message)
		if !bytes.Equal(message[4:16], b[4:16]) || !bytes.Equal(message[20:32], b[20:32]) {
			t.Errorf("%x came back as %x", b, message)
		}
	})
}

// A target that reads a request as its version says finds the place that the request had.
func FuzzTargetTranslator(f *testing.F) {
	for _, name := range names(f, "io") {
		f.Add(golden(f, name), uint8(len(name)%4), uint64(base))
	}
	f.Fuzz(func(t *testing.T, b []byte, version uint8, base uint64) {
		if len(b) != iomsg.Size {
			return
		}
		v := dialects.Version(version%4 + 1)
		var before, after iomsg.Message
		iomsg.Decode(b, &before)
		translator := dialects.NewTargetTranslator(v, base)
		canCarry := translator.CanCarry(before.Type, before.RequesterOffset, before.StorageOffset)
		message := bytes.Clone(b)
		translator.ToTarget(message)
		if !bytes.Equal(message[:24], b[:24]) || !bytes.Equal(message[40:], b[40:]) {
			t.Errorf("%v: %x became %x", v, b, message)
		}
		if !canCarry {
			return
		}
		dialects.NewInitiatorTranslator(v, base).FromClient(message)
		if iomsg.Decode(message, &after); after.Type != before.Type ||
			after.RequesterOffset != before.RequesterOffset ||
			after.StorageOffset != before.StorageOffset {
			t.Errorf("%v: %+v reached the target as %+v", v, before, after)
		}
	})
}
