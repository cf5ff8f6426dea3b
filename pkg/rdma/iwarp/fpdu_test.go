// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func TestMalformedPrefixesAreViolations(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  *violation
	}{
		"ULPDU too short for anything":       {[]byte{0, 13, 0xc1, 0x40}, violationLength},
		"ULPDU too short for a Send":         {[]byte{0, 17, 0x41, 0x43}, violationLength},
		"ULPDU too short for a Read Request": {[]byte{0, 45, 0x41, 0x41}, violationLength},
		"ULPDU too short for a Terminate":    {[]byte{0, 21, 0x41, 0x47}, violationLength},
		"DDP version of a tagged segment":    {[]byte{0, 14, 0xc2, 0x40}, violationTaggedVersion},
		"DDP version of an untagged segment": {[]byte{0, 18, 0x42, 0x43}, violationUntaggedVersion},
		"RDMAP version":                      {[]byte{0, 14, 0xc1, 0x80}, violationRDMAPVersion},
		"opcode 8":                           {[]byte{0, 26, 0x41, 0x48}, violationOpcode},
		"opcode 15":                          {[]byte{0, 26, 0x41, 0x4f}, violationOpcode},
		"untagged Write":                     {[]byte{0, 18, 0x41, 0x40}, violationOpcode},
		"tagged Send":                        {[]byte{0, 18, 0xc1, 0x43}, violationOpcode},
		"the longest Write is valid":         {[]byte{0xff, 0xff, 0xc1, 0x40}, nil},
	} {
		if _, v := parsePrefix(c.bytes); v != c.want {
			t.Errorf("%s: %v", name, v)
		}
	}
}

func TestMaxULPDUFillsTCPSegment(t *testing.T) {
	for _, c := range []struct{ segment, want int }{
		{1448, 1442}, {65483, 65474}, {1460, 1454}, {8948, 8942},
		{0, minULPDU}, {1 << 20, maxULPDU},
	} {
		if got := maxULPDUFor(c.segment); got != c.want {
			t.Errorf("EMSS %d: MULPDU %d, want %d", c.segment, got, c.want)
		}
	}
}

func TestFramesAreAlignedWithValidCRC(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		header := taggedHeader{
			op: opWrite, last: rapid.Bool().Draw(t, "last"),
			stag: rapid.Uint32().Draw(t, "stag"), offset: rapid.Uint64().Draw(t, "offset"),
		}
		frame := appendTrailer(append(header.append(nil, len(payload)), payload...), true)
		if len(frame)%4 != 0 || !validCRC(frame) {
			t.Fatalf("frame %x", frame)
		}
		flipped := rapid.IntRange(0, len(frame)-1).Draw(t, "flipped")
		frame[flipped] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if validCRC(frame) {
			t.Fatal("the CRC of a frame with a flipped bit is valid")
		}
	})
}

func FuzzSegmentHeaders(f *testing.F) {
	for _, name := range []string{
		"send_hello", "write_16", "rreq", "rresp", "send_inv", "term_ddp_tagged_badstag",
		"imm_data",
	} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < maxHeaderBytes {
			b = append(bytes.Clone(b), make([]byte, maxHeaderBytes)...)
		}
		p, v := parsePrefix(b)
		if v != nil {
			return
		}
		if p.payload() < 0 || p.payload() > maxULPDU {
			t.Fatalf("payload of %d bytes", p.payload())
		}
		reserved := []byte{b[2] & 0x3c, b[3] & 0x30}
		var again []byte
		switch {
		case p.op.tagged():
			again = parseTagged(p, b).append(nil, p.payload())
		case p.op == opReadRequest || p.op == opTerminate:
			_, _ = parseReadRequest(b), parseTerminate(b)
			return
		default:
			again = parseUntagged(p, b).append(nil, p.payload())
		}
		again[2] |= reserved[0]
		again[3] |= reserved[1]
		if !bytes.Equal(again, b[:len(again)]) {
			t.Errorf("%x is encoded again as %x", b[:len(again)], again)
		}
	})
}
