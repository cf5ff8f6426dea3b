// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"bytes"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

var endTests = []conformanceTest{
	{"AnOrderlyEndIsNoErrorOnEitherSide", OrderlyClose, orderlyEnd},
	{"CloseFlushesEverythingInOrder", "", closeFlushes},
	{"AbortEndsTheConnectionOnBothSides", "", abort},
	{"ThePeersEndFlushesEverything", "", peerEnds},
	{"PostsAfterTheEndAreFlushed", "", postAfterEnd},
	{"CloseMayBeRepeated", "", closeTwice},
	{"WhatWasFlushedBeforeCloseArrives", SendsOutliveClose, messagesBeforeClose},
	{"TheEndOfAConnectionAffectsNoOther", "", endIsLocal},
}

func orderlyEnd(b *bench) {
	x, y := b.pair()
	x.conn.Close()
	x.awaitEnd()
	y.awaitEnd()
	if x.conn.Err() != nil || y.conn.Err() != nil {
		b.Errorf("Err is %v on the side that closed, %v at the peer", x.conn.Err(), y.conn.Err())
	}
}

// load posts requests that cannot complete: receives without messages, and Reads that the peer does
// not execute because nobody polls it.
func (e *endpoint) load(peer *endpoint) {
	e.bench.Helper()
	for i := range 5 {
		e.postReceive(uint64(10+i), 0, helloBytes)
	}
	e.post(e.transfer(rdma.OpRead, 1, peer.mem, 0, 4096))
	e.post(e.transfer(rdma.OpWrite, 2, peer.mem, 0, 4096), e.transfer(rdma.OpRead, 3, peer.mem, 0,
		4096))
}

// expectFlushed checks the completions of load.
func (e *endpoint) expectFlushed() {
	b := e.bench
	b.Helper()
	e.awaitEnd()
	var sends, receives []uint64
	for _, c := range e.await(8) {
		answered := c.Opcode != rdma.OpReceive && !b.has(AnswersNeedPolling)
		if c.Status == rdma.StatusSuccess && !answered {
			b.Errorf("%v %d completes with success", c.Opcode, c.ID)
		}
		if c.Opcode == rdma.OpReceive {
			receives = append(receives, c.ID)
		} else {
			sends = append(sends, c.ID)
		}
	}
	for i, id := range receives {
		if id != uint64(10+i) {
			b.Errorf("receives are flushed in the order %v", receives)
			break
		}
	}
	if len(sends) != 3 || sends[0] != 1 || sends[1] != 2 || sends[2] != 3 {
		b.Errorf("send requests are flushed in the order %v", sends)
	}
}

func closeFlushes(b *bench) {
	x, y := b.pair()
	x.load(y)
	x.conn.Close()
	b.endpoints = remove(b.endpoints, y) // the flush must not depend on the peer
	x.expectFlushed()
	b.endpoints = append(b.endpoints, y)
	if x.conn.Err() != nil {
		b.Errorf("Err is %v after Close", x.conn.Err())
	}
	y.awaitEnd()
}

func abort(b *bench) {
	x, y := b.pair()
	x.load(y)
	b.endpoints = remove(b.endpoints, y)
	done := make(chan struct{})
	go func() {
		x.conn.Abort()
		close(done)
	}()
	x.expectFlushed()
	<-done
	b.endpoints = append(b.endpoints, y)
	y.awaitEnd()
	if x.conn.Err() == nil {
		b.Error("Err is nil after Abort")
	}
}

func peerEnds(b *bench) {
	x, y := b.pair()
	x.load(y)
	y.conn.Close()
	x.expectFlushed()
}

func postAfterEnd(b *bench) {
	x, y := b.pair()
	x.conn.Close()
	x.postReceive(1, 0, helloBytes)
	x.post(x.transfer(rdma.OpWrite, 2, y.mem, 0, 64), x.sendRequest(3, 0, 64))
	for _, c := range x.await(3) {
		if c.Status != rdma.StatusFlushed {
			b.Errorf("%v completes as %v", c.Opcode, c.Status)
		}
	}
	x.awaitEnd()
}

func closeTwice(b *bench) {
	x, _ := b.pair()
	x.conn.Close()
	x.conn.Close()
	x.awaitEnd()
	x.conn.Close()
	x.conn.Abort()
	x.conn.Flush()
	b.settle()
	if x.disconnects != 1 {
		b.Errorf("%d completions with OpDisconnected", x.disconnects)
	}
}

// messagesBeforeClose closes right after sending, while messages from the peer are still unread.
func messagesBeforeClose(b *bench) {
	for range 20 {
		x, y := b.pair()
		for i := range 4 {
			y.postReceive(uint64(i), i*4096, 4096)
			x.postReceive(uint64(i), memoryBytes/2, 4096)
		}
		y.send(50, 0, 4096)
		for i := range 4 {
			x.send(uint64(i), i*4096, 4096)
		}
		for range 4 {
			x.conn.Flush()
		}
		for len(x.completions) < 4 {
			x.poll()
		}
		x.conn.Close()
		got := 0
		b.drive("the last message", func() bool {
			for _, c := range y.completions {
				if c.Opcode == rdma.OpReceive && c.Status == rdma.StatusSuccess {
					got++
				}
			}
			y.completions = nil
			return got == 4 || y.disconnects > 0
		})
		if got != 4 || !bytes.Equal(x.mem.bytes[:4*4096], y.mem.bytes[:4*4096]) {
			b.Fatalf("%d of 4 messages arrived", got)
		}
	}
}

func endIsLocal(b *bench) {
	shared, y, z := b.newInitiator(), b.newResponder(), b.newResponder()
	b.connect(shared, y)
	first := shared.conn
	z.config.Receives = []rdma.ReceiveRequest{z.receiveRequest(1, 0, helloBytes)}
	b.connect(shared, z)
	first.Close()
	y.awaitEnd()
	shared.send(2, 0, helloBytes)
	z.awaitOne(rdma.OpReceive, 1)
	shared.awaitOne(rdma.OpSend, 2)
}
