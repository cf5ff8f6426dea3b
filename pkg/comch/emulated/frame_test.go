// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMalformedFramesAreViolations(t *testing.T) {
	good := (&frame{kind: frameCloseConsumer, fields: [maxFields]uint32{3}}).append(nil)
	cases := map[string][]byte{
		"empty":         {},
		"cut header":    good[:7],
		"cut fields":    good[:11],
		"extra bytes":   append(bytes.Clone(good), 0),
		"kind zero":     append([]byte{0, 0}, good[2:]...),
		"unknown kind":  append([]byte{byte(frameKindCount), 0}, good[2:]...),
		"reserved bits": append([]byte{good[0], 0, 1, 0}, good[4:]...),
		"wrong length":  append(append(bytes.Clone(good[:4]), 5, 0, 0, 0), good[8:]...),
		"length over 4 GiB": append(append(bytes.Clone(good[:4]), 0xff, 0xff, 0xff, 0xff),
			good[8:]...),
	}
	for name, packet := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := parseFrame(packet); !isViolation(err) ||
				!errors.Is(err, status.Unexpected) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzParseFrame(f *testing.F) {
	for kind := frameHello; kind < frameKindCount; kind++ {
		sample := frame{kind: kind, fields: [maxFields]uint32{1, 2, 3, 4}}
		if frameShapes[kind].hasBody {
			sample.body = []byte("body")
		}
		f.Add(sample.append(nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		parsed, err := parseFrame(packet)
		testkit.CheckBounded(t, err)
		if err != nil {
			if !isViolation(err) {
				t.Errorf("error %v is not a violation", err)
			}
			return
		}
		if again := parsed.append(nil); !bytes.Equal(again, packet) {
			t.Errorf("%x was parsed and written as %x", packet, again)
		}
	})
}

// FuzzHandleFrame handles any frame that a peer may send after the handshake.
func FuzzHandleFrame(f *testing.F) {
	for kind := frameHello; kind < frameKindCount; kind++ {
		for _, id := range []uint32{0, 1, 2, 0xffffffff} {
			sample := frame{kind: kind, fields: [maxFields]uint32{id, 1, 64, 1}}
			if frameShapes[kind].hasBody {
				sample.body = []byte("body")
			}
			f.Add(sample.append(nil), id%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, packet []byte, server bool) {
		parsed, err := parseFrame(packet)
		if err != nil {
			return
		}
		role := clientRole
		if server {
			role = serverRole
		}
		c, peer := newHalfConnection(t, role)
		defer peer.close()
		for range 2 {
			var none descriptors
			testkit.CheckBounded(t, c.handle(&parsed, &none))
		}
		c.Abort()
		c.awaitGoroutines(goodbyeTimeout)
		testkit.CheckBounded(t, c.Err())
	})
}

func TestPeerTextIsQuotedAndBounded(t *testing.T) {
	err := peerError(uint32(status.Full), []byte("a\nb"+strings.Repeat("x", 5000)))
	if !errors.Is(err, status.Full) || strings.Contains(err.Error(), "\n") ||
		len(err.Error()) > 2*maxTextLength {
		t.Errorf("got %d bytes: %v", len(err.Error()), err)
	}
	f := textFrame(frameReply, errors.New(strings.Repeat("y", 5000)), 7)
	if len(f.body) != maxTextLength || f.fields[0] != 7 || f.fields[1] != uint32(status.Unknown) {
		t.Errorf("got %d bytes, fields %v", len(f.body), f.fields)
	}
}
