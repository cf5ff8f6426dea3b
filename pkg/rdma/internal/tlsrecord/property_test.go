// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

// end is one end of a connection, with what is on its way to it.
type end struct {
	name    string
	session *Session
	peer    *end
	records [][]byte
	data    [][]byte // what each record carries; nil for none
	useless int      // records without data that are on their way, or were opened, in a row
	ended   bool     // has sent the end of its data
}

// send puts a record that the end has sealed on its way. The end may have sealed nothing.
func (e *end) send(record, data []byte) {
	if len(record) == 0 {
		return
	}
	e.useless++
	if len(data) > 0 {
		e.useless = 0
	}
	e.peer.records = append(e.peer.records, record)
	e.peer.data = append(e.peer.data, data)
}

// canSendUseless keeps the end within what its peer accepts.
func (e *end) canSendUseless() bool { return e.useless < maxUseless && !e.ended }

func TestSessionsUnderstandEachOther(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		suite := rapid.SampledFrom(sortedSuites()).Draw(t, "suite")
		client, server := newSessionsOf(t, suite)
		a := &end{name: "client", session: client}
		b := &end{name: "server", session: server, peer: a}
		a.peer = b
		pick := func() *end { return rapid.SampledFrom([]*end{a, b}).Draw(t, "end") }
		sizes := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, MaxPlaintext))
		t.Repeat(map[string]func(*rapid.T){
			"data": func(t *rapid.T) {
				e := pick()
				data := bytes.Repeat([]byte{byte(len(e.peer.data))}, sizes.Draw(t, "size"))
				if e.session.UpdateDue() && e.canSendUseless() {
					e.send(e.session.AppendKeyUpdate(nil), nil)
				}
				e.send(e.session.sealed(string(data)), data)
			},
			"padded data": func(t *rapid.T) {
				e := pick()
				if e.ended {
					return
				}
				size := rapid.IntRange(0, 300).Draw(t, "size")
				data := bytes.Repeat([]byte{0}, size)
				inner := append(slices.Clone(data), typeApplicationData)
				inner = append(inner, make([]byte, rapid.IntRange(0, 300).Draw(t, "padding"))...)
				if size > 0 || e.canSendUseless() {
					e.send(e.session.sealAny(inner...), data)
				}
			},
			"key update": func(t *rapid.T) {
				e := pick()
				request := rapid.SampledFrom([]byte{updateNotRequested, updateRequested})
				if e.canSendUseless() {
					e.send(e.session.appendKeyUpdate(nil, request.Draw(t, "request")), nil)
				}
			},
			"ticket": func(t *rapid.T) {
				if b.canSendUseless() {
					b.send(b.session.sealAny(append(ticket(), typeHandshake)...), nil)
				}
			},
			"close": func(t *rapid.T) {
				if e := pick(); rapid.IntRange(0, 9).Draw(t, "rarely") == 0 && e.canSendUseless() {
					e.send(e.session.AppendAlert(nil, CloseNotify), nil)
					e.ended = true
				}
			},
			"": func(t *rapid.T) {
				e := pick()
				for range rapid.IntRange(0, 4).Draw(t, "deliveries") {
					e.deliver(t)
				}
			},
		})
		for _, e := range []*end{a, b} {
			for len(e.records) > 0 {
				e.deliver(t)
			}
		}
	})
}

// deliver opens the next record.
func (e *end) deliver(t *rapid.T) {
	if len(e.records) == 0 {
		return
	}
	record, want := e.records[0], e.data[0]
	e.records, e.data = e.records[1:], e.data[1:]
	if length, err := RecordLength(record); length != len(record) || err != nil {
		t.Fatalf("length %d of %d, %v", length, len(record), err)
	}
	got, err := e.session.Open(record)
	if len(e.records) == 0 && e.peer.ended {
		if got != nil || err != io.EOF {
			t.Fatalf("%s: opened %d bytes, %v, want the end", e.name, len(got), err)
		}
		return
	}
	if !bytes.Equal(got, want) || err != nil {
		t.Fatalf("%s: opened %d bytes, %v, want %d", e.name, len(got), err, len(want))
	}
}

func sortedSuites() []uint16 {
	var all []uint16
	for suite := range suites {
		all = append(all, suite)
	}
	slices.Sort(all)
	return all
}
