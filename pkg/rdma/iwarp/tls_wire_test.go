// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
)

// connectOverTLS connects with TLS, and with CRCs inside.
func connectOverTLS(
	change ...func(client, server *tls.Config),
) func(t *testing.T, via func(netip.AddrPort) netip.AddrPort) *link {
	return func(t *testing.T, via func(netip.AddrPort) netip.AddrPort) *link {
		t.Helper()
		provider := rdmatest.OverTLS(t, iwarp.New(iwarp.Options{CRC: true}), change...)
		l := &link{x: openSideOf(t, provider, loopback), y: openSideOf(t, provider, loopback)}
		l.connect(t, via)
		return l
	}
}

// wire collects what both directions of a connection have carried.
type wire struct {
	mu     sync.Mutex
	stream [2][]byte
}

func (w *wire) observe(d direction, piece []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream[d] = append(w.stream[d], piece...)
}

func TestOnlyRecordsOfTLSAreOnTheWire(t *testing.T) {
	plain, secured := &wire{}, &wire{}
	runCapturedSession(t, plain.observe, connectWithCRC)
	runCapturedSession(t, secured.observe, connectOverTLS())
	for d := range secured.stream {
		for _, text := range []string{capturedText, "MPA ID Re"} {
			if !bytes.Contains(plain.stream[d], []byte(text)) {
				t.Errorf("direction %d: the test does not find %q without TLS", d, text)
			}
			if bytes.Contains(secured.stream[d], []byte(text)) {
				t.Errorf("direction %d carries %q", d, text)
			}
		}
		rest, types := secured.stream[d], []byte{}
		for len(rest) > 0 {
			version := 0
			length := 5
			if len(rest) >= length {
				version = int(binary.BigEndian.Uint16(rest[1:]))
				length += int(binary.BigEndian.Uint16(rest[3:]))
			}
			if len(rest) < length || version != 0x0303 && (version != 0x0301 || len(types) > 0) ||
				length > 5+16<<10+256 {
				t.Fatalf("direction %d: after %d records comes %x", d, len(types),
					rest[:min(len(rest), 20)])
			}
			types = append(types, rest[0])
			rest = rest[length:]
		}
		// The hello, a change of the cipher that only looks like one, and no plain text after that.
		const hello, changeCipher, data = 22, 20, 23
		others := slices.DeleteFunc(slices.Clone(types), func(b byte) bool { return b == data })
		if !bytes.Equal(others, []byte{hello, changeCipher}) ||
			!bytes.Equal(types[:2], others) {
			t.Errorf("direction %d has records of the types %v", d, types[:min(len(types), 20)])
		}
	}
}

// TestTsharkDecodesSessionWithTLS decrypts a session with the key log, and lets Wireshark's
// dissectors, which look for no MPA inside TLS, decode what it carried.
func TestTsharkDecodesSessionWithTLS(t *testing.T) {
	testkit.RequireTools(t, "tshark")
	c, log := newCapture(), &testkit.Output{}
	d := &decryptor{T: t, keys: log, observe: c.record}
	runCapturedSession(t, d.record, connectOverTLS(func(client, _ *tls.Config) {
		client.KeyLogWriter = log
		verify := client.VerifyConnection
		client.VerifyConnection = func(state tls.ConnectionState) error {
			d.suite.Store(uint32(state.CipherSuite))
			return verify(state)
		}
	}))
	c.dissect(t)
	if d.records < 20 {
		t.Errorf("%d records have been decrypted", d.records)
	}
}

// decryptor opens the records of a connection with the keys of its log. It knows nothing of package
// tlsrecord, and no changes of keys.
type decryptor struct {
	*testing.T
	keys    *testkit.Output
	suite   atomic.Uint32
	observe func(direction, []byte)
	mu      sync.Mutex
	streams [2]decryptedStream
	records int
}

type decryptedStream struct {
	pending  []byte
	aead     cipher.AEAD
	iv       []byte
	sequence uint64
}

func (d *decryptor) record(at direction, piece []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.streams[at]
	s.pending = append(s.pending, piece...)
	for len(s.pending) >= 5 {
		length := 5 + int(binary.BigEndian.Uint16(s.pending[3:]))
		if len(s.pending) < length {
			return
		}
		header, sealed := s.pending[:5], s.pending[5:length]
		s.pending = s.pending[length:]
		if header[0] != 23 || s.aead == nil && !d.findKey(s, at) {
			continue
		}
		nonce := slices.Clone(s.iv)
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^s.sequence)
		inner, err := s.aead.Open(nil, nonce, sealed, header)
		if err != nil && s.sequence == 0 {
			continue // of the handshake
		}
		if err != nil {
			d.Errorf("record %d of direction %d: %v", s.sequence, at, err)
			return
		}
		s.sequence++
		inner = bytes.TrimRight(inner, "\x00")
		if last := len(inner) - 1; inner[last] == 23 {
			d.records++
			d.observe(at, inner[:last])
		}
	}
}

// findKey derives the first key of a direction for a suite with SHA-256 (RFC 8446 section 7.3).
// Which one crypto/tls prefers depends on the processor.
func (d *decryptor) findKey(s *decryptedStream, at direction) bool {
	label := map[direction]string{
		toListener: "CLIENT_TRAFFIC_SECRET_0", toDialer: "SERVER_TRAFFIC_SECRET_0"}[at]
	for line := range strings.Lines(d.keys.String()) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == label {
			secret, err := hex.DecodeString(fields[2])
			if err != nil {
				d.Fatal(err)
			}
			if d.suite.Load() == uint32(tls.TLS_CHACHA20_POLY1305_SHA256) {
				s.aead, err = chacha20poly1305.New(d.expand(secret, "key", 32))
			} else if block, failure := aes.NewCipher(d.expand(secret, "key", 16)); failure == nil {
				s.aead, err = cipher.NewGCM(block)
			}
			if s.aead == nil || err != nil {
				d.Fatal("no cipher", err)
			}
			s.iv = d.expand(secret, "iv", 12)
			return true
		}
	}
	return false
}

func (d *decryptor) expand(secret []byte, label string, length int) []byte {
	info := append([]byte{0, byte(length), byte(6 + len(label))}, "tls13 "+label+"\x00"...)
	key, err := hkdf.Expand(sha256.New, secret, string(info), length)
	if err != nil {
		d.Fatal(err)
	}
	return key
}
