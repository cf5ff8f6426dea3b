// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bytesMemory is memory of this process.
type bytesMemory []byte

func (m bytesMemory) Load(to []byte, offset uint64) error {
	copy(to, m[offset:])
	return nil
}

func (m bytesMemory) Store(from []byte, offset uint64) error {
	if offset+uint64(len(from)) > uint64(len(m)) {
		return status.TooBig
	}
	copy(m[offset:], from)
	return nil
}

// peer is one side: it has memory for the other, and posts receives.
type peer struct {
	memory   bytesMemory
	receives chan *receive
	link     *Link
}

type receive struct {
	bytesMemory
	done chan Message
}

func (r *receive) Complete(m Message) { r.done <- m }

func (p *peer) Receive(ctx context.Context) (Receive, error) {
	select {
	case r := <-p.receives:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var exportedKey = Key{1, 2, 3}

func (p *peer) Access(operation Operation, key Key, address uint64, data []byte) error {
	if key != exportedKey || address+uint64(len(data)) > uint64(len(p.memory)) {
		return status.NotPermitted
	}
	if operation == Read {
		return p.memory.Load(data, address)
	}
	return p.memory.Store(data, address)
}

func (p *peer) Atomic(operation Operation, key Key, address uint64, operands [2]uint64) (uint64,
	error) {
	if key != exportedKey || address+WordSize > uint64(len(p.memory)) {
		return 0, status.NotPermitted
	}
	word := p.memory[address:]
	before := binary.NativeEndian.Uint64(word)
	switch {
	case operation == FetchAdd:
		binary.NativeEndian.PutUint64(word, before+operands[0])
	case before == operands[0]:
		binary.NativeEndian.PutUint64(word, operands[1])
	}
	return before, nil
}

func (p *peer) post(size int) *receive {
	r := &receive{make([]byte, size), make(chan Message, 1)}
	p.receives <- r
	return r
}

// request submits a request and returns the channel of its outcome.
func (p *peer) request(r Request) <-chan error {
	done := make(chan error, 1)
	r.Done = func(err error) { done <- err }
	p.link.Submit(&r)
	return done
}

func newPair(t *testing.T) (a, b *peer) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peers := [2]*peer{}
	for i, stream := range []net.Conn{dialed, accepted} {
		peers[i] = &peer{memory: make([]byte, 1<<20), receives: make(chan *receive, 256)}
		peers[i].link = New(stream, peers[i])
	}
	t.Cleanup(func() {
		for _, p := range peers {
			p.link.Close()
			p.link.Wait()
		}
	})
	return peers[0], peers[1]
}

func pattern(length int, seed byte) []byte {
	b := make([]byte, length)
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	return b
}

func wait[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(testkit.Patience):
		t.Fatal("nothing has happened for two minutes")
		panic("unreachable")
	}
}

func TestOperations(t *testing.T) {
	a, b := newPair(t)
	for _, length := range []int{0, 1, maxPart - 1, maxPart, maxPart + 1, 10*maxPart + 5} {
		data := pattern(length, byte(length))
		sent := a.request(Request{Operation: Send, Length: uint64(length), Local: bytesMemory(data),
			Immediate: [4]byte{9, 8, 7, 6}, HasImmediate: length%2 == 1})
		r := b.post(length) // after the send
		message := wait(t, r.done)
		if err := wait(t, sent); err != nil || message.Err != nil {
			t.Fatal(err, message.Err)
		}
		if message.Length != uint64(length) || !bytes.Equal(r.bytesMemory, data) ||
			message.HasImmediate != (length%2 == 1) || message.IsWrite {
			t.Errorf("%d bytes: %+v", length, message)
		}
		write := a.request(Request{Operation: Write, Key: exportedKey, Address: 100,
			Length: uint64(length), Local: bytesMemory(data)})
		if err := wait(t, write); err != nil || !bytes.Equal(b.memory[100:][:length], data) {
			t.Errorf("write of %d bytes: %v", length, err)
		}
		back := make([]byte, length)
		read := a.request(Request{Operation: Read, Key: exportedKey, Address: 100,
			Length: uint64(length), Local: bytesMemory(back)})
		if err := wait(t, read); err != nil || !bytes.Equal(back, data) {
			t.Errorf("read of %d bytes: %v", length, err)
		}
	}
}

func TestAtomics(t *testing.T) {
	a, b := newPair(t)
	const address, big = 16, 1<<63 + 5
	for i, step := range []struct {
		operation             Operation
		operands              [2]uint64
		wantBefore, wantAfter uint64
	}{
		{FetchAdd, [2]uint64{big, 99}, 0, big},
		{FetchAdd, [2]uint64{1<<64 - 5, 0}, big, 1 << 63},
		{CompareSwap, [2]uint64{7, 8}, 1 << 63, 1 << 63},
		{CompareSwap, [2]uint64{1 << 63, 8}, 1 << 63, 8},
	} {
		result := make(bytesMemory, WordSize)
		done := a.request(Request{Operation: step.operation, Key: exportedKey, Address: address,
			Length: WordSize, Operands: step.operands, Local: result})
		if err := wait(t, done); err != nil {
			t.Fatal(err)
		}
		before := binary.NativeEndian.Uint64(result)
		after := binary.NativeEndian.Uint64(b.memory[address:])
		if before != step.wantBefore || after != step.wantAfter {
			t.Errorf("step %d: the word was %#x and is %#x, expected %#x and %#x", i, before, after,
				step.wantBefore, step.wantAfter)
		}
	}
}

// Both sides send at once, far more than the window, with few receives.
func TestBothSidesSendAtOnce(t *testing.T) {
	const messages, length = 500, 3000
	a, b := newPair(t)
	var running sync.WaitGroup
	for _, pair := range [][2]*peer{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		outcomes := make(chan error, messages)
		for i := range messages {
			from.link.Submit(&Request{Operation: Send, Length: length,
				Local: bytesMemory(pattern(length, byte(i))),
				Done:  func(err error) { outcomes <- err }})
		}
		running.Go(func() {
			for i := range messages {
				r := to.post(length)
				if m := <-r.done; m.Err != nil ||
					!bytes.Equal(r.bytesMemory, pattern(length, byte(i))) {
					t.Errorf("message %d: %+v", i, m)
				}
			}
			for range messages {
				if err := <-outcomes; err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
}

func TestAWriteWithImmediateDataTakesAReceive(t *testing.T) {
	a, b := newPair(t)
	data := pattern(2*maxPart, 3)
	write := a.request(Request{Operation: Write, Key: exportedKey, Length: uint64(len(data)),
		Local: bytesMemory(data), Immediate: [4]byte{1, 2, 3, 4}, HasImmediate: true})
	message := wait(t, b.post(0).done)
	if err := wait(t, write); err != nil || !message.IsWrite || !message.HasImmediate ||
		message.Immediate != [4]byte{1, 2, 3, 4} || message.Length != uint64(len(data)) {
		t.Errorf("%v, %+v", err, message)
	}
}

// A request that the peer cannot carry out ends the link, and nothing behind it is carried out.
func TestAFailureEndsTheLink(t *testing.T) {
	for name, request := range map[string]Request{
		"key":     {Operation: Write, Key: Key{9}, Length: 4, Local: bytesMemory("data")},
		"range":   {Operation: Read, Key: exportedKey, Address: 1 << 40, Length: 1, Local: bytesMemory("x")},
		"atomic":  {Operation: FetchAdd, Length: WordSize, Local: make(bytesMemory, WordSize)},
		"receive": {Operation: Send, Length: 100, Local: make(bytesMemory, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t)
			small := b.post(99)
			b.post(100)
			failed := a.request(request)
			behind := a.request(Request{Operation: Write, Key: exportedKey, Length: 4,
				Local: bytesMemory("data")})
			<-a.link.Ended()
			a.link.Wait()
			if err := wait(t, failed); !errors.Is(err, status.IOFailed) {
				t.Errorf("the request is %v", err)
			}
			if err := wait(t, behind); err == nil || bytes.HasPrefix(b.memory, []byte("data")) {
				t.Errorf("the request behind it is %v", err)
			}
			if name == "receive" {
				if m := wait(t, small.done); !errors.Is(m.Err, status.TooBig) {
					t.Errorf("the receive is %+v", m)
				}
			}
		})
	}
}

func TestTheEndOfALinkFailsRequests(t *testing.T) {
	a, b := newPair(t)
	waiting := a.request(Request{Operation: Send, Length: 1, Local: bytesMemory("x")})
	b.link.Close()
	b.link.Wait()
	a.link.Wait()
	if err := wait(t, waiting); !errors.Is(err, status.NotConnected) {
		t.Errorf("the waiting request is %v", err)
	}
	late := a.request(Request{Operation: Send, Length: 1, Local: bytesMemory("x")})
	if err := wait(t, late); !errors.Is(err, status.NotConnected) {
		t.Errorf("the late request is %v", err)
	}
}

// A peer that sends without end, and reads no answers, is cut off.
func TestAPeerThatIgnoresTheWindow(t *testing.T) {
	ours, theirs := net.Pipe()
	p := &peer{memory: make([]byte, 10), receives: make(chan *receive)}
	p.link = New(ours, p)
	header := make([]byte, headerSize)
	(&part{operation: Write, flags: flagLast, key: exportedKey}).encode(header)
	for i := 0; ; i++ {
		if _, err := theirs.Write(header); err != nil {
			break
		}
		if i > 10*window {
			t.Fatal("the link still reads")
		}
	}
	p.link.Wait()
	_ = theirs.Close()
}

// Whatever a peer sends, the link ends, and requests are done.
func FuzzPeer(f *testing.F) {
	header := make([]byte, headerSize)
	(&part{operation: Read, flags: flagLast, length: 5, key: exportedKey}).encode(header)
	f.Add(bytes.Clone(header))
	(&part{operation: Send, flags: flagLast | flagImmediate, length: 3}).encode(header)
	f.Add(append(bytes.Clone(header), "abc"...))
	(&part{operation: FetchAdd, flags: flagLast, length: WordSize, key: exportedKey}).encode(header)
	f.Add(append(bytes.Clone(header), "12345678"...))
	(&part{}).encode(header)
	f.Add(append(bytes.Clone(header), header...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := net.Pipe()
		p := &peer{memory: make([]byte, 4096), receives: make(chan *receive, 256)}
		for range 8 {
			p.post(16)
		}
		p.link = New(ours, p)
		done := p.request(Request{Operation: Send, Length: 1, Local: bytesMemory("x")})
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, theirs) })
		_, _ = theirs.Write(sent)
		_ = theirs.Close()
		p.link.Wait()
		<-done
		reading.Wait()
	})
}

func FuzzHandshake(f *testing.F) {
	var b bytes.Buffer
	_ = WriteHello(&b, Hello{To: Key{1}, From: Key{2}, PrivateData: []byte("private")})
	f.Add(b.Bytes())
	f.Add(binary.LittleEndian.AppendUint32(nil, helloMagic))
	f.Fuzz(func(t *testing.T, sent []byte) {
		h, err := ReadHello(bytes.NewReader(sent))
		if err == nil {
			var again bytes.Buffer
			if err := WriteHello(&again, h); err != nil || !bytes.HasPrefix(sent, again.Bytes()) {
				t.Errorf("%x became %x", sent, again.Bytes())
			}
		}
		_, _ = ReadReply(bytes.NewReader(sent))
	})
}

func TestHandshake(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReply(&b, true, []byte("yes")); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadReply(&b); err != nil || string(data) != "yes" {
		t.Errorf("accepted: %q, %v", data, err)
	}
	if err := WriteReply(&b, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadReply(&b); !errors.Is(err, status.NotPermitted) {
		t.Errorf("rejected: %v", err)
	}
}
