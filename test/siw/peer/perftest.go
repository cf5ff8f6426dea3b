package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// perftest plays one side of a perftest program with the option -R. The two
// sides make two connections, to the same port. On the first, the control
// connection, they swap parameters and wait for each other, always by one Send
// of the client and one of the server; on the second they measure.
type perftest struct {
	*endpoint
	settings
	listener rdma.Listener
	control  link
	data     link
	messages buffer   // a control message to send, then one that is received
	inbox    [][]byte // control messages not yet looked at
	// own is what the test sends from or reads into; offered is where
	// messages arrive and what the other side writes or reads.
	own, offered buffer
	received     uint32 // length of the last message on the data connection
}

// link is a connection with what has completed on it.
type link struct {
	rdma.Connection
	completed [rdma.OpDisconnected + 1]int
}

// The contexts of the connections.
const (
	controlContext = iota
	dataContext
)

// sendRequests is how many requests a connection takes.
const sendRequests = 8

func playPerftest(ctx context.Context, e *endpoint, s settings) error {
	play, ok := map[string]func(*perftest, context.Context) error{
		"ib_send_lat": (*perftest).sendLatency,
		"ib_write_bw": (*perftest).writeBandwidth,
		"ib_read_bw":  (*perftest).readBandwidth,
	}[s.program]
	if !ok {
		return fmt.Errorf("unknown program %q", s.program)
	}
	p := &perftest{endpoint: e, settings: s}
	if err := p.newBuffers(); err != nil {
		return err
	}
	if err := p.open(ctx); err != nil {
		return err
	}
	if err := play(p, ctx); err != nil {
		return err
	}
	if p.accepts {
		p.data.Close() // the client waits for that
	}
	return errors.Join(p.awaitEnd(ctx, &p.data), p.awaitEnd(ctx, &p.control))
}

// newBuffers registers memory. What is offered has a guard behind.
func (p *perftest) newBuffers() error {
	var err error
	if p.messages, err = p.register(2*keysBytes, memory.LocalWrite); err != nil {
		return err
	}
	if p.own, err = p.register(p.size, memory.LocalWrite); err != nil {
		return err
	}
	p.offered, err = p.register(p.size+guardBytes, memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	return err
}

// connection makes the next of the two connections.
func (p *perftest) connection(ctx context.Context, config rdma.ConnectionConfig) (rdma.Connection, error) {
	config.Domain, config.Queue = p.domain, p.queue
	config.SendRequests, config.ReceiveRequests = sendRequests, 2
	config.InboundReads, config.OutboundReads = readDepth, readDepth
	if p.accepts {
		request, err := p.listener.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return request.Accept(ctx, config)
	}
	// The server says that it goes on before it listens for the second time.
	for {
		conn, err := p.device.Connect(ctx, p.address, config)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// poll takes one completion, or none.
func (p *perftest) poll() error {
	var completions [1]rdma.Completion
	if p.queue.Poll(completions[:]) == 0 {
		return nil
	}
	c := completions[0]
	l := &p.control
	if c.Context == dataContext {
		l = &p.data
	}
	l.completed[c.Opcode]++
	switch {
	case c.Opcode == rdma.OpDisconnected:
		return nil
	case c.Status != rdma.StatusSuccess:
		return errors.Join(fmt.Errorf("%v: %v", c.Opcode, c.Status), l.Err())
	case c.Opcode == rdma.OpReceive && c.Context == controlContext:
		return p.keep(int(c.Length))
	case c.Opcode == rdma.OpReceive:
		p.received = c.Length
	}
	return nil
}

// keep takes a control message out of the buffer for the next one.
func (p *perftest) keep(length int) error {
	p.inbox = append(p.inbox, slices.Clone(p.messages.bytes[keysBytes:keysBytes+length]))
	return p.control.PostReceive([]rdma.ReceiveRequest{p.controlReceive()})
}

func (p *perftest) controlReceive() rdma.ReceiveRequest {
	return rdma.ReceiveRequest{Local: p.messages.segment(keysBytes, keysBytes)}
}

// until polls until the condition holds.
func (p *perftest) until(ctx context.Context, what string, condition func() bool) error {
	for !condition() {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
		if p.control.completed[rdma.OpDisconnected]+p.data.completed[rdma.OpDisconnected] > 0 {
			return fmt.Errorf("wait for %s: perftest has ended a connection", what)
		}
		if err := p.poll(); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
	return nil
}

// awaitEnd polls until the connection has ended. Its receives are flushed.
func (p *perftest) awaitEnd(ctx context.Context, l *link) error {
	for l.completed[rdma.OpDisconnected] == 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for perftest to end the connections: %w", context.Cause(ctx))
		}
		_ = p.poll()
	}
	return nil
}

// do posts a request on a connection and waits until it has completed.
func (p *perftest) do(ctx context.Context, l *link, request rdma.SendRequest) error {
	before := l.completed[request.Opcode]
	if err := l.PostSend([]rdma.SendRequest{request}); err != nil {
		return err
	}
	l.Flush()
	return p.until(ctx, request.Opcode.String(), func() bool { return l.completed[request.Opcode] > before })
}
