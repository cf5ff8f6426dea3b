package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// guard is what the offered memory holds before perftest writes there, and
// guardBytes of it stay behind.
const (
	guard      = 0xa5
	guardBytes = 4096
)

// sendLatency sends messages to and fro. perftest sends the same each time.
func (p *perftest) sendLatency(ctx context.Context) error {
	if _, err := p.prepare(ctx); err != nil {
		return err
	}
	pattern(p.own.bytes, 0)
	if err := p.receiveNext(); err != nil {
		return err
	}
	if _, err := p.swapKeys(ctx, "receives posted"); err != nil {
		return err
	}
	var first []byte
	for round := range p.rounds {
		message, err := p.pingPong(ctx, round)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if first == nil {
			first = message
		}
		if !bytes.Equal(message, first) {
			return fmt.Errorf("round %d brought another message than the first", round)
		}
	}
	_, err := p.swapKeys(ctx, "end")
	return err
}

// pingPong sends a message and returns the one received. The client sends
// first.
func (p *perftest) pingPong(ctx context.Context, round int) ([]byte, error) {
	send := rdma.SendRequest{Opcode: rdma.OpSend, Local: p.own.segment(0, p.size)}
	if !p.accepts {
		if err := p.do(ctx, &p.data, send); err != nil {
			return nil, err
		}
	}
	if err := p.until(ctx, "a message", func() bool { return p.data.completed[rdma.OpReceive] > round }); err != nil {
		return nil, err
	}
	if p.received != uint32(p.size) {
		return nil, fmt.Errorf("a message of %d bytes instead of %d", p.received, p.size)
	}
	message := bytes.Clone(p.offered.bytes[:p.size])
	if err := p.wasOverwritten(); err != nil {
		return nil, err
	}
	if round < p.rounds-1 {
		if err := p.receiveNext(); err != nil {
			return nil, err
		}
	}
	if p.accepts {
		return message, p.do(ctx, &p.data, send)
	}
	return message, nil
}

func (p *perftest) receiveNext() error {
	fill(p.offered.bytes)
	return p.data.PostReceive([]rdma.ReceiveRequest{{Local: p.offered.segment(0, p.size)}})
}

// writeBandwidth writes to the server's memory, or is written to.
func (p *perftest) writeBandwidth(ctx context.Context) error {
	fill(p.offered.bytes)
	keys, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	if !p.accepts {
		pattern(p.own.bytes, 0)
		if err := p.repeat(ctx, p.remote(rdma.OpWrite, keys.key, keys.address), sendRequests); err != nil {
			return err
		}
	}
	if err := p.report(ctx); err != nil {
		return err
	}
	if p.accepts {
		// The report may be here before the last Write, on the other connection.
		last := p.offered.bytes[p.size-8 : p.size]
		written := func() bool { return !bytes.Equal(last, bytes.Repeat([]byte{guard}, len(last))) }
		if err := p.until(ctx, "the Writes", written); err != nil {
			return err
		}
		if err := p.wasOverwritten(); err != nil {
			return err
		}
	}
	_, err = p.swapKeys(ctx, "end")
	return err
}

// readBandwidth reads the server's memory, or is read from.
func (p *perftest) readBandwidth(ctx context.Context) error {
	pattern(p.offered.bytes, 1)
	keys, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	if !p.accepts {
		if err := p.repeat(ctx, p.remote(rdma.OpRead, keys.key, keys.address), readDepth); err != nil {
			return err
		}
		if err := p.writeAndReadBack(ctx, keys); err != nil {
			return err
		}
	}
	if err := p.report(ctx); err != nil {
		return err
	}
	if p.accepts {
		if err := p.readWhatWasRead(ctx, keys); err != nil {
			return err
		}
	}
	_, err = p.swapKeys(ctx, "end")
	return err
}

// repeat carries out a request as often as the test demands.
func (p *perftest) repeat(ctx context.Context, request rdma.SendRequest, outstanding int) error {
	completed := &p.data.completed[request.Opcode]
	for posted := range p.rounds {
		if err := p.until(ctx, request.Opcode.String(), func() bool { return posted-*completed < outstanding }); err != nil {
			return err
		}
		if err := p.data.PostSend([]rdma.SendRequest{request}); err != nil {
			return err
		}
		p.data.Flush()
	}
	return p.until(ctx, request.Opcode.String(), func() bool { return *completed == p.rounds })
}

// writeAndReadBack overwrites the server's memory, which perftest registers
// for writing too on iWARP, and reads that.
func (p *perftest) writeAndReadBack(ctx context.Context, keys remoteKeys) error {
	pattern(p.own.bytes, 2)
	want := bytes.Clone(p.own.bytes)
	if err := p.do(ctx, &p.data, p.remote(rdma.OpWrite, keys.key, keys.address)); err != nil {
		return err
	}
	return p.readAndCompare(ctx, keys.key, keys.address, want)
}

// readWhatWasRead reads the memory into which the client has read. It is in
// front of what the client offers, at a multiple of the cyclic buffer's size.
func (p *perftest) readWhatWasRead(ctx context.Context, keys remoteKeys) error {
	distance := uint64((p.size + cycleBytes - 1) / cycleBytes * cycleBytes)
	return p.readAndCompare(ctx, keys.key, keys.address-distance, p.offered.bytes[:p.size])
}

func (p *perftest) readAndCompare(ctx context.Context, key uint32, address uint64, want []byte) error {
	clear(p.own.bytes)
	if err := p.do(ctx, &p.data, p.remote(rdma.OpRead, key, address)); err != nil {
		return err
	}
	if !bytes.Equal(p.own.bytes, want) {
		return fmt.Errorf("perftest's memory is %x…, not %x…", p.own.bytes[:8], want[:8])
	}
	return nil
}

// remote is a request between own memory and perftest's.
func (p *perftest) remote(opcode rdma.Opcode, key uint32, address uint64) rdma.SendRequest {
	return rdma.SendRequest{Opcode: opcode, Local: p.own.segment(0, p.size), RemoteKey: key, RemoteAddress: address}
}

// wasOverwritten checks that the offered memory holds something else than the
// guard, which remains behind it. perftest's bytes are random.
func (p *perftest) wasOverwritten() error {
	place, behind := p.offered.bytes[:p.size], p.offered.bytes[p.size:]
	if left := bytes.Count(place, []byte{guard}); left > p.size/8 {
		return fmt.Errorf("%d of %d bytes are as before", left, p.size)
	}
	if bytes.Count(behind, []byte{guard}) != len(behind) {
		return fmt.Errorf("bytes behind the %d were changed", p.size)
	}
	return nil
}

func fill(b []byte) {
	for i := range b {
		b[i] = guard
	}
}

// pattern fills b with bytes that tell their place.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i + i/251 + seed*17)
	}
}
