package main

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

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
