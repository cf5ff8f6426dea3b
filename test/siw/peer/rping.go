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

// infoBytes is the size of rping's message: address, key and size of a
// buffer, big-endian. The server's messages have the same size and no meaning.
const infoBytes = 16

// peer is an endpoint with the buffers of one rping process.
type peer struct {
	*endpoint
	conn     rdma.Connection
	size     int
	messages buffer // one to send, one to receive
	start    buffer
	sink     buffer
}

func newPeer(e *endpoint, size int) (*peer, error) {
	p := &peer{endpoint: e, size: size}
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

// In each round the client announces a buffer, the server Reads it and
// answers; the client announces a second buffer, the server Writes what it has
// read there and answers.

// ping is the client's part: it announces, the server moves the data.
func (p *peer) ping(ctx context.Context, address netip.AddrPort, rounds int) error {
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
			return fmt.Errorf("round %d: the server wrote back something else", round)
		}
	}
	conn.Close()
	return p.await(ctx, rdma.OpDisconnected)
}

// serve is the server's part: it Reads and Writes the client's memory.
func (p *peer) serve(ctx context.Context, address netip.AddrPort, rounds int) error {
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

func (p *peer) serveRound(ctx context.Context) error {
	source, err := p.announced(ctx)
	if err != nil {
		return err
	}
	if err := p.transfer(ctx, rdma.OpRead, source); err != nil {
		return err
	}
	// rping fills its buffer with a text that begins like this.
	if want := []byte("rdma-ping-"); !bytes.HasPrefix(p.start.bytes, want) {
		return fmt.Errorf("the Read brought %q…, not %q…", p.start.bytes[:len(want)], want)
	}
	if err := p.post(p.send()); err != nil {
		return err
	}
	sink, err := p.announced(ctx)
	if err != nil {
		return err
	}
	// The Write and the message that tells of it, as one chain.
	return p.post(p.remote(rdma.OpWrite, sink), p.send())
}

// transfer carries out one Read and waits for it.
func (p *peer) transfer(ctx context.Context, opcode rdma.Opcode, info remoteBuffer) error {
	if err := p.post(p.remote(opcode, info)); err != nil {
		return err
	}
	return p.await(ctx, opcode)
}

// remoteBuffer is what the client has announced.
type remoteBuffer struct {
	address uint64
	key     uint32
	size    uint32
}

func (p *peer) announced(ctx context.Context) (remoteBuffer, error) {
	if err := p.await(ctx, rdma.OpReceive); err != nil {
		return remoteBuffer{}, err
	}
	b := p.messages.bytes[infoBytes:]
	info := remoteBuffer{
		address: binary.BigEndian.Uint64(b), key: binary.BigEndian.Uint32(b[8:]), size: binary.BigEndian.Uint32(b[12:]),
	}
	if int(info.size) != p.size {
		return info, fmt.Errorf("the client announced %d bytes, not %d", info.size, p.size)
	}
	return info, nil
}

func (p *peer) announce(b buffer) error {
	binary.BigEndian.PutUint64(p.messages.bytes, b.Base())
	binary.BigEndian.PutUint32(p.messages.bytes[8:], b.RemoteKey())
	binary.BigEndian.PutUint32(p.messages.bytes[12:], uint32(b.Len()))
	return p.post(p.send())
}

// fill makes a text of the start buffer's size: the server writes back as
// much as strlen tells it.
func (p *peer) fill(round int) {
	last := len(p.start.bytes) - 1
	for i := range last {
		p.start.bytes[i] = byte(1 + (i+i/251+round)%255)
	}
	p.start.bytes[last] = 0
	clear(p.sink.bytes)
}

func (p *peer) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{
		Domain: p.domain, Queue: p.queue, SendRequests: 8, ReceiveRequests: 8, InboundReads: 4, OutboundReads: 4,
		Receives: []rdma.ReceiveRequest{p.receive()},
	}
}

// send is a request that sends the message buffer.
func (p *peer) send() rdma.SendRequest {
	return rdma.SendRequest{
		Opcode: rdma.OpSend,
		Local:  rdma.Segment{Key: p.messages.LocalKey(), Address: p.messages.Base(), Length: infoBytes},
	}
}

// receive is a request that fills the second half of the message buffer.
func (p *peer) receive() rdma.ReceiveRequest {
	return rdma.ReceiveRequest{
		Local: rdma.Segment{Key: p.messages.LocalKey(), Address: p.messages.Base() + infoBytes, Length: infoBytes},
	}
}

// remote is a request between the start buffer and the client's memory.
func (p *peer) remote(opcode rdma.Opcode, info remoteBuffer) rdma.SendRequest {
	return rdma.SendRequest{
		Opcode: opcode, RemoteAddress: info.address, RemoteKey: info.key,
		Local: rdma.Segment{Key: p.start.LocalKey(), Address: p.start.Base(), Length: info.size},
	}
}

func (p *peer) post(requests ...rdma.SendRequest) error {
	if err := p.conn.PostSend(requests); err != nil {
		return err
	}
	p.conn.Flush()
	return nil
}

// await polls until a completion of the given kind has come. The next receive
// is posted as soon as one is used: nothing answers the message before this
// process does.
func (p *peer) await(ctx context.Context, opcode rdma.Opcode) error {
	var completions [4]rdma.Completion
	for ctx.Err() == nil {
		// One at a time: the message buffer holds one message.
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
