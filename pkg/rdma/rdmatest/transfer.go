package rdmatest

import (
	"bytes"
	"errors"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var transferTests = []conformanceTest{
	{"WritesOfAllSizesLandExactly", "", writeSizes},
	{"DataIsPlacedBeforeTheSendThatFollowsIt", "", dataBeforeAnswer},
	{"WritesToZeroBytesNeedNoKey", "", emptyWrite},
	{"EverythingMovesAtOnce", "", everything},
}

// writeSizes writes at odd offsets and looks at the bytes around.
func writeSizes(b *bench) {
	x, y := b.pair()
	for i, size := range messageSizes {
		offset := 101 + i
		fill(x.mem.bytes)
		want := bytes.Clone(y.mem.bytes)
		copy(want[offset:offset+size], x.mem.bytes[offset:])
		y.postReceive(1, memoryBytes-helloBytes, 0)
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
	x, y := b.pair()
	for round := range 300 {
		size := messageSizes[round%len(messageSizes)]
		fill(x.mem.bytes[helloBytes : helloBytes+size])
		y.postReceive(1, 0, helloBytes)
		x.post(x.transfer(rdma.OpWrite, 2, y.mem, helloBytes, size), x.sendRequest(3, 0, helloBytes))
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

// everything keeps all kinds of requests going in both directions.
func everything(b *bench) {
	x, y := b.pair()
	const size, slots = 100_000, 8
	ends := []*end{x, y}
	for round := range 20 {
		for _, e := range ends {
			for slot := range slots {
				e.postReceive(uint64(slot), (2*slots+slot)*size, size)
			}
			fill(e.mem.bytes[:slots*size])
		}
		want := [2][]byte{bytes.Clone(x.mem.bytes[:slots*size]), bytes.Clone(y.mem.bytes[:slots*size])}
		for slot := range slots {
			for i, e := range ends {
				peer := ends[1-i].mem
				local := e.segment(slot*size, size)
				e.post(
					peer.remote(rdma.SendRequest{ID: 1, Opcode: rdma.OpWrite, Local: local, Silent: true}, (slots+slot)*size),
					rdma.SendRequest{ID: 2, Opcode: rdma.OpSend, Local: local},
				)
				if slot < readDepth {
					e.post(peer.remote(rdma.SendRequest{ID: 3, Opcode: rdma.OpRead, Local: e.segment((3*slots+slot)*size, size)}, slot*size))
				}
			}
		}
		for i, e := range ends {
			e.await(2*slots + readDepth)
			theirs := want[1-i]
			if !bytes.Equal(e.mem.bytes[slots*size:2*slots*size], theirs) || !bytes.Equal(e.mem.bytes[2*slots*size:3*slots*size], theirs) ||
				!bytes.Equal(e.mem.bytes[3*slots*size:(3*slots+readDepth)*size], theirs[:readDepth*size]) {
				b.Fatalf("round %d: data differs", round)
			}
		}
	}
}

var readTests = []conformanceTest{
	{"ReadsOfAllSizesBringTheData", "", readSizes},
	{"AReadSeesTheWritesBeforeIt", "", readAfterWrite},
	{"ReadsBeyondTheReadDepthHaveToWait", ReadDepthPerPost, readDepthLimit},
	{"AWaitingReadDoesNotHoldUpMessages", "", readHoldsNothing},
}

func readSizes(b *bench) {
	x, y := b.pair()
	for i, size := range messageSizes {
		offset := 77 + i
		fill(y.mem.bytes)
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
	x, y := b.pair()
	const size = 200_000
	for range 20 {
		fill(x.mem.bytes[:size])
		back := y.mem.remote(rdma.SendRequest{ID: 2, Opcode: rdma.OpRead, Local: x.segment(size, size)}, 0)
		x.post(x.transfer(rdma.OpWrite, 1, y.mem, 0, size), back)
		x.await(2)
		if !bytes.Equal(x.mem.bytes[:size], x.mem.bytes[size:2*size]) {
			b.Fatal("the Read brought older data")
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
	x, y := b.pair()
	y.postReceive(3, 0, helloBytes)
	x.post(x.transfer(rdma.OpRead, 1, y.mem, 0, 1<<20))
	x.send(2, 0, helloBytes)
	y.awaitOne(rdma.OpReceive, 3)
	x.awaitOne(rdma.OpRead, 1)
	x.awaitOne(rdma.OpSend, 2)
}
