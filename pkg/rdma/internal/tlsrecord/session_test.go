// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

const anySuite = tls.TLS_AES_128_GCM_SHA256

// opened checks that a record carries data.
func opened(t *testing.T, s *Session, record []byte, want string) {
	t.Helper()
	if got, err := s.Open(record); string(got) != want || err != nil {
		t.Fatalf("opened %q, %v, want %q", got, err, want)
	}
}

// rejected checks that a record ends the connection with an alert.
func rejected(t *testing.T, s *Session, record []byte, want Alert) {
	t.Helper()
	data, err := s.Open(record)
	if data != nil || !errors.Is(err, want) || AlertOf(err) != want {
		t.Fatalf("opened %q, %v, want the alert %v", data, err, want)
	}
	checkFailed(t, s, err)
}

// checkFailed checks that a session whose Open has failed with err seals and opens nothing, except
// an alert.
func checkFailed(t *testing.T, s *Session, err error) {
	t.Helper()
	if status.CodeOf(err) != status.ConnectionReset {
		t.Errorf("the code of %v is not CONNECTION_RESET", err)
	}
	if _, again := s.Open(s.sealAny('x', typeApplicationData)); again != err {
		t.Errorf("opens another record: %v, want %v", again, err)
	}
	if s.sealed("x") != nil || s.AppendKeyUpdate(nil) != nil || s.UpdateDue() ||
		s.AppendAlert(nil, CloseNotify) != nil {
		t.Error("seals more than an alert")
	}
	if s.AppendAlert(nil, AlertOf(err)) == nil || s.AppendAlert(nil, AlertOf(err)) != nil {
		t.Error("does not seal one alert")
	}
}

func TestDataOfAllSizesCrosses(t *testing.T) {
	forSuites(t, func(t *testing.T, suite uint16) {
		client, server := newSessions(t, suite)
		for _, n := range []int{1, 2, 15, 16, 17, 64, 4096, MaxPlaintext - 1, MaxPlaintext} {
			data := strings.Repeat("d", n)
			record := client.sealed(data)
			if len(record) != n+Overhead || bytes.Contains(record, []byte("dddddd")) {
				t.Errorf("%d bytes: a record of %d", n, len(record))
			}
			opened(t, server, record, data)
			opened(t, client, server.sealed(data), data)
		}
	})
}

func TestDamagedRecordsAreRejected(t *testing.T) {
	for name, damage := range map[string]func(a, b, c []byte) [][]byte{
		"flipped": func(a, b, _ []byte) [][]byte {
			b[len(b)/2] ^= 1
			return [][]byte{a, b}
		},
		"flipped tag": func(a, b, _ []byte) [][]byte {
			b[len(b)-1] ^= 0x80
			return [][]byte{a, b}
		},
		"replayed":  func(a, _, _ []byte) [][]byte { return [][]byte{a, slices.Clone(a)} },
		"reordered": func(a, b, c []byte) [][]byte { return [][]byte{a, c, b} },
		"dropped":   func(a, _, c []byte) [][]byte { return [][]byte{a, c} },
		"shortened": func(a, b, _ []byte) [][]byte {
			b[4]--
			return [][]byte{a, b[:len(b)-1]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			forSuites(t, func(t *testing.T, suite uint16) {
				client, server := newSessions(t, suite)
				records := damage(client.sealed("first"), client.sealed("second"),
					client.sealed("third!"))
				// A slice of a replayed record shares its array.
				second := slices.Clone(records[1])
				opened(t, server, records[0], "first")
				rejected(t, server, second, BadRecordMAC)
			})
		})
	}
}

func TestRecordsOfOneDirectionAreNotOpenedInTheOther(t *testing.T) {
	client, _ := newSessions(t, anySuite)
	rejected(t, client, client.sealed("reflected"), BadRecordMAC)
}

func TestHeadersAreChecked(t *testing.T) {
	for _, c := range []struct {
		header string
		length int
		alert  Alert
	}{
		{"17 0303 0011", HeaderBytes + 17, 0},
		{"17 0303 4100", MaxRecord, 0},
		{"17 0303 4101", 0, RecordOverflow},
		{"17 0303 ffff", 0, RecordOverflow},
		{"17 0303 0010", 0, DecodeError},
		{"17 0303 0000", 0, DecodeError},
		{"17 0301 0011", 0, ProtocolVersion},
		{"17 0304 0011", 0, ProtocolVersion},
		{"14 0303 0001", 0, UnexpectedMessage},
		{"15 0303 0002", 0, UnexpectedMessage},
		{"16 0303 0011", 0, UnexpectedMessage},
		{"18 0303 0011", 0, UnexpectedMessage},
		{"00 0000 0000", 0, UnexpectedMessage},
		{"17 0303 00", 0, DecodeError},
	} {
		length, err := RecordLength(unhex(c.header))
		if length != c.length || (err == nil) != (c.alert == 0) ||
			err != nil && AlertOf(err) != c.alert {
			t.Errorf("%s: %d, %v, want %d, %v", c.header, length, err, c.length, c.alert)
		}
	}
}

func TestPlainRecordsAreRejected(t *testing.T) {
	_, server := newSessions(t, anySuite)
	rejected(t, server, unhex("15 0303 0002 0100"), UnexpectedMessage)
}

func TestAPartOfARecordIsRejected(t *testing.T) {
	client, server := newSessions(t, anySuite)
	record := client.sealed("data")
	rejected(t, server, record[:len(record)-1], DecodeError)
}

func ticket() []byte {
	return unhex(
		"04 00000f 00000e10 01020304 00 0002abcd 0000")
}

func TestKeysChange(t *testing.T) {
	forSuites(t, func(t *testing.T, suite uint16) {
		client, server := newSessions(t, suite)
		opened(t, server, client.sealed("before"), "before")
		for range 3 {
			opened(t, server, client.AppendKeyUpdate(nil), "")
			if server.UpdateDue() || client.UpdateDue() {
				t.Error("an update is due that nobody has requested")
			}
			opened(t, server, client.sealed("after"), "after")
			opened(t, client, server.sealed("other direction"), "other direction")
		}
	})
}

func TestARequestedUpdateIsDueOnce(t *testing.T) {
	client, server := newSessions(t, anySuite)
	for range 3 { // requests that are not answered yet do not add up
		opened(t, server, client.appendKeyUpdate(nil, updateRequested), "")
	}
	if !server.UpdateDue() {
		t.Fatal("no update is due")
	}
	opened(t, client, server.AppendKeyUpdate(nil), "")
	if server.UpdateDue() || client.UpdateDue() {
		t.Error("another update is due")
	}
	opened(t, client, server.sealed("new key"), "new key")
}

func TestKeysHaveLimits(t *testing.T) {
	client, server := newSessions(t, anySuite)
	at := func(n uint64) { client.out.sequence, server.in.sequence = n, n }
	at(updateAfter - 1)
	if client.UpdateDue() {
		t.Error("an update is due too early")
	}
	opened(t, server, client.sealed("last"), "last")
	if !client.UpdateDue() {
		t.Error("no update is due")
	}
	at(sealLimit - 1)
	opened(t, server, client.sealed("very last"), "very last")
	if client.sealed("one more") != nil {
		t.Error("a key has no limit")
	}
	opened(t, server, client.AppendKeyUpdate(nil), "")
	opened(t, server, client.sealed("next key"), "next key")
}

func TestSequenceNumbersDoNotWrap(t *testing.T) {
	client, server := newSessions(t, anySuite)
	client.out.sequence, server.in.sequence = 1<<64-1, 1<<64-1
	rejected(t, server, client.sealAny('x', typeApplicationData), InternalError)
}

func TestUnexpectedContentIsRejected(t *testing.T) {
	update := []byte{messageKeyUpdate, 0, 0, 1, updateNotRequested}
	records := func(records ...[]byte) [][]byte { return records }
	record := func(contentType byte, content ...byte) []byte { return append(content, contentType) }
	message := func(content ...byte) []byte { return record(typeHandshake, content...) }
	for name, c := range map[string]struct {
		records [][]byte // of which the last is rejected
		alert   Alert
	}{
		"padding alone":      {records([]byte{0}), UnexpectedMessage},
		"much padding alone": {records(make([]byte, maxInner)), UnexpectedMessage},
		"too much data":      {records(append(make([]byte, maxInner), 23)), RecordOverflow},
		"too much padding": {records(append([]byte{'x', 23}, make([]byte, maxInner-1)...)),
			RecordOverflow},
		"change of cipher":      {records(record(20, 1)), UnexpectedMessage},
		"unknown type":          {records(record(24, 1)), UnexpectedMessage},
		"no alert":              {records(record(typeAlert)), UnexpectedMessage},
		"half an alert":         {records(record(typeAlert, 1)), UnexpectedMessage},
		"two alerts":            {records(record(typeAlert, 1, 90, 1, 0)), UnexpectedMessage},
		"no message":            {records(message()), UnexpectedMessage},
		"finished":              {records(message(20, 0, 0, 1, 0)), UnexpectedMessage},
		"hello":                 {records(message(1)), UnexpectedMessage},
		"certificate request":   {records(message(13, 0, 0, 0)), UnexpectedMessage},
		"unknown update":        {records(message(24, 0, 0, 1, 2)), IllegalParameter},
		"empty update":          {records(message(24, 0, 0, 0)), DecodeError},
		"long update":           {records(message(24, 0, 0, 2, 0, 0)), DecodeError},
		"long message":          {records(message(4, 0, 0x3f, 0xfd)), DecodeError},
		"very long message":     {records(message(4, 0xff, 0xff, 0xff)), DecodeError},
		"more behind an update": {records(message(append(update, 4)...)), UnexpectedMessage},
		"two updates": {records(message(slices.Concat(update, update)...)),
			UnexpectedMessage},
		"data within a message":  {records(message(24, 0), record(23, 'x')), UnexpectedMessage},
		"empty within a message": {records(message(24, 0), record(23)), UnexpectedMessage},
		"end within a message": {records(message(24), record(typeAlert, 1, 0)),
			UnexpectedMessage},
		"ticket without a ticket": {records(message(4, 0, 0, 0)), DecodeError},
		"empty ticket": {records(message(unhex(
			"04 00000d 00000e10 01020304 00 0000 0000")...)), DecodeError},
		"more in a ticket": {records(message(unhex(
			"04 000010 00000e10 01020304 00 0002abcd 0000 00")...)), DecodeError},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newSessions(t, anySuite)
			last := len(c.records) - 1
			for _, inner := range c.records[:last] {
				opened(t, client, server.sealAny(inner...), "")
			}
			rejected(t, client, server.sealAny(c.records[last]...), c.alert)
		})
	}
}

func TestTicketsAreIgnored(t *testing.T) {
	client, server := newSessions(t, anySuite)
	tickets := slices.Concat(ticket(), ticket())
	opened(t, client, server.sealAny(append(tickets, typeHandshake)...), "")
	// What comes before a key update in its record is not behind it.
	both := append(ticket(), messageKeyUpdate, 0, 0, 1, updateRequested, typeHandshake)
	opened(t, client, server.sealAny(both...), "")
	if err := server.out.update(); err != nil {
		t.Fatal(err)
	}
	opened(t, client, server.sealed("data"), "data")
	if !client.UpdateDue() {
		t.Error("no update is due")
	}
	rejected(t, server, client.sealAny(append(ticket(), typeHandshake)...), UnexpectedMessage)
}

func TestMessagesMaySpanRecords(t *testing.T) {
	message := slices.Concat(ticket(), []byte{messageKeyUpdate, 0, 0, 1, updateNotRequested})
	for at := 1; at < len(message); at++ {
		client, server := newSessions(t, anySuite)
		for _, part := range [][]byte{message[:at], message[at:]} {
			opened(t, client, server.sealAny(append(slices.Clone(part), typeHandshake)...), "")
		}
		if err := server.out.update(); err != nil {
			t.Fatal(err)
		}
		opened(t, client, server.sealed("data"), "data")
	}
	client, server := newSessions(t, anySuite)
	for _, b := range message[:maxUseless] {
		opened(t, client, server.sealAny(b, typeHandshake), "")
	}
	rejected(t, client, server.sealAny(message[maxUseless], typeHandshake), UnexpectedMessage)
}

func TestPaddingIsAccepted(t *testing.T) {
	client, server := newSessions(t, anySuite)
	for _, padding := range []int{1, 100, maxInner - 3} {
		inner := append([]byte{'x', 0, typeApplicationData}, make([]byte, padding)...)
		opened(t, server, client.sealAny(inner...), "x\x00")
	}
}

func TestRecordsWithoutDataAreBounded(t *testing.T) {
	useless := map[string]func(*Session) []byte{
		"empty":   func(s *Session) []byte { return s.sealAny(typeApplicationData) },
		"updates": func(s *Session) []byte { return s.AppendKeyUpdate(nil) },
		"tickets": func(s *Session) []byte {
			return s.sealAny(append(ticket(), typeHandshake)...)
		},
		"canceled": func(s *Session) []byte { return s.sealAny(1, byte(userCanceled), typeAlert) },
	}
	for name, next := range useless {
		t.Run(name, func(t *testing.T) {
			client, server := newSessions(t, anySuite)
			for range 2 {
				for range maxUseless {
					opened(t, client, next(server), "")
				}
				opened(t, client, server.sealed("data"), "data")
			}
			for range maxUseless {
				opened(t, client, next(server), "")
			}
			rejected(t, client, next(server), UnexpectedMessage)
		})
	}
}

func TestCloseNotifyEndsOneDirection(t *testing.T) {
	client, server := newSessions(t, anySuite)
	end := client.AppendAlert(nil, CloseNotify)
	if client.sealed("x") != nil || client.AppendKeyUpdate(nil) != nil ||
		client.AppendAlert(nil, CloseNotify) != nil ||
		client.AppendAlert(nil, InternalError) != nil {
		t.Error("sends behind the end")
	}
	if _, err := server.Open(end); err != io.EOF || AlertOf(err) != CloseNotify {
		t.Fatalf("%v, want EOF", err)
	}
	if _, err := server.Open(client.sealAny('x', typeApplicationData)); err != io.EOF {
		t.Errorf("opens behind the end: %v", err)
	}
	opened(t, client, server.sealed("more"), "more")
	if _, err := client.Open(server.AppendAlert(nil, CloseNotify)); err != io.EOF {
		t.Errorf("%v, want EOF", err)
	}
}

func TestAFatalAlertEndsBothDirections(t *testing.T) {
	client, server := newSessions(t, anySuite)
	_, err := server.Open(client.AppendAlert(nil, InternalError))
	if err == nil || status.CodeOf(err) != status.ConnectionReset || errors.As(err, new(Alert)) ||
		!strings.Contains(err.Error(), "the peer ended TLS: internal error (TLS alert 80)") {
		t.Errorf("the alert is %v", err)
	}
	record := server.sealAny('x', typeApplicationData)
	for _, s := range []*Session{client, server} {
		if s.sealed("x") != nil || s.AppendKeyUpdate(nil) != nil || s.UpdateDue() ||
			s.AppendAlert(nil, CloseNotify) != nil || s.AppendAlert(nil, InternalError) != nil {
			t.Error("seals something")
		}
		if data, err := s.Open(record); data != nil || err == nil {
			t.Error("opens something")
		}
	}
}

func TestAlertsAboutCertificatesSaySo(t *testing.T) {
	for _, c := range []struct {
		alert Alert
		code  status.Code
		text  string
	}{
		{42, status.Authentication, "bad certificate (TLS alert 42)"},
		{43, status.Authentication, "unsupported certificate"},
		{44, status.Authentication, "certificate revoked"},
		{45, status.Authentication, "certificate expired"},
		{46, status.Authentication, "certificate unknown"},
		{48, status.Authentication, "unknown certificate authority"},
		{49, status.Authentication, "access denied"},
		{116, status.Authentication, "certificate required"},
		{47, status.ConnectionReset, "illegal parameter"},
		{51, status.ConnectionReset, "decrypt error"},
		{200, status.ConnectionReset, "TLS alert 200"},
	} {
		client, server := newSessions(t, anySuite)
		_, err := client.Open(server.AppendAlert(nil, c.alert))
		isRejection := strings.Contains(err.Error(), "the peer rejected this side's certificate: ")
		if status.CodeOf(err) != c.code || isRejection != (c.code == status.Authentication) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("alert %d: %v, want %v and %s", c.alert, err, c.code, c.text)
		}
	}
}

func TestClearForgetsTheKeys(t *testing.T) {
	client, server := newSessions(t, anySuite)
	in, out := client.in.secret, client.out.secret
	client.Clear()
	if len(bytes.Trim(slices.Concat(in, out), "\x00")) != 0 || client.out.aead != nil ||
		client.in.aead != nil {
		t.Error("a key is left")
	}
	if _, err := client.Open(server.sealed("x")); status.CodeOf(err) != status.Shutdown {
		t.Errorf("opens: %v", err)
	}
	if client.sealed("x") != nil || client.AppendKeyUpdate(nil) != nil || client.UpdateDue() ||
		client.AppendAlert(nil, CloseNotify) != nil {
		t.Error("seals")
	}
}

func TestDataIsSealedAndOpenedWithoutAllocation(t *testing.T) {
	forSuites(t, func(t *testing.T, suite uint16) {
		client, server := newSessions(t, suite)
		record := make([]byte, MaxPlaintext+Overhead)
		for _, size := range benchmarkSizes {
			if n := testing.AllocsPerRun(100, func() {
				length := client.Seal(record, size)
				if data, err := server.Open(record[:length]); len(data) != size || err != nil {
					t.Fatalf("%d bytes, %v", len(data), err)
				}
			}); n != 0 {
				t.Errorf("%d bytes: %v allocations", size, n)
			}
		}
	})
}

var benchmarkSizes = []int{64, 256, 4 << 10, 16 << 10}
