// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestFrameLengthsAreCheckedBeforeAnythingIsAllocated(t *testing.T) {
	cases := []struct {
		name  string
		bytes []byte
		want  error
	}{
		{"nothing", nil, io.EOF},
		{"part of a length", []byte{0, 0}, io.ErrUnexpectedEOF},
		{"no message", []byte{0, 0, 0, 1}, io.ErrUnexpectedEOF},
		{"part of a message", []byte{0, 0, 0, 2, 'a'}, io.ErrUnexpectedEOF},
		{"empty message", []byte{0, 0, 0, 0}, status.InvalidValue},
		{"one more than the limit", []byte{0, 0, 0, 9}, status.TooBig},
		{"text", []byte("GET / HTTP/1.1\r\n\r\n"), status.BadConfig},
		{"greatest length", []byte{0xff, 0xff, 0xff, 0xff}, status.TooBig},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			message, err := readFrame(bytes.NewReader(c.bytes), 8, func() {})
			if message != nil || !errors.Is(err, c.want) {
				t.Errorf("readFrame = %q, %v, want %v", message, err, c.want)
			}
		})
	}
}

func TestOtherProtocolsAreNamed(t *testing.T) {
	for begin, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n": "the peer speaks HTTP: its port is not the control port",
		"GET / HTTP/1.1\r\n\r\n":           "the peer speaks HTTP, a client of another protocol",
		"SSH-2.0-OpenSSH_9.6\r\n":          "the peer speaks SSH",
		"\x15\x03\x03\x00\x02\x02\x46":     "the peer speaks TLS, and this side does not",
		"\x16\x03\x01\x02\x00\x01":         "the peer speaks TLS, and this side does not",
		"helo":                             "is this a client of another protocol?",
	} {
		_, err := readFrame(bytes.NewReader([]byte(begin)), 1<<16, func() {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", begin, err, want)
		}
	}
}

func FuzzTCPFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendFrame(appendFrame(nil, []byte("first")), []byte("second")))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0, 0, 1, 1, 'a'})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	const limit = 256
	f.Fuzz(func(t *testing.T, stream []byte) {
		reader := bytes.NewReader(stream)
		var again []byte
		for {
			begun := false
			message, err := readFrame(reader, limit, func() { begun = true })
			testkit.CheckBounded(t, err)
			if err != nil {
				if begun == errors.Is(err, io.EOF) {
					t.Fatalf("a message has begun: %t, and fails with %v", begun, err)
				}
				break
			}
			if len(message) == 0 || len(message) > limit {
				t.Fatalf("message of %d bytes", len(message))
			}
			again = appendFrame(again, message)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("%x was read as messages that are framed as %x", stream, again)
		}
	})
}

// shortFraming counts a message in its first two bytes, as the DOCA applications of 2.10 do.
type shortFraming struct{}

func (shortFraming) MaxSize() int { return 1 << 10 }

func (shortFraming) HeaderSize() int { return 2 }

func (shortFraming) MessageSize(header []byte) uint64 {
	return uint64(binary.BigEndian.Uint16(header))
}

func FuzzForeignFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 4, 'a', 'b', 0, 2, 0, 3, 'c'})
	f.Add([]byte{0, 1})
	f.Add([]byte{0, 0})
	f.Add([]byte{0xff, 0xff, 'a'})
	const limit = 256
	f.Fuzz(func(t *testing.T, stream []byte) {
		reader := bytes.NewReader(stream)
		var again []byte
		for {
			begun := false
			message, err := readFramed(reader, shortFraming{}, limit, func() { begun = true })
			testkit.CheckBounded(t, err)
			if err != nil {
				if begun == errors.Is(err, io.EOF) {
					t.Fatalf("a message has begun: %t, and fails with %v", begun, err)
				}
				break
			}
			if len(message) > limit ||
				uint64(len(message)) != (shortFraming{}).MessageSize(message) {
				t.Fatalf("message %x of %d bytes", message, len(message))
			}
			again = append(again, message...)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("%x was read as %x", stream, again)
		}
	})
}
