// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestRingPartsAreAlignedAndDoNotOverlap(t *testing.T) {
	for _, config := range []comch.ConsumerConfig{{Receives: 1, MemorySize: 1},
		{Receives: 3, MemorySize: 100}, {Receives: 4096, MemorySize: 1 << 20}} {
		l, err := planRing(config, highestLimits)
		if err != nil {
			t.Fatal(err)
		}
		if l.capacity < config.Receives || l.capacity >= 2*config.Receives ||
			l.capacity&(l.capacity-1) != 0 {
			t.Errorf("%+v: capacity is %d", config, l.capacity)
		}
		ends := []int{l.completions, l.completions + l.capacity*completionSize,
			l.posted + l.capacity*postedEntrySize, l.memory + l.memorySize}
		starts := []int{l.completions, l.posted, l.memory, l.total}
		for i := range starts {
			if starts[i]%cacheLine != 0 || starts[i] < ends[i] {
				t.Errorf("%+v: part %d starts at %d, the previous one ends at %d",
					config, i, starts[i], ends[i])
			}
		}
	}
}

// TestRingBehavesLikeAQueue compares a ring with a model: buffers are posted, then visible, then
// completed, in order.
func TestRingBehavesLikeAQueue(t *testing.T) {
	seedtest.Check(t, func(r *rapid.T) {
		size := rapid.IntRange(1, 6).Draw(r, "receives")
		newRingModel(t, size).run(r)
	})
}

type ringModel struct {
	*ringPair
	receives int
	posted   []postedReceive // not visible
	visible  []postedReceive
	sent     []comch.Received
	next     uint64
}

const modelMemory = 256

func newRingModel(t *testing.T, receives int) *ringModel {
	return &ringModel{ringPair: newRingPair(t, receives, modelMemory), receives: receives}
}

func (m *ringModel) run(r *rapid.T) {
	r.Repeat(map[string]func(*rapid.T){
		"post":    m.post,
		"publish": func(*rapid.T) { m.publish() },
		"send":    m.sendOne,
		"poll":    m.poll,
	})
}

func (m *ringModel) post(r *rapid.T) {
	offset := rapid.Uint32Range(0, modelMemory+8).Draw(r, "offset")
	length := rapid.Uint32Range(0, modelMemory/2).Draw(r, "length")
	err := m.receive.post(offset, length, m.next)
	switch {
	case len(m.posted)+len(m.visible)+len(m.sent) == m.receives:
		wantError(r, err, status.Full)
	case offset+length > modelMemory:
		wantError(r, err, status.InvalidValue)
	default:
		wantError(r, err, nil)
		m.posted = append(m.posted, postedReceive{userData: m.next, offset: offset, length: length})
		m.next++
	}
}

func (m *ringModel) publish() {
	m.receive.publish()
	m.visible = append(m.visible, m.posted...)
	m.posted = nil
}

func (m *ringModel) sendOne(r *rapid.T) {
	message := rapid.SliceOfN(rapid.Byte(), 0, modelMemory/2+8).Draw(r, "message")
	immediate := rapid.SliceOfN(rapid.Byte(), 0, comch.MaxImmediateLength).Draw(r, "immediate")
	err := m.send.send(1, message, immediate)
	if len(m.visible) == 0 {
		wantError(r, err, status.Again)
		return
	}
	target := m.visible[0]
	if len(message) > int(target.length) {
		wantError(r, err, status.InvalidValue)
		return
	}
	wantError(r, err, nil)
	m.visible = m.visible[1:]
	expected := comch.Received{
		UserData: target.userData, Offset: target.offset, Length: uint32(len(message)),
		Producer: 1, ImmediateLength: uint32(len(immediate)),
	}
	copy(expected.Immediate[:], immediate)
	m.sent = append(m.sent, expected)
	if got := m.receive.shared.memory[target.offset:][:len(message)]; !bytes.Equal(got, message) {
		r.Fatalf("memory holds %x, want %x", got, message)
	}
}

func (m *ringModel) poll(r *rapid.T) {
	received := make([]comch.Received, rapid.IntRange(0, 8).Draw(r, "room"))
	if ready := m.receive.ready(); ready != (len(m.sent) > 0) {
		r.Fatalf("ready is %v with %d messages", ready, len(m.sent))
	}
	n, err := m.receive.poll(received)
	wantError(r, err, nil)
	expected := m.sent[:min(len(m.sent), len(received))]
	if difference := cmp.Diff(expected, received[:n]); difference != "" && n+len(expected) > 0 {
		r.Fatalf("received messages differ from those sent:\n%s", difference)
	}
	m.sent = m.sent[n:]
}

func wantError(r *rapid.T, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Fatalf("got error %v, want %v", err, want)
	}
}

func TestInvalidCompletionIsAViolation(t *testing.T) {
	cases := map[string]func(*completion){
		"sequence far ahead":         func(c *completion) { c.published.Store(7 << 32) },
		"sequence of an earlier use": func(c *completion) { c.published.Store(0xfffffff0 << 32) },
		"length beyond the buffer":   func(c *completion) { c.origin = 1 << 32; c.published.Store(1<<32 | 65) },
		"length of all ones":         func(c *completion) { c.origin = 1 << 32; c.published.Store(1<<32 | 0xffffffff) },
		"too much immediate data":    func(c *completion) { c.origin = 1<<32 | 33; c.published.Store(1 << 32) },
		"no producer":                func(c *completion) { c.published.Store(1 << 32) },
		"producer that never opened": func(c *completion) { c.origin = 9 << 32; c.published.Store(1 << 32) },
	}
	for name, corrupt := range cases {
		t.Run(name, func(t *testing.T) {
			ring := newRingPair(t, 4, 256)
			ring.postAll(t, 64)
			corrupt(&ring.send.shared.completions[0])
			if !ring.receive.ready() {
				t.Error("the ring is not ready: a sleeping consumer would not notice")
			}
			var received [4]comch.Received
			n, err := ring.receive.poll(received[:])
			if n != 0 || !isViolation(err) {
				t.Errorf("poll returned %d, %v", n, err)
			}
		})
	}
}

func TestClearedCompletionIsAViolation(t *testing.T) {
	ring := newRingPair(t, 2, 128)
	ring.postAll(t, 64)
	for range 2 {
		if err := ring.send.send(1, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		ring.next(t, make([]byte, 64))
	}
	ring.send.shared.completions[0].published.Store(0)
	var received [1]comch.Received
	if n, err := ring.receive.poll(received[:]); n != 0 || !isViolation(err) {
		t.Errorf("poll returned %d, %v", n, err)
	}
}

func TestMessagesBeforeAViolationAreDelivered(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	ring.postAll(t, 64)
	if err := ring.send.send(1, []byte("good"), nil); err != nil {
		t.Fatal(err)
	}
	ring.send.shared.completions[1].published.Store(99 << 32)
	var received [4]comch.Received
	n, err := ring.receive.poll(received[:])
	if n != 1 || received[0].Length != 4 || !isViolation(err) {
		t.Errorf("poll returned %d, %v, %+v", n, err, received[0])
	}
}

func TestInvalidPostedReceiveIsAViolation(t *testing.T) {
	cases := map[string]func(sharedRing){
		"more than fit":       func(r sharedRing) { r.header.posted.Store(5) },
		"all ones":            func(r sharedRing) { r.header.posted.Store(1<<64 - 1) },
		"buffer past the end": func(r sharedRing) { r.posted[0] = 250<<32 | 7 },
		"offset past the end": func(r sharedRing) { r.posted[0] = 257 << 32 },
		"offset of all ones":  func(r sharedRing) { r.posted[0] = 0xffffffff << 32 },
		"length of all ones":  func(r sharedRing) { r.posted[0] = 0xffffffff },
		"both of all ones":    func(r sharedRing) { r.posted[0] = 1<<64 - 1 },
	}
	for name, corrupt := range cases {
		t.Run(name, func(t *testing.T) {
			ring := newRingPair(t, 4, 256)
			ring.postAll(t, 64)
			corrupt(ring.receive.shared)
			if err := ring.send.send(1, []byte("x"), nil); !isViolation(err) {
				t.Errorf("send returned %v", err)
			}
		})
	}
}

func TestThePeerCannotMoveAPostedBuffer(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	ring.postAll(t, 64)
	if err := ring.send.send(1, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	ring.send.shared.posted[0] = 250<<32 | 1<<31
	var received [1]comch.Received
	if n, err := ring.receive.poll(received[:]); n != 1 || err != nil ||
		received[0].Offset != 0 || received[0].Length != 1 {
		t.Errorf("poll returned %d, %v, %+v", n, err, received[0])
	}
}

func TestABufferOutsideTheMemoryIsNotPosted(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	for _, c := range []struct{ offset, length uint32 }{
		{0, 257}, {256, 1}, {1, 256}, {1<<32 - 1, 1}, {1<<32 - 1, 2}, {2, 1<<32 - 1},
	} {
		if err := ring.receive.post(c.offset, c.length, 0); !errors.Is(err, status.InvalidValue) {
			t.Errorf("post %d bytes at offset %d: %v", c.length, c.offset, err)
		}
	}
	if err := ring.receive.post(0, 256, 0); err != nil {
		t.Error(err)
	}
}

func TestAProducerThatWaitsIsWokenByAReceive(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	for _, waiting := range []uint32{0, 1} {
		ring.send.shared.header.producersWaiting.Store(waiting)
		if err := ring.receive.post(0, 64, 0); err != nil {
			t.Fatal(err)
		}
		if wake := ring.receive.publish(); wake != (waiting != 0) {
			t.Errorf("with %d producers waiting, publish wakes them: %v", waiting, wake)
		}
	}
}

func TestAConsumerDoesNotSleepWhileAMessageIsThere(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	ring.postAll(t, 64)
	c := &consumer{connection: &connection{}, ring: ring.receive}
	if !c.Arm() {
		t.Error("a consumer without a message does not sleep")
	}
	if err := ring.send.send(1, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if c.Arm() {
		t.Error("a consumer sleeps while a message is there")
	}
}

func TestPostedCountThatDecreasesIsAViolation(t *testing.T) {
	ring := newRingPair(t, 2, 128)
	ring.postAll(t, 64)
	for range 2 {
		if err := ring.send.send(1, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	ring.receive.shared.header.posted.Store(1)
	if err := ring.send.send(1, nil, nil); !isViolation(err) {
		t.Errorf("send returned %v", err)
	}
}

// TestSequencesSurviveWrappingAt32Bits starts shortly before the published half of the index wraps
// to 0.
func TestSequencesSurviveWrappingAt32Bits(t *testing.T) {
	ring := newRingPair(t, 4, 256)
	const start = 1<<32 - 6
	ring.receive.posted, ring.receive.published, ring.receive.completed = start, start, start
	ring.send.next.Store(start)
	ring.send.seenPosted.Store(start)
	for i := range uint64(4) {
		ring.send.shared.completions[(start+i)&3].published.Store(uint64(uint32(start+i-3)) << 32)
	}
	ring.postAll(t, 64)
	message := make([]byte, 64)
	for i := range uint64(20) {
		binary.LittleEndian.PutUint64(message, i)
		if err := ring.send.send(1, message, nil); err != nil {
			t.Fatal(err)
		}
		ring.next(t, message)
		if got := binary.LittleEndian.Uint64(message); got != i {
			t.Fatalf("message %d arrived as %d", i, got)
		}
	}
}

// FuzzRingMemory lets a peer write anything anywhere in the ring between the operations of both
// sides.
func FuzzRingMemory(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add([]byte{3, 0x00, 0x01, 0xff, 0, 1, 2})
	f.Add([]byte{3, 0x01, 0x00, 0x01, 3, 0x01, 0x07, 0x02, 2, 1, 0})
	f.Add(bytes.Repeat([]byte{1, 2, 0, 1, 3, 0x02, 0x00, 0xff}, 16))
	const receives, memorySize = 4, 256
	layout, err := planRing(comch.ConsumerConfig{Receives: receives, MemorySize: memorySize},
		highestLimits)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		words := make([]uint64, layout.total/8) // aligned like a mapping
		mapped := bytesOf(words)
		highest := new(atomic.Uint32)
		highest.Store(1)
		receive := newReceiveRing(viewRing(mapped, layout), layout, highest)
		send := newSendRing(viewRing(mapped, layout), layout.immediate)
		for len(script) >= 4 {
			operation := script[:4]
			script = script[4:]
			fuzzOperation(t, operation, mapped, &receive, send)
		}
	})
}

func fuzzOperation(t *testing.T, operation, mapped []byte, receive *receiveRing, send *sendRing) {
	switch argument := operation[1]; operation[0] & 3 {
	case 0:
		if receive.post(uint32(argument), uint32(operation[2]), 1) == nil {
			receive.publish()
		}
	case 1:
		if err := send.send(1, make([]byte, argument), operation[2:3]); err != nil &&
			len(err.Error()) == 0 {
			t.Error("an error without text")
		}
	case 2:
		received := make([]comch.Received, argument&7)
		n, _ := receive.poll(received)
		for _, r := range received[:n] {
			_ = receive.shared.memory[r.Offset : r.Offset+r.Length]
			_ = r.Immediate[:r.ImmediateLength]
		}
		_ = receive.ready()
	case 3:
		offset := int(binary.BigEndian.Uint16(operation[1:])) % len(mapped)
		mapped[offset] = operation[3]
	}
}

// ringPair is both sides of a ring, each with its own mapping of the memory.
type ringPair struct {
	send    *sendRing
	receive receiveRing
}

func newRingPair(tb testing.TB, receives, memorySize int) *ringPair {
	tb.Helper()
	layout, err := planRing(comch.ConsumerConfig{Receives: receives, MemorySize: memorySize},
		highestLimits)
	if err != nil {
		tb.Fatal(err)
	}
	own, other := mapTwice(tb, layout.total)
	highest := new(atomic.Uint32)
	highest.Store(1)
	return &ringPair{
		receive: newReceiveRing(viewRing(own, layout), layout, highest),
		send:    newSendRing(viewRing(other, layout), layout.immediate),
	}
}

// postAll posts every receive, each with its own buffer.
func (p *ringPair) postAll(tb testing.TB, size uint32) {
	tb.Helper()
	for i := range p.receive.receives {
		if err := p.receive.post(uint32(i)*size, size, i); err != nil {
			tb.Fatal(err)
		}
	}
	p.receive.publish()
}

// next polls one message, which must be there, copies it and posts its buffer again.
func (p *ringPair) next(tb testing.TB, message []byte) {
	tb.Helper()
	var received [1]comch.Received
	if n, err := p.receive.poll(received[:]); n != 1 || err != nil {
		tb.Fatalf("poll returned %d, %v", n, err)
	}
	r := &received[0]
	copy(message, p.receive.shared.memory[r.Offset:r.Offset+r.Length])
	if err := p.receive.post(r.Offset, 64, r.UserData); err != nil {
		tb.Fatal(err)
	}
	p.receive.publish()
}

func mapTwice(tb testing.TB, length int) (first, second []byte) {
	tb.Helper()
	region, err := memory.Alloc("ring-test", uint64(length))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = region.Close() })
	if err := region.Prefault(); err != nil {
		tb.Fatal(err)
	}
	again, err := memory.Import(duplicateOf(tb, region.Descriptor()), 0, uint64(length),
		uint64(length), ringAccess)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = again.Close() })
	return region.Bytes(), again.Bytes()
}
