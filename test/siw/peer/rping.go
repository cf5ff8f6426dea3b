// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// infoBytes is the size of rping's messages. A client's message holds the address, key, and size of
// a buffer, big-endian. The content of a server's message means nothing.
const infoBytes = 16

// rping plays one side of rping. In each round the client announces a buffer, which the server
// Reads before it replies. Then the client announces a second buffer. The server Writes what it has
// read there, and replies.
type rping struct {
	*endpoint
	conn     rdma.Connection
	size     int
	messages buffer // the message to send, then the message received
	start    buffer // the server Reads it, or Reads into it
	sink     buffer // the server Writes it
}

func newRping(e *endpoint, size int) (*rping, error) {
	p := &rping{endpoint: e, size: size}
	var err error
	if p.messages, err = p.register(2*infoBytes, memory.LocalWrite); err != nil {
		return nil, err
	}
	if p.start, err = p.register(size, memory.LocalWrite|memory.RemoteRead); err != nil {
		return nil, err
	}
	p.sink, err = p.register(size, memory.LocalWrite|memory.RemoteWrite)
	return p, err
}

// ping plays the client: it announces buffers, and the server moves the data.
func (p *rping) ping(ctx context.Context, address netip.AddrPort, rounds int) error {
	conn, err := p.device.Connect(ctx, address, p.config())
	if err != nil {
		return err
	}
	p.conn = conn
	for round := range rounds {
		p.fill(round)
		if err := p.announce(p.start); err != nil {
			return err
		}
		if err := p.await(ctx, rdma.OpReceive); err != nil {
			return fmt.Errorf("round %d, after the server's Read: %w", round, err)
		}
		if err := p.announce(p.sink); err != nil {
			return err
		}
		if err := p.await(ctx, rdma.OpReceive); err != nil {
			return fmt.Errorf("round %d, after the server's Write: %w", round, err)
		}
		if !bytes.Equal(p.start.bytes, p.sink.bytes) {
			return fmt.Errorf("round %d: the server wrote back different data", round)
		}
	}
	conn.Close()
	return p.await(ctx, rdma.OpDisconnected)
}

// serve plays the server: it Reads and Writes the client's memory.
func (p *rping) serve(ctx context.Context, address netip.AddrPort, rounds int) error {
	listener, err := p.device.Listen(ctx, address)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Println("listening")
	request, err := listener.Accept(ctx)
	if err != nil {
		return err
	}
	if p.conn, err = request.Accept(ctx, p.config()); err != nil {
		return err
	}
	for round := range rounds {
		if err := p.serveRound(ctx); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return p.await(ctx, rdma.OpDisconnected)
}

// serveRound plays one round of the server.
func (p *rping) serveRound(ctx context.Context) error {
	source, err := p.announced(ctx)
	if err != nil {
		return err
	}
	if err := p.post(p.transfer(rdma.OpRead, source)); err != nil {
		return err
	}
	if err := p.await(ctx, rdma.OpRead); err != nil {
		return err
	}
	// rping fills its buffer with a text that begins like this.
	if want := []byte("rdma-ping-"); !bytes.HasPrefix(p.start.bytes, want) {
		return fmt.Errorf("the Read returned %q…, not %q…", p.start.bytes[:len(want)], want)
	}
	if err := p.post(p.send()); err != nil {
		return err
	}
	sink, err := p.announced(ctx)
	if err != nil {
		return err
	}
	// Post the Write and the message that announces it as one chain.
	return p.post(p.transfer(rdma.OpWrite, sink), p.send())
}

// announced waits for the client to announce a buffer.
func (p *rping) announced(ctx context.Context) (rdma.RemoteMemory, error) {
	if err := p.await(ctx, rdma.OpReceive); err != nil {
		return rdma.RemoteMemory{}, err
	}
	b := p.messages.bytes[infoBytes:]
	announced := rdma.RemoteMemory{
		Base:   binary.BigEndian.Uint64(b),
		Key:    binary.BigEndian.Uint32(b[8:]),
		Length: uint64(binary.BigEndian.Uint32(b[12:])),
	}
	if int(announced.Length) != p.size {
		return announced, fmt.Errorf("the client announced %d bytes, not %d",
			announced.Length, p.size)
	}
	return announced, nil
}

// announce sends the server the address of a buffer.
func (p *rping) announce(b buffer) error {
	binary.BigEndian.PutUint64(p.messages.bytes, b.Base())
	binary.BigEndian.PutUint32(p.messages.bytes[8:], b.RemoteKey())
	binary.BigEndian.PutUint32(p.messages.bytes[12:], uint32(b.Len()))
	return p.post(p.send())
}

// fill fills the start buffer with a zero-terminated text: the server writes back as many bytes as
// strlen counts.
func (p *rping) fill(round int) {
	last := len(p.start.bytes) - 1
	for i := range last {
		p.start.bytes[i] = byte(1 + (i+i/251+round)%255)
	}
	p.start.bytes[last] = 0
	clear(p.sink.bytes)
}

func (p *rping) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{
		Domain:          p.domain,
		Queue:           p.queue,
		SendRequests:    8,
		ReceiveRequests: 8,
		InboundReads:    4,
		OutboundReads:   4,
		Receives:        []rdma.ReceiveRequest{p.receive()},
	}
}

// send returns a request that sends the first half of the message buffer.
func (p *rping) send() rdma.SendRequest {
	return rdma.SendRequest{Opcode: rdma.OpSend, Local: p.messages.segment(0, infoBytes)}
}

// receive returns a request that fills the second half of the message buffer.
func (p *rping) receive() rdma.ReceiveRequest {
	return rdma.ReceiveRequest{Local: p.messages.segment(infoBytes, infoBytes)}
}

// transfer returns a request between the start buffer and the client's memory.
func (p *rping) transfer(opcode rdma.Opcode, memory rdma.RemoteMemory) rdma.SendRequest {
	return rdma.SendRequest{
		Opcode: opcode, RemoteAddress: memory.Base, RemoteKey: memory.Key,
		Local: p.start.segment(0, int(memory.Length)),
	}
}

// post posts requests and flushes them.
func (p *rping) post(requests ...rdma.SendRequest) error {
	if err := p.conn.PostSend(requests); err != nil {
		return err
	}
	p.conn.Flush()
	return nil
}

// await polls until a request with the given opcode has completed. It posts the next receive as
// soon as one has completed, which is early enough: the other side sends nothing until this process
// replies.
func (p *rping) await(ctx context.Context, opcode rdma.Opcode) error {
	var completions [4]rdma.Completion
	for ctx.Err() == nil {
		// Poll one at a time, because the buffer has room for one received message.
		n := p.queue.Poll(completions[:1])
		for _, c := range completions[:n] {
			if c.Opcode == rdma.OpDisconnected && c.Opcode != opcode {
				return fmt.Errorf("connection ended while waiting for %v: %w", opcode, p.conn.Err())
			}
			if c.Status != rdma.StatusSuccess && opcode != rdma.OpDisconnected {
				return fmt.Errorf("%v: %v", c.Opcode, c.Status)
			}
			if c.Opcode == rdma.OpReceive && opcode != rdma.OpDisconnected {
				if err := p.conn.PostReceive([]rdma.ReceiveRequest{p.receive()}); err != nil {
					return err
				}
			}
			if c.Opcode == opcode {
				return nil
			}
		}
	}
	return fmt.Errorf("wait for %v: %w", opcode, context.Cause(ctx))
}
