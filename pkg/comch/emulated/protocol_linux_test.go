// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestProtocolViolationEndsTheConnection(t *testing.T) {
	fields := func(values ...uint32) (f [maxFields]uint32) {
		copy(f[:], values)
		return f
	}
	cases := map[string][]frame{
		"hello after the handshake": {{kind: frameHello}},
		"welcome from a client":     {{kind: frameWelcome}},
		"message beyond the limit": {{kind: frameMessage,
			body: make([]byte, testTerms.maxMessageSize+1)}},
		"messages without credit": {{kind: frameMessage}, {kind: frameMessage},
			{kind: frameMessage}, {kind: frameMessage}, {kind: frameMessage}},
		"excess credit":                    {{kind: frameCredit, fields: fields(1)}},
		"huge credit":                      {{kind: frameCredit, fields: fields(0xffffffff)}},
		"consumer with an id of this side": {{kind: frameOpenConsumer, fields: fields(2, 1, 1)}},
		"consumer with id 0":               {{kind: frameOpenConsumer, fields: fields(0, 1, 1)}},
		"producer with an id of this side": {{kind: frameOpenProducer, fields: fields(2, 1)}},
		"export with an id of this side":   {{kind: frameExport, fields: fields(2, 1, 1)}},
		"export without memory":            {{kind: frameExport, fields: fields(1, 1, 1)}},
	}
	for name, frames := range cases {
		t.Run(name, func(t *testing.T) {
			c, peer := newServedConnection(t, serverRole)
			for i := range frames {
				if err := peer.write(&frames[i], descriptors{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := awaitEnd(t, c); !isViolation(err) {
				t.Errorf("the connection ended with %v", err)
			}
			wantGoodbye(t, peer)
		})
	}
}

// wantGoodbye checks that the peer receives a goodbye with the reason.
func wantGoodbye(t *testing.T, peer *frameSocket) {
	t.Helper()
	for {
		f, _, err := peer.read()
		if err != nil {
			t.Errorf("no goodbye: %v", err)
			return
		}
		if f.kind == frameGoodbye {
			if f.fields[0] != uint32(status.Unexpected) || len(f.body) == 0 {
				t.Errorf("goodbye is %v %q", f.fields, f.body)
			}
			return
		}
	}
}

func TestInvalidRequestsAreRejected(t *testing.T) {
	memfd := func(t *testing.T) int { return duplicateOf(t, allocate(t, 64).Descriptor()) }
	button := func(t *testing.T) int {
		bell, button, err := newDoorbell(new(cleanupQueue))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = bell.close() })
		return button
	}
	pipe := func(t *testing.T) int {
		reading, writing, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = reading.Close(); _ = writing.Close() })
		return duplicateOf(t, int(reading.Fd()))
	}
	none := func(*testing.T) int { return -1 }
	rights := uint32(memory.PCIRead)
	cases := map[string]struct {
		kind       frameKind
		fields     [maxFields]uint32
		descriptor func(*testing.T) int
		code       status.Code
	}{
		"consumer without receives": {frameOpenConsumer, [maxFields]uint32{1, 0, 1}, button,
			status.InvalidValue},
		"consumer with too many receives": {frameOpenConsumer, [maxFields]uint32{1, 1 << 31, 1},
			button, status.InvalidValue},
		"consumer with too much memory": {frameOpenConsumer, [maxFields]uint32{1, 1, 0xffffffff},
			button, status.InvalidValue},
		"consumer without doorbell": {frameOpenConsumer, [maxFields]uint32{1, 1, 1}, none,
			status.InvalidValue},
		"consumer with a pipe": {frameOpenConsumer, [maxFields]uint32{1, 1, 1}, pipe,
			status.InvalidValue},
		"consumer with a file": {frameOpenConsumer, [maxFields]uint32{1, 1, 1}, memfd,
			status.InvalidValue},
		"producer without a consumer": {frameOpenProducer, [maxFields]uint32{1, 2}, button,
			status.NotFound},
		"export of a pipe": {frameExport, [maxFields]uint32{1, rights, 64}, pipe,
			status.InvalidValue},
		"export without rights": {frameExport, [maxFields]uint32{1, 0, 64}, memfd,
			status.InvalidValue},
		"export with unknown rights": {frameExport, [maxFields]uint32{1, 1 << 30, 64}, memfd,
			status.InvalidValue},
		"empty export": {frameExport, [maxFields]uint32{1, rights, 0}, memfd,
			status.InvalidValue},
		"export beyond all limits": {frameExport, [maxFields]uint32{1, rights, 0, 1 << 31},
			memfd, status.TooBig},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			connection, peer := newServedConnection(t, serverRole)
			var passed descriptors
			if descriptor := c.descriptor(t); descriptor >= 0 {
				passed.add(descriptor)
			}
			if err := peer.write(&frame{kind: c.kind, fields: c.fields}, passed); err != nil {
				t.Fatal(err)
			}
			passed.closeAll()
			reply, _, err := peer.read()
			if err != nil {
				t.Fatal(err)
			}
			if reply.kind != frameReply || reply.fields[0] != 1 ||
				reply.fields[1] != uint32(c.code) {
				t.Errorf("reply is %v %v %q, want code %v",
					reply.kind, reply.fields, reply.body, c.code)
			}
			if connection.Err() != nil {
				t.Errorf("the connection ended: %v", connection.Err())
			}
		})
	}
}

func TestTooManyDescriptorsEndTheConnection(t *testing.T) {
	for _, count := range []int{3, 200} {
		c, peer := newServedConnection(t, serverRole)
		list := make([]int, count)
		for i := range list {
			list[i] = 0
		}
		packet := (&frame{kind: frameCloseConsumer}).append(nil)
		if err := peer.socket.WritePacket(packet, list); err != nil {
			t.Fatal(err)
		}
		if err := awaitEnd(t, c); !isViolation(err) {
			t.Errorf("the connection ended with %v", err)
		}
	}
}

func TestUnexpectedDescriptorsEndTheConnection(t *testing.T) {
	c, peer := newServedConnection(t, serverRole)
	packet := (&frame{kind: frameMessage}).append(nil)
	if err := peer.socket.WritePacket(packet, []int{0}); err != nil {
		t.Fatal(err)
	}
	if err := awaitEnd(t, c); !isViolation(err) {
		t.Errorf("the connection ended with %v", err)
	}
}

func TestRequestEndsWithItsContext(t *testing.T) {
	c, _ := newServedConnection(t, clientRole)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := c.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if consumers, _ := c.local.count(); consumers != 0 {
		t.Errorf("%d consumers remain", consumers)
	}
}

func TestWrongRingMemoryIsRejected(t *testing.T) {
	layout, err := planRing(comch.ConsumerConfig{Receives: 1, MemorySize: 1}, defaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	unsealed, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDescriptor(unsealed)
	if err := unix.Ftruncate(unsealed, int64(layout.total)); err != nil {
		t.Fatal(err)
	}
	cases := map[string]int{
		"none":      -1,
		"too small": allocate(t, uint64(layout.total)-1).Descriptor(),
		"too large": allocate(t, 2*uint64(layout.total)).Descriptor(),
		"unsealed":  unsealed,
		"terminal":  0,
	}
	for name, descriptor := range cases {
		t.Run(name, func(t *testing.T) {
			c, peer := newServedConnection(t, clientRole)
			go replyWith(peer, descriptor)
			_, err := c.NewConsumer(context.Background(),
				comch.ConsumerConfig{Receives: 1, MemorySize: 1})
			if err == nil {
				t.Error("the consumer was created")
			}
		})
	}
}

// replyWith accepts the next request, with a copy of descriptor in the reply.
func replyWith(peer *frameSocket, descriptor int) {
	f, received, err := peer.read()
	received.closeAll()
	if err != nil {
		return
	}
	var passed descriptors
	if descriptor >= 0 {
		passed.add(descriptor)
	}
	_ = peer.write(&frame{kind: frameReply, fields: [maxFields]uint32{f.fields[0]}}, passed)
}

func TestPeerThatNeverReadsIsDisconnected(t *testing.T) {
	c, peer := newServedConnection(t, serverRole)
	request := frame{kind: frameOpenProducer, fields: [maxFields]uint32{1, 2}}
	for c.Err() == nil {
		if err := peer.write(&request, descriptors{}); err != nil {
			break
		}
	}
	if err := awaitEnd(t, c); !isViolation(err) {
		t.Errorf("the connection ended with %v", err)
	}
}

// TestQueuedMessagesAreReadAfterAFailedWrite lets the peer close its socket after sending messages,
// and lets this side notice it first when writing.
func TestQueuedMessagesAreReadAfterAFailedWrite(t *testing.T) {
	c, peer := newHalfConnection(t, serverRole)
	for range testTerms.receiveQueue {
		if err := peer.write(&frame{kind: frameMessage, body: []byte("last")},
			descriptors{}); err != nil {
			t.Fatal(err)
		}
	}
	peer.close()
	credit := frame{kind: frameCredit, fields: [maxFields]uint32{1}}
	c.enqueue(credit, descriptors{})
	c.running.Go(c.writeFrames)
	for !isClosed(c.writes) {
		runtime.Gosched() // until the writer notices
	}
	if c.enqueue(credit, descriptors{}) || c.Err() != nil {
		t.Fatalf("the connection ended after a failed write: %v", c.Err())
	}
	if err := c.Send(context.Background(), []byte("x")); !errors.Is(err, status.NotConnected) {
		t.Errorf("send: %v", err)
	}
	c.running.Go(c.readFrames)
	if err := awaitEnd(t, c); !errors.Is(err, status.ConnectionReset) {
		t.Errorf("the connection ended with %v", err)
	}
	for range testTerms.receiveQueue {
		if message, err := c.Receive(context.Background()); err != nil ||
			string(message) != "last" {
			t.Errorf("received %q, %v", message, err)
		}
	}
}

func isClosed(o *writeQueue) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

func TestRejectedConsumerReturnsItsRingMemory(t *testing.T) {
	c, peer := newHalfConnection(t, serverRole)
	defer peer.close()
	open := frame{kind: frameOpenConsumer, fields: [maxFields]uint32{1, 16, 4096, 32}}
	var charged holdings
	for range 2 { // the second has the same id
		_, button := newTestDoorbell(t)
		received := descriptors{list: []int{button}}
		_ = c.account.charge(holdings{descriptors: 1})
		err := c.handle(&open, &received)
		if charged.ringBytes == 0 {
			charged = c.account.current()
		} else if !isViolation(err) {
			t.Errorf("a consumer with the same id: %v", err)
		}
	}
	c.cleanup.waitFor(0, testkit.Patience, nil)
	if held := c.account.current(); charged.ringBytes == 0 || held != charged {
		t.Errorf("%+v is charged, want %+v", held, charged)
	}
	c.Abort()
	c.awaitGoroutines(time.Minute)
	c.pool.lingering.freeAll(c.peer.UID, testkit.Patience, nil)
	c.cleanup.waitFor(0, testkit.Patience, nil)
	if c.account.current().ringBytes != 0 {
		t.Errorf("%d bytes of ring memory are charged after the end", c.account.current().ringBytes)
	}
}

func TestPeerThatExitsResetsTheConnection(t *testing.T) {
	c, peer := newServedConnection(t, serverRole)
	peer.close()
	if err := awaitEnd(t, c); !errors.Is(err, status.ConnectionReset) || errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
}
