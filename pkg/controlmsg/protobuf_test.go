// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var update = flag.Bool("update", false,
	"rewrite testdata/protobuf.golden, which changes the wire format")

const goldenFile = "testdata/protobuf.golden"

var compareAddresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
var comparePorts = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// sample is a message with a golden encoding.
type sample struct {
	name        string
	correlation uint64
	message     Message
}

func sixteen(first byte) (array [16]byte) {
	for i := range array {
		array[i] = first + byte(i)
	}
	return array
}

// samples returns every kind of message at least once, with different values in all fields.
func samples() []sample {
	return []sample{
		{"error_answer", 7, &Error{Code: status.TooBig, Phase: PhaseConfigureDataPath,
			Text: "depth is 4096, the limit is 1024"}},
		{"error_spontaneous", 0, &Error{Code: status.Shutdown, Phase: PhaseRunning,
			Text: "the relay is shutting down"}},
		{"error_postponing", 0, &Error{Code: status.Again, Phase: PhaseHello,
			Text: "the target admits 500 sessions per second", RetryAfterMs: 1234}},
		{"keep_alive", 0, &KeepAlive{}},
		{"keep_alive_of_target", 0, &KeepAlive{VolumeSize: 1 << 40, Question: lease.Question{
			Number: 0x0102030405060708, Noted: []uint64{1, 300}, Confirmed: []uint64{2}}}},
		{"keep_alive_of_relay", 0, &KeepAlive{Answer: lease.Answer{Instance: sixteen(0x50),
			Question: 0x0807060504030201, Ended: []uint64{3, 1 << 40}, Awaited: []uint64{4}}}},
		{"hello", 1, &Hello{Role: RoleInitiator, MinVersion: 1, MaxVersion: 3,
			MaxMessageSize: 65536, Software: "initiator 1.2.3", SilenceLimitMs: 5000}},
		{"hello_reply", 1, &HelloReply{Version: 1, MaxMessageSize: 4080, Software: "zc-relay 1.2.3",
			SilenceLimitMs: 250}},
		{"hello_reply_of_target", 1, &HelloReply{Version: 1, MaxMessageSize: 65536,
			Software: "target 1.2.3", SilenceLimitMs: 250, Process: 0x1122334455667788,
			LeaseMs: 5000, Question: 0x1234}},
		{"open_volume", 2, &OpenVolume{Volume: "backup"}},
		{"open_volume_by_channel", 2, &OpenVolume{}},
		{"open_volume_reply", 2, &OpenVolumeReply{
			Volume: "backup", UUID: sixteen(0x10), WriteVerifier: 0x0102030405060708,
			Size: 78187491328, BlockSize: 512,
			ReadOnly: true, Capabilities: 5, MaxQueues: 32, MaxDepth: 1024, MaxBufferSize: 1 << 20,
			Transport: "iwarp", Exclusive: true, Sessions: 2, Holder: "verify on host-a", Fenced: true,
			HolderID: 0x0123456789abcdef,
		}},
		{"open_volume_reply_of_target", 2, &OpenVolumeReply{
			Volume: "backup", UUID: sixteen(0x10), Size: 1 << 20, BlockSize: 4096,
			MaxQueues: 32, MaxDepth: 1024, MaxBufferSize: 1 << 20,
			Transport: "iwarp", RDMAPort: 20049,
			RDMAAddress: netip.MustParseAddr("192.0.2.7"), Sole: "locked on 0123456789abcdef",
		}},
		{"configure_data_path_of_initiator", 3, &ConfigureDataPath{
			QueueCount: 4, Depth: 64, BufferSize: 1 << 20, ClientInstance: sixteen(0x20), Epoch: 9,
			Export: Export{Access: memory.PCIRead | memory.PCIWrite, Length: 256 << 20,
				Descriptor: []byte{0xde, 0xad, 0xbe, 0xef}},
			Owner: sixteen(0x40), Exclusive: true, ReadOnly: true, Client: "get on host-a",
			Preempt: 0x0123456789abcdef,
		}},
		{"configure_data_path_of_relay", 3, &ConfigureDataPath{
			QueueCount: 4, Depth: 64, BufferSize: 1 << 20, ClientInstance: sixteen(0x20), Epoch: 9,
			Export: Export{Access: memory.RemoteRead | memory.RemoteWrite, Length: 256 << 20,
				RDMA: &RDMAExport{Transport: "iwarp", Key: 0xcafe0001, Base: 0x7f0000000000}},
			Session: 77, Answer: lease.Answer{Instance: sixteen(0x60), Question: 9,
				Ended: []uint64{5}, Awaited: []uint64{6, 7}},
		}},
		{"configure_data_path_reply", 3, &ConfigureDataPathReply{InboundReads: 16,
			Exclusive: true, ReadOnly: true, HolderID: 0xfedcba9876543210}},
		{"create_rdma_connection_ipv4", 4, &CreateRDMAConnection{Queue: 1,
			Role: iomsg.DataConnection, Source: netip.MustParseAddr("192.0.2.1")}},
		{"create_rdma_connection_ipv6", 4, &CreateRDMAConnection{Role: iomsg.ControlConnection,
			Source: netip.MustParseAddr("2001:db8::1")}},
		{"create_rdma_connection_reply", 4,
			&CreateRDMAConnectionReply{Address: netip.MustParseAddrPort("192.0.2.2:20049"),
				Token: sixteen(0x30)}},
		{"create_rdma_connection_reply_with_staging", 4, &CreateRDMAConnectionReply{
			Address: netip.MustParseAddrPort("192.0.2.2:20049"), Token: sixteen(0x30),
			Staging: &rdma.RemoteMemory{Access: memory.RemoteWrite, Key: 0xcafe0002,
				Base: 0x7f1000000000, Length: 64 << 20},
		}},
		{"start_data_path_connections", 5, &StartDataPathConnections{ConsumerIDs: []uint32{3, 1, 4,
			0xffffffff}}},
		{"start_data_path_connections_reply", 5,
			&StartDataPathConnectionsReply{ConsumerIDs: []uint32{9, 2, 6, 5}}},
		{"start_storage", 6, &StartStorage{}},
		{"start_storage_reply", 6, &StartStorageReply{}},
		{"stop", 7, &Stop{}},
		{"stop_reply", 7, &StopReply{}},
		{"destroy_objects", 8, &DestroyObjects{}},
		{"destroy_objects_reply", 0xffffffffffffffff, &DestroyObjectsReply{}},
	}
}

func readGolden(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	golden := make(map[string][]byte)
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if golden[name], err = hex.DecodeString(digits); err != nil {
			t.Fatalf("%s: %s: %v", goldenFile, name, err)
		}
	}
	return golden
}

func TestSamplesHaveTheirGoldenEncoding(t *testing.T) {
	if *update {
		var text bytes.Buffer
		for _, s := range samples() {
			b, err := Encode(&Envelope{Correlation: s.correlation, Message: s.message})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "%s %x\n", s.name, b)
		}
		if err := os.WriteFile(goldenFile, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden := readGolden(t)
	if len(golden) != len(samples()) {
		t.Errorf("%s has %d entries, there are %d samples", goldenFile, len(golden), len(samples()))
	}
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			want := Envelope{Correlation: s.correlation, Message: s.message}
			b, err := Encode(&want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden[s.name]), string(b)); diff != "" {
				t.Errorf("encoding (-golden +got):\n%s", diff)
			}
			got, err := Decode(golden[s.name])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got, compareAddresses, comparePorts); diff != "" {
				t.Errorf("decoding (-want +got):\n%s", diff)
			}
		})
	}
}

// sampleOf returns the first sample of a kind, nil if there is none.
func sampleOf(kind Kind) Message {
	for _, s := range samples() {
		if s.message.Kind() == kind {
			return s.message
		}
	}
	return nil
}

func TestEveryKindOfMessageHasASample(t *testing.T) {
	for k := KindError; k < kindCount; k++ {
		if sampleOf(k) == nil {
			t.Errorf("no sample of %v", k)
		}
	}
}

func TestWireEnumsHaveTheNamesOfTheGoConstants(t *testing.T) {
	for code := status.Unknown; code.Known(); code++ {
		if got, want := controlpb.Code(code).String(), "CODE_"+code.String(); got != want {
			t.Errorf("code %d is %s on the wire, want %s", code, got, want)
		}
	}
	for phase := PhaseConnect; phase < phaseCount; phase++ {
		if got, want := controlpb.Phase(phase).String(),
			"PHASE_"+strings.ToUpper(phase.String()); got != want {
			t.Errorf("phase %d is %s on the wire, want %s", phase, got, want)
		}
	}
	for role := RoleInitiator; role <= RoleTarget; role++ {
		if got, want := controlpb.Role(role).String(),
			"ROLE_"+strings.ToUpper(role.String()); got != want {
			t.Errorf("role %d is %s on the wire, want %s", role, got, want)
		}
	}
	for role := range iomsg.ConnectionRoleCount {
		var wire controlpb.ConnectionRole
		connectionRole(&translation{}, &role, &wire)
		if got, want := wire.String(),
			"CONNECTION_ROLE_"+strings.ToUpper(role.String()); got != want {
			t.Errorf("connection role %d is %s on the wire, want %s", role, got, want)
		}
	}
}

// fill sets v and every field in it to a random value other than zero.
func fill(t *rapid.T, v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *netip.Addr:
		*p = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.ByteMin(1), 4, 4).Draw(t, "address")))
		return
	case *netip.AddrPort:
		var address netip.Addr
		fill(t, reflect.ValueOf(&address).Elem())
		*p = netip.AddrPortFrom(address, rapid.Uint16Min(1).Draw(t, "port"))
		return
	case *iomsg.ConnectionRole:
		*p = iomsg.ConnectionRoleCount - 1
		return
	case *Phase:
		*p = Phase(rapid.Uint8Range(1, uint8(phaseCount)-1).Draw(t, "phase"))
		return
	case *Error:
		defer func() { p.Code, p.RetryAfterMs = status.Again, p.RetryAfterMs%maxRetryAfterMs }()
	case *rdma.RemoteMemory:
		defer func() { p.Access = memory.RemoteWrite }() // not on the wire
	case *Export:
		defer func() { // it holds one of the two
			if rapid.Bool().Draw(t, "descriptor") {
				p.RDMA = nil
			} else {
				p.Descriptor = nil
			}
		}()
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Range(1, math.MaxUint64>>(64-v.Type().Bits())).Draw(t, "number"))
	case reflect.String:
		v.SetString(rapid.StringMatching("[a-z]{1,9}").Draw(t, "text"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("fill does not know values of type %v", v.Type())
	}
}

// checkPopulated fails if a field of a protocol buffer is empty.
func checkPopulated(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if choice := field.ContainingOneof(); choice != nil && m.WhichOneof(choice) != nil &&
			m.WhichOneof(choice) != field {
			continue
		}
		if !m.Has(field) {
			t.Fatalf("%v is not encoded", field.FullName())
		}
		if field.Kind() == protoreflect.MessageKind {
			checkPopulated(t, m.Get(field).Message())
		}
	}
}

func TestEveryFieldOfEveryMessageSurvivesEncodingAndDecoding(t *testing.T) {
	for kind := KindError; kind < kindCount; kind++ {
		t.Run(kind.String(), func(t *testing.T) {
			seedtest.Check(t, func(t *rapid.T) {
				message := reflect.New(reflect.TypeOf(sampleOf(kind)).Elem())
				fill(t, message.Elem())
				want := &Envelope{Correlation: rapid.Uint64Min(1).Draw(t, "correlation"),
					Timeout: time.Millisecond *
						time.Duration(rapid.Uint32Min(1).Draw(t, "timeout in ms")),
					Message: message.Interface().(Message)}
				wire := toWire(want)
				checkPopulated(t, wire.ProtoReflect())
				got, err := fromWire(wire)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got, compareAddresses, comparePorts); diff != "" {
					t.Fatalf("decoding (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// marshal encodes what Append would reject.
func marshal(t *testing.T, e *controlpb.Envelope) []byte {
	t.Helper()
	b, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	inner := protowire.AppendTag(nil, 99, protowire.BytesType)
	inner = protowire.AppendString(inner, "from the future")
	b := protowire.AppendTag(nil, 18, protowire.BytesType) // open_volume
	b = protowire.AppendBytes(b, inner)
	b = protowire.AppendTag(b, 9, protowire.VarintType)
	b = protowire.AppendVarint(b, 1)
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Envelope{Message: &OpenVolume{}}, got); diff != "" {
		t.Errorf("decoding (-want +got):\n%s", diff)
	}
}

func TestAnErrorWithAnUnknownCodeAndPhaseIsAccepted(t *testing.T) {
	b := marshal(t, &controlpb.Envelope{Message: &controlpb.Envelope_Error{
		Error: &controlpb.Error{Code: 4711, Phase: 99, Text: "line\x1b[2J\nfeed"},
	}})
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	want := &Error{Code: 4711, Phase: PhaseUnknown, Text: "line [2J feed"}
	if diff := cmp.Diff(want, got.Message); diff != "" {
		t.Errorf("decoding (-want +got):\n%s", diff)
	}
}

func TestATimeToTryAgainIsTakenWithAgainOnlyAndUpToItsLimit(t *testing.T) {
	for _, c := range []struct {
		code         controlpb.Code
		sent, wanted uint32
	}{
		{controlpb.Code_CODE_AGAIN, 70, 70},
		{controlpb.Code_CODE_AGAIN, math.MaxUint32, 60_000},
		{controlpb.Code_CODE_FULL, 70, 0},
	} {
		b := marshal(t, &controlpb.Envelope{Message: &controlpb.Envelope_Error{
			Error: &controlpb.Error{Code: c.code, RetryAfterMs: c.sent},
		}})
		got, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		want := &Error{Code: status.Code(c.code), RetryAfterMs: c.wanted}
		if diff := cmp.Diff(want, got.Message); diff != "" {
			t.Errorf("decoding (-want +got):\n%s", diff)
		}
	}
}

func TestMalformedMessagesAreRejected(t *testing.T) {
	valid := marshal(t,
		&controlpb.Envelope{Message: &controlpb.Envelope_Stop{Stop: &controlpb.Stop{}}})
	future := protowire.AppendBytes(protowire.AppendTag(nil, 200, protowire.BytesType), nil)
	cases := []struct {
		name string
		b    []byte
		code status.Code
	}{
		{"empty", nil, status.Unexpected},
		{"unknown kind", future, status.Unexpected},
		{"text", []byte("GET / HTTP/1.1\r\n\r\n"), status.InvalidValue},
		{"truncated", valid[:len(valid)-1], status.InvalidValue},
		{"trailing garbage", append(valid, 0xff), status.InvalidValue},
		{"invalid UTF-8", []byte{0x92, 0x01, 0x03, 0x0a, 0x01, 0xff}, status.InvalidValue},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, err := Decode(c.b)
			if e != nil || !errors.Is(err, c.code) {
				t.Errorf("Decode = %v, %v, want the code %v", e, err, c.code)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		b, err := Encode(&Envelope{Correlation: s.correlation, Message: s.message})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		testkit.CheckBounded(t, err)
		if (e == nil) == (err == nil) {
			t.Fatalf("Decode = %v, %v", e, err)
		}
		if err != nil {
			if code := status.CodeOf(err); code != status.InvalidValue && code != status.TooBig &&
				code != status.Unexpected {
				t.Fatalf("Decode fails with code %v: %v", code, err)
			}
			return
		}
		again, err := Encode(e)
		if err != nil {
			t.Fatalf("the decoded message cannot be encoded: %v", err)
		}
		twice, err := Decode(again)
		if err != nil {
			t.Fatalf("the encoded message cannot be decoded: %v", err)
		}
		if diff := cmp.Diff(e, twice, compareAddresses, comparePorts); diff != "" {
			t.Fatalf("second round (-first +second):\n%s", diff)
		}
	})
}
