// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

func TestStreamArrivesInPiecesOfAnySize(t *testing.T) {
	for _, useCRC := range []bool{false, true} {
		for _, size := range []int{1, 2, 3, 7, 19, 23, 1000} {
			w := newWireTest(t, useCRC)
			w.receive(1, 1024, 64)
			data := bytes.Repeat([]byte("written "), 100)
			stream := bytes.Join([][]byte{
				w.writeFrame(4096, data), w.writeFrame(0, nil), w.sendFrame(1, []byte("message")),
			}, nil)
			for len(stream) > 0 {
				n := min(size, len(stream))
				w.write(stream[:n])
				stream = stream[n:]
				w.poll()
			}
			w.pollUntil("the message", func() bool { return len(w.completions) == 1 })
			c := w.completions[0]
			if c.Length != 7 || string(w.memory.Bytes()[1024:1031]) != "message" {
				t.Errorf("pieces of %d bytes: completion %+v", size, c)
			}
			if !bytes.Equal(w.memory.Bytes()[4096:4096+len(data)], data) {
				t.Errorf("pieces of %d bytes: written data differs", size)
			}
		}
	}
}

// The right to read memory counts when the Read Request has arrived as a whole.
func TestAReadOfMemoryThatIsDeregisteredMeanwhileFails(t *testing.T) {
	w := newWireTest(t, false)
	source := w.register(memory.Wrap(make([]byte, 64)), allRights)
	frame := w.readFrame(1, readRequest{length: 8, sourceSTag: source.RemoteKey()})
	w.write(frame[:len(frame)-1])
	w.pollUntil("the request without its trailer", func() bool {
		return w.conn.receiver.stage == stageTrailer
	})
	if err := source.Deregister(); err != nil {
		t.Fatal(err)
	}
	w.write(frame[len(frame)-1:])
	_ = w.peer.CloseWrite()
	e := terminateOf(t, w.awaitEnd())
	if v := violationReadSTag; e.Layer != v.layer || e.Type != v.kind || e.Code != v.code {
		t.Errorf("ended with %v", e)
	}
}

// A Write may arrive in pieces that are copied, or that the kernel writes to the memory itself.
func TestAWriteToMemoryThatIsDeregisteredMeanwhileFails(t *testing.T) {
	for _, size := range []int{64, 4 * directBytes} {
		w := newWireTest(t, false)
		content := bytes.Repeat([]byte{1}, size)
		sink := w.register(memory.Wrap(content), allRights)
		frame := tagged(w, taggedHeader{op: opWrite, last: true, stag: sink.RemoteKey()}, size)
		w.write(frame[:taggedBytes])
		w.pollUntil("the header", func() bool { return w.conn.receiver.left == size })
		if err := sink.Deregister(); err != nil {
			t.Fatal(err)
		}
		w.write(frame[taggedBytes:])
		_ = w.peer.CloseWrite() // a connection that accepts the frame ends, too
		err := w.awaitEnd()
		if bytes.ContainsRune(content, 0) {
			t.Errorf("%d bytes: memory was written after Deregister had returned", size)
		}
		e := terminateOf(t, err)
		if v := violationWriteSTag; e.Layer != v.layer || e.Type != v.kind || e.Code != v.code {
			t.Errorf("%d bytes: ended with %v", size, e)
		}
	}
}

// A peer may take the message behind a Write for the sign that nothing else comes before it.
func TestNothingIsSentBetweenRequestsThatWerePostedTogether(t *testing.T) {
	w := newWireTest(t, false)
	local := rdma.Segment{Key: w.memory.LocalKey(), Length: 8}
	requests := make([]rdma.SendRequest, 3)
	for i := range requests {
		requests[i] = rdma.SendRequest{Opcode: rdma.OpSend, Local: local}
	}
	request := readRequest{length: 8, sourceSTag: w.memory.LocalKey()}
	w.write(w.readFrame(1, request), w.readFrame(2, request))
	w.queue.processInbox()
	for w.conn.responses.Len() < 2 {
		w.conn.receive()
		runtime.Gosched()
	}
	for range 2 {
		if err := w.conn.PostSend(requests); err != nil {
			t.Fatal(err)
		}
	}
	var order []opcode
	for range 2*len(requests) + 2 {
		order = append(order, opcode(w.readFPDU()[3]&rdmapOpcodeOf))
	}
	want := []opcode{opSend, opSend, opSend, opReadResponse, opSend, opSend, opSend, opReadResponse}
	if !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
}

func TestSendBetweenSegmentsOfWrite(t *testing.T) {
	w := newWireTest(t, false)
	w.receive(1, 1024, 64)
	h := taggedHeader{op: opWrite, stag: w.memory.LocalKey()}
	first := w.frame(h.append(nil, 4), []byte("AAAA"))
	h.offset, h.last = 4, true
	second := w.frame(h.append(nil, 4), []byte("BBBB"))
	w.write(first, w.sendFrame(1, []byte("between")), second, w.sendFrame(2, nil))
	w.receive(2, 1024, 64)
	w.pollUntil("both messages", func() bool { return len(w.completions) == 2 })
	if got := string(w.memory.Bytes()[:8]); got != "AAAABBBB" {
		t.Errorf("the memory contains %q", got)
	}
}

func TestStreamEndInsideMessageIsError(t *testing.T) {
	for name, stream := range map[string]func(*wireTest) []byte{
		"inside a header": func(w *wireTest) []byte { return w.writeFrame(0, nil)[:5] },
		"inside a payload": func(w *wireTest) []byte {
			return w.writeFrame(0, make([]byte, 100))[:50]
		},
		"before the CRC": func(w *wireTest) []byte {
			return w.writeFrame(0, make([]byte, 100))[:116]
		},
		"between segments": func(w *wireTest) []byte {
			return tagged(w, taggedHeader{op: opWrite, stag: w.memory.LocalKey()}, 8)
		},
	} {
		w := newWireTest(t, false)
		w.write(stream(w))
		_ = w.peer.CloseWrite()
		if err := w.awaitEnd(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w := newWireTest(t, false)
	w.write(w.writeFrame(0, make([]byte, 100)))
	_ = w.peer.CloseWrite()
	if err := w.awaitEnd(); err != nil {
		t.Errorf("between messages: %v", err)
	}
}

func TestTerminateBeforeResetIsProcessed(t *testing.T) {
	w := newWireTest(t, false)
	w.write(appendTerminate(nil, violationNoReceive, w.sendFrame(1, nil), false))
	_ = w.peer.SetLinger(0)
	_ = w.peer.Close()
	if e := terminateOf(t, w.awaitEnd()); !e.Remote || e.Code != violationNoReceive.code {
		t.Errorf("ended with %v", e)
	}
}

// FuzzReceiveStream feeds a receiver arbitrary bytes in arbitrary pieces.
func FuzzReceiveStream(f *testing.F) {
	for _, name := range []string{
		"send_hello", "send_frag1", "write_16", "rreq", "rresp", "rtr_write0",
		"term_ddp_tagged_badstag", "imm_data", "send_inv",
	} {
		f.Add(golden(f, name), byte(7), false)
		f.Add(append(golden(f, "rtr_write0"), golden(f, name)...), byte(3), true)
	}
	d := openDevice(f, Options{})
	queue, err := d.NewCompletionQueue(0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = queue.Close() })
	f.Fuzz(func(t *testing.T, stream []byte, piece byte, useCRC bool) {
		feed(t, d, queue.(*completionQueue), stream, int(piece)+1, useCRC)
	})
}

// feed makes a connection without a socket consume the stream. Its memory lies between guards that
// nothing may change.
func feed(t *testing.T, d *device, queue *completionQueue, stream []byte, piece int, useCRC bool) {
	const guard, size = 64, 4096
	all := bytes.Repeat([]byte{0xee}, guard+size+guard)
	domain, err := d.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	handle, err := domain.Register(memory.Wrap(all[guard:guard+size]), allRights)
	if err != nil {
		t.Fatal(err)
	}
	// STags are fixed, so that the fuzzer can learn them.
	region := handle.(*registration.Region)
	d.Table.Rekey(region, 0x11223300)

	c := connectionWithoutSocket(t, domain, queue, useCRC)
	c.reads.stag = 0xaabbcc00 - 1
	local := rdma.Segment{Key: region.LocalKey(), Length: 512}
	mustPost(t, c,
		rdma.SendRequest{Opcode: rdma.OpRead, Local: local}, rdma.ReceiveRequest{Local: local})
	for len(stream) > 0 && c.Phase == softrdma.PhaseOpen {
		n := min(piece, len(stream))
		c.process(stream[:n:n])
		stream = stream[n:]
	}
	c.Close()
	completions := make([]rdma.Completion, 16)
	if n := queue.Poll(completions); n < 1 || completions[n-1].Opcode != rdma.OpDisconnected {
		t.Fatalf("completions %+v", completions[:n])
	}
	if err := region.Deregister(); err != nil {
		t.Fatal(err)
	}
	if err := domain.Close(); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{0xee}, guard)
	if !bytes.Equal(all[:guard], want) || !bytes.Equal(all[guard+size:], want) {
		t.Fatal("bytes outside the region were changed")
	}
}

func connectionWithoutSocket(
	t testing.TB, domain rdma.ProtectionDomain, queue *completionQueue, useCRC bool,
) *connection {
	t.Helper()
	c, err := newConnection(queue.device, &rdma.ConnectionConfig{
		Domain: domain, Queue: queue,
		SendRequests: 4, ReceiveRequests: 4, InboundReads: 2, OutboundReads: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	e := handshakeResult{useCRC: useCRC}
	c.useCRC = useCRC
	c.responses, c.reads = fifo.New[readResponse](2), newReadRequester(2)
	c.ReadLimit = 2
	c.transmitter, c.receiver = newTransmitter(e), newReceiver(e)
	c.transmitter.measure(&c.socket)
	if err := c.Attach(); err != nil {
		t.Fatal(err)
	}
	queue.Activate()
	c.Join()
	return c
}

// mustPost posts a Read, which it treats as sent, and a receive.
func mustPost(t testing.TB, c *connection, read rdma.SendRequest, receive rdma.ReceiveRequest) {
	t.Helper()
	if err := c.PostReceive([]rdma.ReceiveRequest{receive}); err != nil {
		t.Fatal(err)
	}
	if err := c.PostSend([]rdma.SendRequest{read}); err != nil {
		t.Fatal(err)
	}
	if v := c.compose(); v != nil {
		t.Fatal(v.text)
	}
	c.transmitter.accepted = c.Sends.Next
	c.transmitter.batch.reset()
}
