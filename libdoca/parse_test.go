// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca/internal/link"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestOptionsOfAFile(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{`{}`, ""},
		{`{"doca_general_flags": {"log-level": 60}, "other": [1]}`, "log-level 60 "},
		{`{"doca_dpdk_flags": {"devices": [{"device": "sf", "id": "4", "sft": true},
			{"device": "pf", "id": "0000:03:00.0", "hws": true}], "core-mask": 15, "core-list": "0-3",
			"flags": " --x  y "}}`, " -a  auxiliary:mlx5_core.sf.4,sft_en=1  -a " +
			" 0000:03:00.0,dv_flow_en=2  -c  0xf  -l  0-3  --x  y "},
		{`{"doca_program_flags": {"b": true, "a": ["x y", "z"], "c": -1.5}}`, "a x y a z b true c -1.5 "},
	} {
		got, err := parseArguments([]byte(test.text))
		if err != nil || strings.ReplaceAll(string(got), "\x00", " ") != test.want {
			t.Errorf("%s: %q, %v", test.text, got, err)
		}
	}
	for _, text := range []string{``, `[]`, `{"doca_program_flags": {"a": {}}}`,
		`{"doca_program_flags": {"a": null}}`, `{"doca_program_flags": {"a": [[1]]}}`,
		`{"doca_program_flags": {"a": "\u0000"}}`, `{"doca_program_flags": {"": "a"}}`,
		`{"doca_dpdk_flags": {"flags": "\u0000"}}`, `{"doca_dpdk_flags": {"core-mask": "f"}}`} {
		if got, err := parseArguments([]byte(text)); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// The skin walks through pairs of strings.
func FuzzParseArguments(f *testing.F) {
	f.Add([]byte(`{"doca_program_flags": {"a": ["x", 1], "b": true}}`))
	f.Add([]byte(`{"doca_general_flags": {"log-level": 60}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parseArguments(text)
		if err == nil && bytes.Count(got, []byte{0})%2 != 0 ||
			len(got) > 0 && got[len(got)-1] != 0 {
			t.Errorf("%q", got)
		}
	})
}

func FuzzDecodeDetails(f *testing.F) {
	details := func(address string) []byte {
		return append(append([]byte("zcrc\x01"), make([]byte, len(link.Key{}))...), address...)
	}
	f.Add(details("127.0.0.1:80"))
	f.Add(details("[::1]:65535"))
	f.Add([]byte("zcrc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		token, address, err := decodeDetails(b)
		if err != nil {
			return
		}
		if !bytes.Equal(token[:], b[5:21]) || address == (netip.AddrPort{}) {
			t.Errorf("%x: %x, %v", b, token, address)
		}
	})
}

// What an importer and the exporter of a sync event send to each other.
func FuzzEventMessages(f *testing.F) {
	f.Add(eventRequest{operation: 2, value: 1 << 40}.encode())
	f.Add(eventReply{code: status.IOFailed, read: 7}.encode())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		request, isRequest := decodeRequest(b)
		reply, isReply := decodeReply(b)
		switch {
		case isRequest && isReply || (isRequest || isReply) && len(b) == 1:
			t.Errorf("%x is two messages", b)
		case isRequest && !bytes.Equal(request.encode(), b):
			t.Errorf("%x is encoded as %x", b, request.encode())
		case isReply && !bytes.Equal(reply.encode(), b):
			t.Errorf("%x is encoded as %x", b, reply.encode())
		case len(b) > maxMessage && (isRequest || isReply):
			t.Errorf("%d bytes are a message", len(b))
		}
	})
}
