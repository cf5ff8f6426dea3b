package controlmsg

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var update = flag.Bool("update", false, "rewrite testdata/protobuf.golden: a change of the wire format")

const goldenFile = "testdata/protobuf.golden"

var compareAddresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
var comparePorts = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

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
	codec := NewProtobufCodec()
	if *update {
		var text bytes.Buffer
		for _, s := range samples() {
			b, err := codec.Append(nil, &Envelope{Correlation: s.correlation, Message: s.message})
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
			b, err := codec.Append([]byte("before"), &want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff("before"+string(golden[s.name]), string(b)); diff != "" {
				t.Errorf("encoding (-golden +got):\n%s", diff)
			}
			got, err := codec.Decode(golden[s.name])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got, compareAddresses, comparePorts); diff != "" {
				t.Errorf("decoding (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryKindOfMessageHasASample(t *testing.T) {
	seen := make(map[Kind]bool)
	for _, s := range samples() {
		seen[s.message.Kind()] = true
	}
	for k := KindError; k < kindCount; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
}

func TestEnumsOfTheWireHaveTheNamesOfTheirGoTypes(t *testing.T) {
	for code := status.Unknown; code.Known(); code++ {
		if got, want := controlpb.Code(code).String(), "CODE_"+code.String(); got != want {
			t.Errorf("code %d is %s on the wire, want %s", code, got, want)
		}
	}
	for phase := PhaseConnect; phase < phaseCount; phase++ {
		if got, want := controlpb.Phase(phase).String(), "PHASE_"+strings.ToUpper(phase.String()); got != want {
			t.Errorf("phase %d is %s on the wire, want %s", phase, got, want)
		}
	}
	for role := RoleInitiator; role <= RoleTarget; role++ {
		if got, want := controlpb.Role(role).String(), "ROLE_"+strings.ToUpper(role.String()); got != want {
			t.Errorf("role %d is %s on the wire, want %s", role, got, want)
		}
	}
	for role := range iomsg.ConnectionRoleCount {
		if got, want := encodeConnectionRole(role).String(), "CONNECTION_ROLE_"+strings.ToUpper(role.String()); got != want {
			t.Errorf("connection role %d is %s on the wire, want %s", role, got, want)
		}
	}
}

// marshal encodes what Append would refuse.
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
	got, err := NewProtobufCodec().Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Envelope{Message: &OpenVolume{}}, got); diff != "" {
		t.Errorf("decoding (-want +got):\n%s", diff)
	}
}

func TestAnErrorWithAnUnknownCodeAndPhaseGetsThrough(t *testing.T) {
	b := marshal(t, &controlpb.Envelope{Message: &controlpb.Envelope_Error{
		Error: &controlpb.Error{Code: 4711, Phase: 99, Text: "line\x1b[2J\nfeed"},
	}})
	got, err := NewProtobufCodec().Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	want := &Error{Code: 4711, Phase: PhaseUnknown, Text: "line [2J feed"}
	if diff := cmp.Diff(want, got.Message); diff != "" {
		t.Errorf("decoding (-want +got):\n%s", diff)
	}
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	valid := marshal(t, &controlpb.Envelope{Message: &controlpb.Envelope_Stop{Stop: &controlpb.Stop{}}})
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
			e, err := NewProtobufCodec().Decode(c.b)
			if e != nil || !errors.Is(err, c.code) {
				t.Errorf("Decode = %v, %v, want the code %v", e, err, c.code)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	codec := NewProtobufCodec()
	for _, s := range samples() {
		b, err := codec.Append(nil, &Envelope{Correlation: s.correlation, Message: s.message})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := codec.Decode(b)
		if (e == nil) == (err == nil) {
			t.Fatalf("Decode = %v, %v", e, err)
		}
		if err != nil {
			if code := status.CodeOf(err); code != status.InvalidValue && code != status.TooBig && code != status.Unexpected {
				t.Fatalf("Decode fails with code %v: %v", code, err)
			}
			return
		}
		again, err := codec.Append(nil, e)
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		twice, err := codec.Decode(again)
		if err != nil {
			t.Fatalf("what was encoded cannot be decoded: %v", err)
		}
		if diff := cmp.Diff(e, twice, compareAddresses, comparePorts); diff != "" {
			t.Fatalf("second round (-first +second):\n%s", diff)
		}
	})
}
