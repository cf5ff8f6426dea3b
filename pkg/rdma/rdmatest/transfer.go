// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"bytes"
	"errors"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// messageSizes lie around the limits of headers, padding, segments, staging buffers, and socket
// buffers.
var messageSizes = []int{
	0, 1, 2, 3, 4, 64, 255, 256, 257, 1400, 1428, 4096, 8191, 8192,
	65456, 65457, 65536, 131072, 1<<20 + 1,
}

var messageTests = []conformanceTest{
	{"ReceivesPostedAtSetUpTakeTheFirstMessages", "", firstMessages},
	{"TheResponderMaySendOnceItHasReceived", "", responderAnswers},
	{"MessagesOfAllSizesArriveWhole", "", messageSizesArrive},
	{"MessagesArriveInOrder", "", messagesInOrder},
	{"MessagesCrossInBothDirections", "", messagesCross},
	{"AnUnflushedRequestStartsWhenTheQueueIsPolled", "", unflushed},
	{"AMessageThatIsTooLongEndsTheConnection", "", tooLong},
	{"AMessageWithoutReceiveEndsTheConnection", ReceiverNotReady, noReceive},
}

func firstMessages(b *bench) {
	x, y := b.newInitiator(), b.newResponder()
	for i := range 3 {
		y.config.Receives = append(y.config.Receives, y.receiveRequest(uint64(i), i*helloBytes,
			helloBytes))
	}
	b.connect(x, y)
	for i := range 3 {
		x.send(uint64(i), i*helloBytes, helloBytes)
	}
	for i := range 3 {
		y.awaitOne(rdma.OpReceive, uint64(i))
	}
	if !bytes.Equal(x.mem.bytes[:3*helloBytes], y.mem.bytes[:3*helloBytes]) {
		b.Error("wrong messages")
	}
}

func responderAnswers(b *bench) {
	x, y := b.pair()
	x.postReceive(1, 0, helloBytes)
	y.send(2, 0, helloBytes)
	x.awaitOne(rdma.OpReceive, 1)
	y.awaitOne(rdma.OpSend, 2)
}

func messageSizesArrive(b *bench) {
	x, y := b.pairOf(2 << 20)
	for i, size := range messageSizes {
		b.fill(x.mem.bytes[:size])
		beyond := y.mem.bytes[size]
		y.postReceive(uint64(i), 0, size)
		x.send(uint64(i), 0, size)
		if c := y.awaitOne(rdma.OpReceive, uint64(i)); int(c.Length) != size {
			b.Errorf("message of %d bytes arrived with %d", size, c.Length)
		}
		x.awaitOne(rdma.OpSend, uint64(i))
		if !bytes.Equal(x.mem.bytes[:size], y.mem.bytes[:size]) || y.mem.bytes[size] != beyond {
			b.Errorf("message of %d bytes arrived with other content", size)
		}
	}
}

func messagesInOrder(b *bench) {
	x, y := b.pair()
	const rounds = 40
	for round := range rounds {
		for i := range requests {
			y.postReceive(uint64(i), i*helloBytes, helloBytes)
		}
		b.fill(x.mem.bytes[:requests*helloBytes])
		for i := range requests {
			x.send(uint64(i), i*helloBytes, helloBytes)
		}
		for i := range requests {
			y.awaitOne(rdma.OpReceive, uint64(i))
			x.awaitOne(rdma.OpSend, uint64(i))
		}
		if !bytes.Equal(x.mem.bytes[:requests*helloBytes], y.mem.bytes[:requests*helloBytes]) {
			b.Fatalf("round %d: messages differ", round)
		}
	}
}

func messagesCross(b *bench) {
	const size = 256 << 10
	const count = 8 // more than socket buffers hold, in each direction
	x, y := b.pairOf(2 * count * size)
	for i := range count {
		x.postReceive(uint64(i), (count+i)*size, size)
		y.postReceive(uint64(i), (count+i)*size, size)
	}
	for i := range count {
		x.send(uint64(100+i), i*size, size)
		y.send(uint64(100+i), i*size, size)
	}
	x.await(2 * count)
	y.await(2 * count)
	if !bytes.Equal(x.mem.bytes[:count*size], y.mem.bytes[count*size:2*count*size]) ||
		!bytes.Equal(y.mem.bytes[:count*size], x.mem.bytes[count*size:2*count*size]) {
		b.Error("messages differ")
	}
}

func unflushed(b *bench) {
	x, y := b.pair()
	y.postReceive(1, 0, helloBytes)
	if err := x.conn.PostSend([]rdma.SendRequest{x.sendRequest(2, 0, helloBytes)}); err != nil {
		b.Fatal(err)
	}
	y.awaitOne(rdma.OpReceive, 1)
	x.awaitOne(rdma.OpSend, 2)
}

func tooLong(b *bench) {
	x, y := b.pair()
	beyond := y.mem.bytes[helloBytes]
	y.postReceive(1, 0, helloBytes)
	y.postReceive(2, 0, helloBytes)
	x.send(3, 0, helloBytes+1)
	c := y.await(2)
	named := c[0].Status == rdma.StatusLocalLength || !b.has(LengthStatus) &&
		c[0].Status != rdma.StatusSuccess
	if c[0].ID != 1 || !named || c[1].Status != rdma.StatusFlushed {
		b.Errorf("receives complete as %v and %v", c[0].Status, c[1].Status)
	}
	x.awaitEnd()
	y.awaitEnd()
	if y.conn.Err() == nil || x.conn.Err() == nil {
		b.Errorf("Err is %v at the sender, %v at the receiver", x.conn.Err(), y.conn.Err())
	}
	if y.mem.bytes[helloBytes] != beyond {
		b.Error("the memory behind the receive was written")
	}
}

func noReceive(b *bench) {
	x, y := b.pair()
	x.send(1, 0, helloBytes)
	x.awaitEnd()
	y.awaitEnd()
	if y.conn.Err() == nil || x.conn.Err() == nil {
		b.Errorf("Err is %v at the sender, %v at the receiver", x.conn.Err(), y.conn.Err())
	}
}

var postTests = []conformanceTest{
	{"CompletionsComeInTheOrderOfPosting", "", completionOrder},
	{"SilentRequestsCompleteSilently", "", silent},
	{"SlotsOfSilentRequestsAreFreeAfterTheChain", "", silentSlots},
	{"PostingMoreThanFitsPostsNothing", "", allOrNone},
	{"SegmentsOutsideOfMemoryAreRejected", "", badSegments},
}

func completionOrder(b *bench) {
	x, y := b.pairOf(256 << 10)
	x.post(
		x.transfer(rdma.OpWrite, 1, y.mem, 0, 4096),
		x.transfer(rdma.OpRead, 2, y.mem, 8192, 4096),
		x.transfer(rdma.OpWrite, 3, y.mem, 0, 0),
		x.transfer(rdma.OpRead, 4, y.mem, 16384, 128<<10),
		x.transfer(rdma.OpWrite, 5, y.mem, 4096, 64),
	)
	for id, opcode := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpWrite, rdma.OpRead,
		rdma.OpWrite} {
		x.awaitOne(opcode, uint64(id+1))
	}
}

func silent(b *bench) {
	x, y := b.pair()
	y.postReceive(3, 0, helloBytes)
	write := x.transfer(rdma.OpWrite, 1, y.mem, 4096, 4096)
	write.Silent = true
	x.post(write, x.sendRequest(2, 0, helloBytes))
	y.awaitOne(rdma.OpReceive, 3)
	x.awaitOne(rdma.OpSend, 2)
	x.expectNone()
}

func silentSlots(b *bench) {
	x, y := b.pair()
	chain := make([]rdma.SendRequest, requests)
	for i := range chain {
		chain[i] = x.transfer(rdma.OpWrite, uint64(i), y.mem, i*64, 64)
		chain[i].Silent = i < requests-1
	}
	for range 10 {
		x.post(chain...) // needs all slots
		x.awaitOne(rdma.OpWrite, requests-1)
	}
}

func allOrNone(b *bench) {
	x, y := b.pair()
	batch := make([]rdma.SendRequest, requests)
	for i := range batch {
		batch[i] = x.transfer(rdma.OpWrite, uint64(i), y.mem, 0, 64)
	}
	if err := x.conn.PostSend(append(batch, batch[0])); !errors.Is(err, status.Full) {
		b.Errorf("one request too many: %v", err)
	}
	spoilt := append(batch[:2:2], rdma.SendRequest{Opcode: rdma.OpReceive})
	if err := x.conn.PostSend(spoilt); !errors.Is(err, status.InvalidValue) {
		b.Errorf("an invalid opcode: %v", err)
	}
	x.post(batch...)
	for i := range batch {
		x.awaitOne(rdma.OpWrite, uint64(i))
	}
	receives := make([]rdma.ReceiveRequest, requests+1)
	for i := range receives {
		receives[i] = x.receiveRequest(uint64(i), 0, 64)
	}
	if err := x.conn.PostReceive(receives); !errors.Is(err, status.Full) {
		b.Errorf("one receive too many: %v", err)
	}
	if err := x.conn.PostReceive(receives[:requests]); err != nil {
		b.Errorf("as many receives as agreed: %v", err)
	}
}

func badSegments(b *bench) {
	x, y := b.pair()
	for name, local := range map[string]rdma.Segment{
		"unknown key":     {Key: x.mem.LocalKey() + 1, Address: x.mem.Base(), Length: 1},
		"another domain":  y.segment(0, 1),
		"behind the end":  x.segment(memoryBytes, 1),
		"across the end":  x.segment(memoryBytes-1, 2),
		"wrapped address": {Key: x.mem.LocalKey(), Address: ^uint64(0), Length: 2},
	} {
		send := rdma.SendRequest{Opcode: rdma.OpSend, Local: local}
		if err := x.conn.PostSend([]rdma.SendRequest{send}); !errors.Is(err, status.InvalidValue) {
			b.Errorf("%s: PostSend returns %v", name, err)
		}
		if err := x.conn.PostReceive([]rdma.ReceiveRequest{{Local: local}}); !errors.Is(err,
			status.InvalidValue) {
			b.Errorf("%s: PostReceive returns %v", name, err)
		}
	}
	x.expectNone()
}

var transferTests = []conformanceTest{
	{"WritesOfAllSizesLandExactly", "", writeSizes},
	{"DataIsPlacedBeforeTheSendThatFollowsIt", "", dataBeforeAnswer},
	{"WritesToZeroBytesNeedNoKey", "", emptyWrite},
	{"EverythingMovesAtOnce", "", everything},
}

// sizesBytes is the size of memory with room for the largest of messageSizes, and around it.
const sizesBytes = 1<<20 + 8192

// writeSizes writes at odd offsets and checks the bytes around the range.
func writeSizes(b *bench) {
	x, y := b.pairOf(sizesBytes)
	for i, size := range messageSizes {
		offset := 101 + i
		b.fill(x.mem.bytes)
		want := bytes.Clone(y.mem.bytes)
		copy(want[offset:offset+size], x.mem.bytes[offset:])
		y.postReceive(1, sizesBytes-helloBytes, 0)
		x.post(x.transfer(rdma.OpWrite, 2, y.mem, offset, size), x.sendRequest(3, 0, 0))
		y.awaitOne(rdma.OpReceive, 1)
		x.awaitOne(rdma.OpWrite, 2)
		x.awaitOne(rdma.OpSend, 3)
		if !bytes.Equal(y.mem.bytes, want) {
			b.Errorf("memory differs after a Write of %d bytes at %d", size, offset)
		}
	}
}

func dataBeforeAnswer(b *bench) {
	x, y := b.pairOf(sizesBytes)
	for round := range 300 {
		size := messageSizes[round%len(messageSizes)]
		b.fill(x.mem.bytes[helloBytes : helloBytes+size])
		y.postReceive(1, 0, helloBytes)
		x.post(x.transfer(rdma.OpWrite, 2, y.mem, helloBytes, size),
			x.sendRequest(3, 0, helloBytes))
		y.awaitOne(rdma.OpReceive, 1)
		if !bytes.Equal(x.mem.bytes[:helloBytes+size], y.mem.bytes[:helloBytes+size]) {
			b.Fatalf("round %d: the message overtook %d bytes of data", round, size)
		}
		x.await(2)
	}
}

func emptyWrite(b *bench) {
	x, y := b.pair()
	y.postReceive(1, 0, helloBytes)
	x.post(rdma.SendRequest{ID: 2, Opcode: rdma.OpWrite}, x.sendRequest(3, 0, helloBytes))
	y.awaitOne(rdma.OpReceive, 1)
	x.await(2)
}

// everything keeps requests of all kinds in flight in both directions.
func everything(b *bench) {
	const size, slots = 100_000, 8
	x, y := b.pairOf((3*slots + readDepth) * size)
	ends := []*endpoint{x, y}
	for round := range 20 {
		for _, e := range ends {
			for slot := range slots {
				e.postReceive(uint64(slot), (2*slots+slot)*size, size)
			}
			b.fill(e.mem.bytes[:slots*size])
		}
		want := [2][]byte{bytes.Clone(x.mem.bytes[:slots*size]),
			bytes.Clone(y.mem.bytes[:slots*size])}
		for slot := range slots {
			for i, e := range ends {
				peer := ends[1-i].mem
				local := e.segment(slot*size, size)
				e.post(
					peer.remote(rdma.SendRequest{ID: 1, Opcode: rdma.OpWrite, Local: local,
						Silent: true},
						(slots+slot)*size),
					rdma.SendRequest{ID: 2, Opcode: rdma.OpSend, Local: local},
				)
				if slot < readDepth {
					back := rdma.SendRequest{ID: 3, Opcode: rdma.OpRead,
						Local: e.segment((3*slots+slot)*size, size)}
					e.post(peer.remote(back, slot*size))
				}
			}
		}
		for i, e := range ends {
			e.await(2*slots + readDepth)
			theirs := want[1-i]
			if !bytes.Equal(e.mem.bytes[slots*size:2*slots*size], theirs) ||
				!bytes.Equal(e.mem.bytes[2*slots*size:3*slots*size], theirs) ||
				!bytes.Equal(e.mem.bytes[3*slots*size:(3*slots+readDepth)*size],
					theirs[:readDepth*size]) {
				b.Fatalf("round %d: data differs", round)
			}
		}
	}
}

var readTests = []conformanceTest{
	{"ReadsOfAllSizesReturnTheData", "", readSizes},
	{"AReadSeesTheWritesBeforeIt", "", readAfterWrite},
	{"ReadsBeyondTheReadDepthHaveToWait", ReadDepthPerPost, readDepthLimit},
	{"AWaitingReadDoesNotHoldUpMessages", "", readHoldsNothing},
}

func readSizes(b *bench) {
	x, y := b.pairOf(sizesBytes)
	for i, size := range messageSizes {
		offset := 77 + i
		b.fill(y.mem.bytes)
		want := bytes.Clone(x.mem.bytes)
		copy(want[offset:offset+size], y.mem.bytes[offset:])
		x.post(x.transfer(rdma.OpRead, 1, y.mem, offset, size))
		x.awaitOne(rdma.OpRead, 1)
		if !bytes.Equal(x.mem.bytes, want) {
			b.Errorf("memory differs after a Read of %d bytes at %d", size, offset)
		}
	}
}

func readAfterWrite(b *bench) {
	const size = 200_000
	x, y := b.pairOf(2 * size)
	for range 20 {
		b.fill(x.mem.bytes[:size])
		back := y.mem.remote(rdma.SendRequest{ID: 2, Opcode: rdma.OpRead, Local: x.segment(size,
			size)}, 0)
		x.post(x.transfer(rdma.OpWrite, 1, y.mem, 0, size), back)
		x.await(2)
		if !bytes.Equal(x.mem.bytes[:size], x.mem.bytes[size:2*size]) {
			b.Fatal("the Read returned data from before the Write")
		}
	}
}

func readDepthLimit(b *bench) {
	x, y := b.pair()
	for range 5 {
		for i := range readDepth {
			x.post(x.transfer(rdma.OpRead, uint64(i), y.mem, i*4096, 4096))
		}
		one := []rdma.SendRequest{x.transfer(rdma.OpRead, 99, y.mem, 0, 1)}
		if err := x.conn.PostSend(one); !errors.Is(err, status.Again) {
			b.Errorf("one Read too many: %v", err)
		}
		for i := range readDepth {
			x.awaitOne(rdma.OpRead, uint64(i))
		}
	}
}

func readHoldsNothing(b *bench) {
	x, y := b.pairOf(1 << 20)
	y.postReceive(3, 0, helloBytes)
	x.post(x.transfer(rdma.OpRead, 1, y.mem, 0, 1<<20))
	x.send(2, 0, helloBytes)
	y.awaitOne(rdma.OpReceive, 3)
	x.awaitOne(rdma.OpRead, 1)
	x.awaitOne(rdma.OpSend, 2)
}
