// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// violationCase is a sequence of frames that a peer must not send. The last one is rejected with
// want.
type violationCase struct {
	name   string
	want   *violation
	frames func(*wireTest) []byte
}

// tagged returns a frame with the given header and a payload of zero bytes.
func tagged(w *wireTest, h taggedHeader, payload int) []byte {
	return w.frame(h.append(nil, payload), make([]byte, payload))
}

// untagged returns a frame with the given header and a payload of zero bytes.
func untagged(w *wireTest, h untaggedHeader, payload int) []byte {
	return w.frame(h.append(nil, payload), make([]byte, payload))
}

// raw returns a frame that starts with b, followed by payload zero bytes.
func raw(w *wireTest, payload int, b ...byte) []byte {
	return w.frame(append(b, make([]byte, payload)...), nil)
}

var framingCases = []violationCase{
	{"ULPDU shorter than its header", violationLength, func(w *wireTest) []byte {
		return raw(w, 7, 0, 9, 0xc1, 0x40)
	}},
	{"Read Request with payload", violationLength, func(w *wireTest) []byte {
		h := untaggedHeader{op: opReadRequest, last: true, queue: queueReadRequest, sequence: 1}
		return untagged(w, h, readRequestBytes-untaggedBytes+4)
	}},
	{"DDP version, tagged", violationTaggedVersion, func(w *wireTest) []byte {
		return raw(w, 12, 0, 14, 0xc0, 0x40)
	}},
	{"DDP version, untagged", violationUntaggedVersion, func(w *wireTest) []byte {
		return raw(w, 16, 0, 18, 0x43, 0x43)
	}},
	{"RDMAP version", violationRDMAPVersion, func(w *wireTest) []byte {
		return raw(w, 12, 0, 14, 0xc1, 0xc0)
	}},
	{"opcode 8", violationOpcode, func(w *wireTest) []byte {
		return raw(w, 24, 0, 26, 0x41, 0x48)
	}},
	{"untagged Write", violationOpcode, func(w *wireTest) []byte {
		return raw(w, 16, 0, 18, 0x41, 0x40)
	}},
	{"Read Response inside a Write", violationOpcode, func(w *wireTest) []byte {
		first := taggedHeader{op: opWrite, stag: w.memory.LocalKey()}
		second := taggedHeader{op: opReadResponse, last: true}
		return append(tagged(w, first, 8), tagged(w, second, 8)...)
	}},
}

var writeCases = []violationCase{
	{"unknown STag", violationWriteSTag, func(w *wireTest) []byte {
		return tagged(w, taggedHeader{op: opWrite, last: true,
			stag: w.memory.LocalKey() ^ 0xff000000}, 8)
	}},
	{"wrong key", violationWriteSTag, func(w *wireTest) []byte {
		return tagged(w, taggedHeader{op: opWrite, last: true, stag: w.memory.LocalKey() + 1}, 8)
	}},
	{"STag of another domain", violationWriteStream, func(w *wireTest) []byte {
		domain, _ := w.device.NewProtectionDomain()
		other, _ := domain.Register(memory.Wrap(make([]byte, 64)), allRights)
		return tagged(w, taggedHeader{op: opWrite, last: true, stag: other.RemoteKey()}, 8)
	}},
	{"no right to write", violationWriteRights, func(w *wireTest) []byte {
		r := w.register(memory.Wrap(make([]byte, 64)), memory.LocalWrite|memory.RemoteRead)
		return tagged(w, taggedHeader{op: opWrite, last: true, stag: r.LocalKey()}, 8)
	}},
	{"out of bounds", violationWriteBounds, func(w *wireTest) []byte {
		h := taggedHeader{op: opWrite, last: true, stag: w.memory.LocalKey(),
			offset: testMemoryBytes - 7}
		return tagged(w, h, 8)
	}},
	{"wrap", violationWriteWrap, func(w *wireTest) []byte {
		h := taggedHeader{op: opWrite, last: true, stag: w.memory.LocalKey(),
			offset: math.MaxUint64 - 3}
		return tagged(w, h, 8)
	}},
	{"gap between segments", violationWriteBounds, func(w *wireTest) []byte {
		h := taggedHeader{op: opWrite, stag: w.memory.LocalKey()}
		first := tagged(w, h, 8)
		h.offset, h.last = 12, true
		return append(first, tagged(w, h, 8)...)
	}},
	{"other STag in the second segment", violationWriteSTag, func(w *wireTest) []byte {
		h := taggedHeader{op: opWrite, stag: w.memory.LocalKey()}
		first := tagged(w, h, 8)
		h.offset, h.stag = 8, w.register(memory.Wrap(make([]byte, 64)), allRights).LocalKey()
		return append(first, tagged(w, h, 8)...)
	}},
	{"sink STag of a Read", violationWriteSTag, func(w *wireTest) []byte {
		w.post(rdma.OpRead, 1, 0, 8)
		request := parseReadRequest(w.readFPDU())
		return tagged(w, taggedHeader{op: opWrite, last: true, stag: request.sinkSTag}, 8)
	}},
}

var sendCases = []violationCase{
	{"wrong queue", violationQueue, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{op: opSend, last: true, queue: 1, sequence: 1}, 8)
	}},
	{"MSN too high", violationSequence, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{op: opSend, last: true, sequence: 2}, 8)
	}},
	{"MO beyond the received bytes", violationOffset, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{op: opSend, last: true, sequence: 1, offset: 4}, 8)
	}},
	{"no receive", violationNoReceive, func(w *wireTest) []byte {
		return append(w.sendFrame(1, make([]byte, 8)), w.sendFrame(2, make([]byte, 8))...)
	}},
	{"too long", violationTooLong, func(w *wireTest) []byte {
		return w.sendFrame(1, make([]byte, 65))
	}},
	{"too long in the second segment", violationTooLong, func(w *wireTest) []byte {
		h := untaggedHeader{op: opSend, sequence: 1}
		first := untagged(w, h, 60)
		h.offset, h.last = 60, true
		return append(first, untagged(w, h, 5)...)
	}},
	{"another opcode in the second segment", violationOpcode, func(w *wireTest) []byte {
		first := untaggedHeader{op: opSend, sequence: 1}
		second := untaggedHeader{op: opSendSolicited, last: true, sequence: 1, offset: 8}
		return append(untagged(w, first, 8), untagged(w, second, 8)...)
	}},
	{"invalidation of an unknown STag", violationInvalidSTag, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{
			op: opSendInvalidate, last: true, sequence: 1, invalidate: w.memory.LocalKey() + 1,
		}, 8)
	}},
	{"invalidation of memory", violationInvalidate, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{
			op: opSendSolicitedInvalidate, last: true, sequence: 1, invalidate: w.memory.LocalKey(),
		}, 8)
	}},
	{"Terminate on another queue", violationQueue, func(w *wireTest) []byte {
		return untagged(w, untaggedHeader{op: opTerminate, last: true, queue: 1, sequence: 1}, 4)
	}},
}

// readOf returns a Read Request that change makes invalid.
func readOf(change func(*wireTest, *readRequest)) func(*wireTest) []byte {
	return func(w *wireTest) []byte {
		r := readRequest{sinkSTag: 7, length: 8, sourceSTag: w.memory.LocalKey()}
		change(w, &r)
		return w.readFrame(1, r)
	}
}

var readCases = []violationCase{
	{"MSN", violationSequence, func(w *wireTest) []byte { return w.readFrame(2, readRequest{}) }},
	{"unknown STag", violationReadSTag, readOf(func(w *wireTest, r *readRequest) {
		r.sourceSTag++
	})},
	{"out of bounds", violationReadBounds, readOf(func(w *wireTest, r *readRequest) {
		r.sourceOffset = testMemoryBytes - 7
	})},
	{"wrap", violationReadWrap, readOf(func(w *wireTest, r *readRequest) {
		r.sourceOffset = math.MaxUint64 - 3
	})},
	{"no right to read", violationReadRights, readOf(func(w *wireTest, r *readRequest) {
		region := w.register(memory.Wrap(make([]byte, 64)), memory.LocalWrite|memory.RemoteWrite)
		r.sourceSTag = region.LocalKey()
	})},
	{"STag of another domain", violationReadStream, readOf(func(w *wireTest, r *readRequest) {
		domain, _ := w.device.NewProtectionDomain()
		other, _ := domain.Register(memory.Wrap(make([]byte, 64)), allRights)
		r.sourceSTag = other.RemoteKey()
	})},
	{"more than the read depth", violationReadCount, func(w *wireTest) []byte {
		// All three are sent as one piece, so that no response is sent in between.
		var b []byte
		for sequence := range uint32(3) {
			request := readRequest{length: 8, sourceSTag: w.memory.LocalKey()}
			b = append(b, w.readFrame(sequence+1, request)...)
		}
		return b
	}},
	{"response without a Read", violationNoRead, func(w *wireTest) []byte {
		return tagged(w, taggedHeader{op: opReadResponse, last: true}, 8)
	}},
	{"response to another STag", violationResponseSTag, responseTo(func(h *taggedHeader) {
		h.stag++
	}, 8)},
	{"response at another offset", violationResponseBounds, responseTo(func(h *taggedHeader) {
		h.offset = 4
	}, 4)},
	{"response too short", violationResponseBounds, responseTo(func(*taggedHeader) {}, 4)},
	{"response too long", violationResponseBounds, responseTo(func(*taggedHeader) {}, 12)},
	{"response that does not end", violationResponseBounds, responseTo(func(h *taggedHeader) {
		h.last = false
	}, 8)},
}

// responseTo returns a response to a Read of 8 bytes that change and payload make invalid.
func responseTo(change func(*taggedHeader), payload int) func(*wireTest) []byte {
	return func(w *wireTest) []byte {
		w.post(rdma.OpRead, 1, 0, 8)
		request := parseReadRequest(w.readFPDU())
		h := taggedHeader{op: opReadResponse, last: true, stag: request.sinkSTag}
		change(&h)
		return tagged(w, h, payload)
	}
}

func TestViolationsAreTerminated(t *testing.T) {
	for group, cases := range map[string][]violationCase{
		"framing": framingCases, "Write": writeCases, "Send": sendCases, "Read": readCases,
	} {
		for _, c := range cases {
			for _, useCRC := range []bool{false, true} {
				t.Run(group+"/"+c.name, func(t *testing.T) { checkViolation(t, c, useCRC) })
			}
		}
	}
}

func checkViolation(t *testing.T, c violationCase, useCRC bool) {
	w := newWireTest(t, useCRC)
	w.receive(5, 1024, 64)
	frames := c.frames(w)
	w.write(frames)
	_ = w.peer.CloseWrite() // a connection that accepts the frames ends, too
	var terminate []byte
	for terminate == nil || opcode(terminate[3]&rdmapOpcodeOf) != opTerminate {
		terminate = w.readFPDU()
	}
	got := terminateOf(t, w.awaitEnd())
	if got.Remote ||
		got.Layer != c.want.layer || got.Type != c.want.kind || got.Code != c.want.code {
		t.Errorf("Err is %v, want %d/%d/%d", got, c.want.layer, c.want.kind, c.want.code)
	}
	e := parseTerminate(terminate)
	if e.Layer != c.want.layer || e.Type != c.want.kind || e.Code != c.want.code ||
		terminate[22] != c.want.headers {
		t.Errorf("the peer received Terminate %d/%d/%d, headers %#x",
			e.Layer, e.Type, e.Code, terminate[22])
	}
	n := len(c.want.returned(lastFrame(frames)))
	if n > 0 && !bytes.Contains(frames, terminate[terminateBytes:terminateBytes+n]) {
		t.Errorf("the Terminate does not return the offending header: %x", terminate)
	}
	if useCRC && !validCRC(terminate) {
		t.Error("the CRC of the Terminate is wrong")
	}
	for _, completion := range w.completions {
		if completion.Status == rdma.StatusSuccess && c.want != violationNoReceive {
			t.Errorf("%v completes successfully", completion.Opcode)
		}
	}
	if n, err := w.peer.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the Terminate, the peer received %d bytes, %v", n, err)
	}
}

// lastFrame returns the last frame, padded to the longest header.
func lastFrame(frames []byte) []byte {
	for {
		size := fpduBytes(frames)
		if size >= len(frames) {
			return append(frames, make([]byte, maxHeaderBytes)...)
		}
		frames = frames[size:]
	}
}

func TestWrongCRCCompletesNothing(t *testing.T) {
	w := newWireTest(t, true)
	w.receive(5, 1024, 64)
	frame := w.sendFrame(1, []byte("hello"))
	frame[len(frame)-1] ^= 1
	w.write(frame)
	_ = w.peer.CloseWrite()
	if e := parseTerminate(w.readFPDU()); e.Layer != layerLLP || e.Code != violationCRC.code {
		t.Errorf("Terminate %v", &e)
	}
	terminateOf(t, w.awaitEnd())
	if len(w.completions) != 1 || w.completions[0].Status != rdma.StatusFlushed {
		t.Errorf("completions %+v", w.completions)
	}
}

// Linux siw on little-endian hosts sends the layer where the type should be.
func TestSwappedTerminateIsUnderstood(t *testing.T) {
	for _, c := range []struct {
		fields [2]byte // the layer and the type in one byte, and the code
		want   string
	}{
		{[2]byte{0x20, 2}, "received Terminate MPA: CRC error (2/0/2)"},
		{[2]byte{0x02, 2}, "received Terminate MPA: CRC error (2/0/2)"},
		{[2]byte{0x21, 2}, "received Terminate DDP: no receive posted (1/2/2)"},
		{[2]byte{0x10, 1}, "received Terminate RDMAP: base or bounds violation (0/1/1)"},
		{[2]byte{0x02, 6}, "received Terminate RDMAP: unexpected opcode (0/2/6)"},
		{[2]byte{0x20, 6}, "received Terminate MPA: insufficient inbound read depth (2/0/6)"},
		{[2]byte{0x20, 5}, "received Terminate MPA: local catastrophic error (2/0/5)"},
		{[2]byte{0x02, 99}, "received Terminate RDMAP: unknown reason (0/2/99)"},
		{[2]byte{0xf0, 0}, "received Terminate layer: unknown reason (15/0/0)"},
	} {
		frame := append(make([]byte, untaggedBytes), c.fields[0], c.fields[1], 0, 0)
		if e := parseTerminate(frame); e.Error() != c.want {
			t.Errorf("%x: %q, want %q", c.fields, &e, c.want)
		}
	}
}

func TestPeerTerminateFailsOldestRead(t *testing.T) {
	for _, c := range []struct {
		v    *violation
		want rdma.CompletionStatus
	}{
		{violationReadRights, rdma.StatusRemoteAccess},
		{violationReadCount, rdma.StatusRemoteOperation},
		{violationWriteSTag, rdma.StatusFlushed},
	} {
		w := newWireTest(t, false)
		w.post(rdma.OpRead, 1, 0, 8)
		w.post(rdma.OpRead, 2, 0, 8)
		offender := append(w.readFPDU(), make([]byte, maxHeaderBytes)...)
		w.write(appendTerminate(nil, c.v, offender, false))
		if e := terminateOf(t, w.awaitEnd()); !e.Remote {
			t.Errorf("%v", e)
		}
		if len(w.completions) != 2 ||
			w.completions[0].Status != c.want || w.completions[1].Status != rdma.StatusFlushed {
			t.Errorf("%s: completions %+v", c.v.text, w.completions)
		}
	}
}
