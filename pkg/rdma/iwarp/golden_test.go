// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "golden", "iwarp_"+name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenWrite is the header of a Write to the memory of the golden frames.
var goldenWrite = taggedHeader{op: opWrite, last: true, stag: 0x11223300, offset: 0x7f0000001000}

func TestTaggedFramesMatchGolden(t *testing.T) {
	counting := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for name, c := range map[string]struct {
		header  taggedHeader
		payload []byte
	}{
		"rtr_write0": {taggedHeader{op: opWrite, last: true, stag: 1}, nil},
		"write_16":   {goldenWrite, counting},
		"rresp": {
			taggedHeader{op: opReadResponse, last: true, stag: 0xaabbcc00, offset: 0x1000},
			make([]byte, 64),
		},
	} {
		want := golden(t, name)
		got := appendTrailer(append(c.header.append(nil, len(c.payload)), c.payload...), true)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as %x, want %x", name, got, want)
		}
		p, v := parsePrefix(want)
		if v != nil {
			t.Fatalf("%s: %v", name, v)
		}
		if h := parseTagged(p, want); h != c.header || p.payload() != len(c.payload) {
			t.Errorf("%s: decoded as %+v with %d bytes", name, h, p.payload())
		}
		if !validCRC(want) {
			t.Errorf("%s: the CRC is rejected", name)
		}
	}
}

func TestUntaggedFramesMatchGolden(t *testing.T) {
	for name, c := range map[string]struct {
		header  untaggedHeader
		payload string
	}{
		"send_hello": {untaggedHeader{op: opSend, last: true, sequence: 1}, "hello"},
		"send_frag1": {untaggedHeader{op: opSend, sequence: 1}, "AAAAAAAA"},
		"send_frag2": {untaggedHeader{op: opSend, last: true, sequence: 1, offset: 8}, "BBB"},
		"send_se":    {untaggedHeader{op: opSendSolicited, last: true, sequence: 2}, ""},
		"send_inv": {
			untaggedHeader{op: opSendInvalidate, last: true, sequence: 3, invalidate: 0x11223300},
			"xy",
		},
		"send_se_inv": {
			untaggedHeader{
				op: opSendSolicitedInvalidate, last: true, sequence: 4, invalidate: 0x11223300,
			},
			"z",
		},
	} {
		want := golden(t, name)
		got := appendTrailer(append(c.header.append(nil, len(c.payload)), c.payload...), true)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as %x, want %x", name, got, want)
		}
		p, v := parsePrefix(want)
		if v != nil {
			t.Fatalf("%s: %v", name, v)
		}
		if h := parseUntagged(p, want); h != c.header || p.payload() != len(c.payload) {
			t.Errorf("%s: decoded as %+v with %d bytes", name, h, p.payload())
		}
	}
}

func TestReadRequestMatchesGolden(t *testing.T) {
	request := readRequest{
		sinkSTag: 0xaabbcc00, sinkOffset: 0x1000, length: 64,
		sourceSTag: 0x11223300, sourceOffset: 0x7f0000001000,
	}
	want := golden(t, "rreq")
	if got := appendTrailer(request.append(nil, 1), true); !bytes.Equal(got, want) {
		t.Errorf("encoded as %x, want %x", got, want)
	}
	if got := parseReadRequest(want); got != request {
		t.Errorf("decoded as %+v", got)
	}
}

func TestTerminateMatchesGolden(t *testing.T) {
	offender := taggedHeader{op: opWrite, last: true, stag: 0xdead0000, offset: 0x10}.append(nil, 4)
	want := golden(t, "term_ddp_tagged_badstag")
	if got := appendTerminate(nil, violationWriteSTag, offender, true); !bytes.Equal(got, want) {
		t.Errorf("encoded as %x, want %x", got, want)
	}
	decoded := TerminateError{Remote: true, Layer: 1, Type: 1}
	if got := parseTerminate(want); got != decoded {
		t.Errorf("decoded as %+v, want %+v", got, decoded)
	}
}

func TestImmediateDataIsRejected(t *testing.T) {
	if _, v := parsePrefix(golden(t, "imm_data")); v != violationOpcode {
		t.Errorf("opcode 8: got %v, want %v", v, violationOpcode)
	}
}

func TestMPAFramesMatchGolden(t *testing.T) {
	for name, c := range map[string]struct {
		key   string
		frame mpaFrame
	}{
		"mpa_req_v2": {mpaRequestKey, mpaFrame{
			revision: 2, crc: true, enhanced: true, inboundReads: 8, outboundReads: 4,
			peerToPeer: true, rtrWrite: true, rtrRead: true, privateData: []byte("hi"),
		}},
		"mpa_rep_v2": {mpaReplyKey, mpaFrame{
			revision: 2, crc: true, enhanced: true, inboundReads: 4, outboundReads: 8,
			peerToPeer: true, rtrWrite: true, privateData: []byte{},
		}},
	} {
		want := golden(t, name)
		if got := c.frame.append(nil, c.key); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as %x, want %x", name, got, want)
		}
		if n, err := mpaDataLength(want, c.key); err != nil || n != len(want)-mpaHeaderBytes {
			t.Errorf("%s: data length %d, %v", name, n, err)
		}
		got, err := parseMPA(want)
		diff := cmp.Diff(c.frame, got, cmp.AllowUnexported(mpaFrame{}))
		if err != nil || diff != "" {
			t.Errorf("%s: %v, decoded with difference %s", name, err, diff)
		}
	}
}
