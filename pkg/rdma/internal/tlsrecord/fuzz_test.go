// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"io"
	"slices"
	"testing"
)

// FuzzRecords opens what a peer with the right keys may send: records with anything inside, and
// others that it has not sealed.
func FuzzRecords(f *testing.F) {
	for _, inner := range [][]byte{
		[]byte("data\x17"), []byte("data\x17\x00\x00"), {0, 0}, {1, 0, typeAlert},
		{2, 80, typeAlert}, append(ticket(), typeHandshake), {24, 0, 0, 1, 1, typeHandshake},
		{24, 0, typeHandshake}, {0, 1, 0, typeHandshake},
	} {
		f.Add(inner, []byte("more\x17"), uint8(0), uint8(0))
	}
	f.Add([]byte("data\x17"), []byte("more\x17"), uint8(1), uint8(7))
	f.Fuzz(func(t *testing.T, first, second []byte, damaged, at uint8) {
		client, server := newSessions(t, anySuite)
		var failure error
		for i, inner := range [][]byte{first, second, []byte("x\x17")} {
			record := server.sealAny(inner[:min(len(inner), MaxRecord)]...)
			isDamaged := damaged&(1<<i) != 0
			if isDamaged {
				record[int(at)%len(record)] ^= 1 << (damaged >> 5)
			}
			if length, err := RecordLength(record); err == nil && length != len(record) {
				record = append(record, make([]byte, MaxRecord)...)[:length]
			}
			got, err := client.Open(record)
			content := bytes.TrimRight(inner, "\x00")
			switch {
			case failure != nil:
				if err != failure || got != nil {
					t.Fatalf("opened %q, %v after %v", got, err, failure)
				}
			case isDamaged && err == nil:
				t.Fatalf("opened a damaged record: %q", got)
			case err == nil && got != nil && (len(got) > MaxPlaintext ||
				!bytes.Equal(append(slices.Clone(got), typeApplicationData), content)):
				t.Fatalf("opened %q of %q", got, inner)
			case err == io.EOF && !bytes.Equal(content[1:], []byte{byte(CloseNotify), typeAlert}):
				t.Fatalf("the end, by %q", inner)
			}
			if err != nil {
				failure = err
				checkAlert(t, client, err)
			}
			server.followUpdate(client)
		}
	})
}

// followUpdate changes the key of a session that has sealed a key update with sealAny.
func (s *Session) followUpdate(peer *Session) {
	if !bytes.Equal(s.out.secret, peer.in.secret) {
		_ = s.out.update()
	}
}

// checkAlert checks what a session may send after an error.
func checkAlert(t *testing.T, s *Session, err error) {
	t.Helper()
	alert := AlertOf(err)
	if (alert == CloseNotify) != (err == io.EOF) {
		t.Fatalf("%v: the alert is %v", err, alert)
	}
	if err != io.EOF && s.sealed("x") != nil {
		t.Fatalf("seals after %v", err)
	}
}

// FuzzMessages checks that handshake messages mean the same however they are split over records.
func FuzzMessages(f *testing.F) {
	update := []byte{messageKeyUpdate, 0, 0, 1, updateRequested}
	for _, content := range [][]byte{
		ticket(), update, slices.Concat(ticket(), update), slices.Concat(ticket(), ticket()),
		{4}, {4, 0, 0x3f, 0xff}, {24, 0, 0, 1}, {24, 0, 0, 1, 2}, {20, 0, 0, 0},
	} {
		f.Add(content, uint16(len(content)/2))
	}
	f.Fuzz(func(t *testing.T, content []byte, at uint16) {
		content = content[:min(len(content), MaxPlaintext)]
		whole, _ := newSessions(t, anySuite)
		split, _ := newSessions(t, anySuite)
		input := slices.Clone(content)
		wholeErr := whole.openHandshake(input)
		if !bytes.Equal(input, content) {
			t.Fatal("the record has changed")
		}
		if len(content) == 0 || wholeErr != nil {
			if AlertOf(wholeErr) == InternalError {
				t.Fatal(wholeErr)
			}
			return
		}
		first := int(at) % len(content)
		for _, part := range [][]byte{content[:first], content[first:]} {
			if len(part) == 0 {
				continue
			}
			if err := split.openHandshake(part); err != nil {
				t.Fatalf("split at %d: %v", at, err)
			}
		}
		if !bytes.Equal(whole.message, split.message) ||
			whole.updateRequested != split.updateRequested ||
			!bytes.Equal(whole.in.secret, split.in.secret) {
			t.Fatalf("split at %d: another result", at)
		}
	})
}
