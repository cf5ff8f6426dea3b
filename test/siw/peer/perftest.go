// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// perftest plays one side of a perftest program that runs with the option -R. The two sides make
// two connections to the same port. On the first, the control connection, they exchange parameters
// and wait for each other, always with one Send by the client and then one by the server. On the
// second, the data connection, they measure.
type perftest struct {
	*endpoint
	settings
	listener rdma.Listener
	control  link
	data     link
	messages buffer   // the control message to send, then the one received
	inbox    [][]byte // control messages not yet handled
	// The test sends from local or reads into it. Messages arrive in offered, and the other side
	// writes or reads it.
	local, offered buffer
	received       uint32 // length of the last message on the data connection
}

// link is a connection with a count of its completions.
type link struct {
	rdma.Connection
	completed [rdma.OpDisconnected + 1]int // by opcode
}

// The connections' contexts in completions.
const (
	controlContext = iota
	dataContext
)

// sendRequests is how many send requests a connection allows.
const sendRequests = 8

// runPerftest plays the program that the settings name.
func runPerftest(ctx context.Context, e *endpoint, s settings) error {
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
		p.data.Close() // the client waits for it
	}
	return errors.Join(p.awaitEnd(ctx, &p.data), p.awaitEnd(ctx, &p.control))
}

// newBuffers registers memory. A guard follows the offered memory.
func (p *perftest) newBuffers() error {
	var err error
	if p.messages, err = p.register(2*keysBytes, memory.LocalWrite); err != nil {
		return err
	}
	if p.local, err = p.register(p.size, memory.LocalWrite); err != nil {
		return err
	}
	p.offered, err = p.register(p.size+guardBytes,
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	return err
}

// open makes both connections, and exchanges what the two sides agree on before each.
func (p *perftest) open(ctx context.Context) error {
	var err error
	if p.accepts {
		if p.listener, err = p.device.Listen(ctx, p.address); err != nil {
			return err
		}
	}
	if p.control.Connection, err = p.connection(ctx, rdma.ConnectionConfig{
		Context: controlContext, Receives: []rdma.ReceiveRequest{p.controlReceive()},
	}); err != nil {
		return err
	}
	for _, message := range []struct {
		what  string
		bytes []byte
	}{
		{"version", append([]byte("6.06"), make([]byte, versionBytes-4)...)},
		{"size of the cyclic buffer", binary.BigEndian.AppendUint32(nil, cycleBytes)},
		{"size of a cache line", binary.BigEndian.AppendUint32(nil, 64)},
		{"MTU", []byte("3\x00")}, // IBV_MTU_1024
	} {
		if _, err := p.exchange(ctx, message.what, message.bytes); err != nil {
			return err
		}
	}
	if _, err := p.exchangeKeys(ctx, "turn to connect"); err != nil {
		return err
	}
	data := rdma.ConnectionConfig{Context: dataContext}
	if p.data.Connection, err = p.connection(ctx, data); err != nil {
		return err
	}
	_, err = p.exchangeKeys(ctx, "second connection")
	return err
}

// connection makes the next connection.
func (p *perftest) connection(
	ctx context.Context, config rdma.ConnectionConfig,
) (rdma.Connection, error) {
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
	// Retry, because the server announces the second connection before it listens for it.
	for {
		conn, err := p.device.Connect(ctx, p.address, config)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// The sizes of control messages in perftest 6.06.
const (
	versionBytes = 16 // text
	keysBytes    = 56 // a C structure, with its numbers in network byte order
)

// exchange sends a control message and returns the other side's message, which must have the same
// length. The client sends first.
func (p *perftest) exchange(ctx context.Context, what string, mine []byte) ([]byte, error) {
	if !p.accepts {
		if err := p.sendControl(ctx, mine); err != nil {
			return nil, err
		}
	}
	if err := p.until(ctx, what, func() bool { return len(p.inbox) > 0 }); err != nil {
		return nil, err
	}
	theirs := p.inbox[0]
	p.inbox = p.inbox[1:]
	if len(theirs) != len(mine) {
		return nil, fmt.Errorf("%s: perftest sent %d bytes, not %d: %x",
			what, len(theirs), len(mine), theirs)
	}
	if p.accepts {
		return theirs, p.sendControl(ctx, mine)
	}
	return theirs, nil
}

// sendControl sends a control message and waits until it has completed.
func (p *perftest) sendControl(ctx context.Context, message []byte) error {
	copy(p.messages.bytes, message)
	return p.do(ctx, &p.control, rdma.SendRequest{
		Opcode: rdma.OpSend, Local: p.messages.segment(0, len(message)),
	})
}

// The offsets of the fields that iWARP needs in a side's keys. The other fields address InfiniBand
// queue pairs.
const (
	readDepthOffset = 4
	keyOffset       = 16
	addressOffset   = 24
)

// readDepth is how many Reads are outstanding. cycleBytes is the granularity to which perftest
// rounds up its buffers.
const (
	readDepth  = 4
	cycleBytes = 4096
)

// exchangeKeys tells the other side which memory is offered, and returns the memory that it offers.
// perftest also uses it to wait for the other side.
func (p *perftest) exchangeKeys(ctx context.Context, what string) (rdma.RemoteMemory, error) {
	var mine [keysBytes]byte
	binary.BigEndian.PutUint32(mine[readDepthOffset:], readDepth)
	binary.BigEndian.PutUint32(mine[keyOffset:], p.offered.RemoteKey())
	binary.BigEndian.PutUint64(mine[addressOffset:], p.offered.Base())
	theirs, err := p.exchange(ctx, what, mine[:])
	if err != nil {
		return rdma.RemoteMemory{}, err
	}
	return rdma.RemoteMemory{
		Key:    binary.BigEndian.Uint32(theirs[keyOffset:]),
		Base:   binary.BigEndian.Uint64(theirs[addressOffset:]),
		Length: uint64(p.size),
	}, nil
}

// prepare exchanges the keys as often as perftest does before a run.
func (p *perftest) prepare(ctx context.Context) (remote rdma.RemoteMemory, err error) {
	for _, what := range []string{"keys", "keys, again", "queue pairs ready"} {
		if remote, err = p.exchangeKeys(ctx, what); err != nil {
			return remote, err
		}
	}
	return remote, nil
}

// exchangeResults exchanges the results of a bandwidth test, field by field. Only the client's
// results matter: the server prints them.
func (p *perftest) exchangeResults(ctx context.Context) error {
	if _, err := p.exchangeKeys(ctx, "end of the run"); err != nil {
		return err
	}
	for _, field := range []struct {
		what    string
		value   uint64
		counted bool
	}{
		{"size", uint64(p.size), true},
		{"iterations", uint64(p.rounds), true},
		{"peak bandwidth", math.Float64bits(1), false},
		{"average bandwidth", math.Float64bits(1), false},
		{"message rate", math.Float64bits(1), false},
	} {
		mine := binary.BigEndian.AppendUint64(nil, field.value)
		theirs, err := p.exchange(ctx, field.what, mine)
		if err != nil {
			return err
		}
		if p.accepts && field.counted && !bytes.Equal(theirs, mine) {
			return fmt.Errorf("perftest reported %s %x, not %x", field.what, theirs, mine)
		}
	}
	return nil
}

// sendLatency sends messages back and forth. perftest sends the same message each time.
func (p *perftest) sendLatency(ctx context.Context) error {
	if _, err := p.prepare(ctx); err != nil {
		return err
	}
	pattern(p.local.bytes, 0)
	if err := p.receiveNext(); err != nil {
		return err
	}
	if _, err := p.exchangeKeys(ctx, "receives posted"); err != nil {
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
			return fmt.Errorf("round %d: the message differs from the first", round)
		}
	}
	_, err := p.exchangeKeys(ctx, "end")
	return err
}

// pingPong sends a message and returns the message received. The client sends first.
func (p *perftest) pingPong(ctx context.Context, round int) ([]byte, error) {
	send := rdma.SendRequest{Opcode: rdma.OpSend, Local: p.local.segment(0, p.size)}
	if !p.accepts {
		if err := p.do(ctx, &p.data, send); err != nil {
			return nil, err
		}
	}
	received := func() bool { return p.data.completed[rdma.OpReceive] > round }
	if err := p.until(ctx, "a message", received); err != nil {
		return nil, err
	}
	if p.received != uint32(p.size) {
		return nil, fmt.Errorf("received a message of %d bytes, not %d", p.received, p.size)
	}
	message := bytes.Clone(p.offered.bytes[:p.size])
	if err := p.checkOverwritten(); err != nil {
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

// receiveNext posts the receive for the next message.
func (p *perftest) receiveNext() error {
	fillGuard(p.offered.bytes)
	return p.data.PostReceive([]rdma.ReceiveRequest{{Local: p.offered.segment(0, p.size)}})
}

// writeBandwidth writes to the server's memory, or lets the client write.
func (p *perftest) writeBandwidth(ctx context.Context) error {
	fillGuard(p.offered.bytes)
	remote, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	if !p.accepts {
		pattern(p.local.bytes, 0)
		write := p.transfer(rdma.OpWrite, remote)
		if err := p.repeat(ctx, write, sendRequests); err != nil {
			return err
		}
	}
	if err := p.exchangeResults(ctx); err != nil {
		return err
	}
	if p.accepts {
		// The results may arrive before the last Write, which is on the other connection.
		last := p.offered.bytes[p.size-8 : p.size]
		guards := bytes.Repeat([]byte{guard}, len(last))
		written := func() bool { return !bytes.Equal(last, guards) }
		if err := p.until(ctx, "the last Write", written); err != nil {
			return err
		}
		if err := p.checkOverwritten(); err != nil {
			return err
		}
	}
	_, err = p.exchangeKeys(ctx, "end")
	return err
}

// readBandwidth reads the server's memory, or lets the client read.
func (p *perftest) readBandwidth(ctx context.Context) error {
	pattern(p.offered.bytes, 1)
	remote, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	if !p.accepts {
		if err := p.repeat(ctx, p.transfer(rdma.OpRead, remote), readDepth); err != nil {
			return err
		}
		// The bytes read are random. On iWARP perftest registers its memory for Writes too, so
		// overwrite it and read it back.
		pattern(p.local.bytes, 2)
		want := bytes.Clone(p.local.bytes)
		if err := p.do(ctx, &p.data, p.transfer(rdma.OpWrite, remote)); err != nil {
			return err
		}
		if err := p.readAndCompare(ctx, remote, want); err != nil {
			return err
		}
	}
	if err := p.exchangeResults(ctx); err != nil {
		return err
	}
	if p.accepts {
		// Check the memory into which the client has read. It precedes the memory that the client
		// offers, at a multiple of the cyclic buffer's size.
		remote.Base -= uint64((p.size + cycleBytes - 1) / cycleBytes * cycleBytes)
		if err := p.readAndCompare(ctx, remote, p.offered.bytes[:p.size]); err != nil {
			return err
		}
	}
	_, err = p.exchangeKeys(ctx, "end")
	return err
}

// repeat executes a request as often as the settings say, keeping the given number outstanding.
func (p *perftest) repeat(ctx context.Context, request rdma.SendRequest, outstanding int) error {
	completed := &p.data.completed[request.Opcode]
	for posted := range p.rounds {
		room := func() bool { return posted-*completed < outstanding }
		if err := p.until(ctx, request.Opcode.String(), room); err != nil {
			return err
		}
		if err := p.data.PostSend([]rdma.SendRequest{request}); err != nil {
			return err
		}
		p.data.Flush()
	}
	return p.until(ctx, request.Opcode.String(), func() bool { return *completed == p.rounds })
}

// readAndCompare reads perftest's memory and compares it with the expected bytes.
func (p *perftest) readAndCompare(
	ctx context.Context, remote rdma.RemoteMemory, want []byte,
) error {
	clear(p.local.bytes)
	if err := p.do(ctx, &p.data, p.transfer(rdma.OpRead, remote)); err != nil {
		return err
	}
	if !bytes.Equal(p.local.bytes, want) {
		return fmt.Errorf("perftest's memory is %x…, not %x…", p.local.bytes[:8], want[:8])
	}
	return nil
}

// transfer returns a request between local memory and perftest's.
func (p *perftest) transfer(opcode rdma.Opcode, remote rdma.RemoteMemory) rdma.SendRequest {
	return rdma.SendRequest{
		Opcode: opcode, Local: p.local.segment(0, p.size),
		RemoteAddress: remote.Base, RemoteKey: remote.Key,
	}
}

// The offered memory is filled with guard before perftest writes to it. It is followed by
// guardBytes more, which must not change.
const (
	guard      = 0xa5
	guardBytes = 4096
)

// checkOverwritten checks that the other side has overwritten the offered memory, but not the guard
// that follows it. perftest's bytes are random, so some may equal the guard.
func (p *perftest) checkOverwritten() error {
	offered, after := p.offered.bytes[:p.size], p.offered.bytes[p.size:]
	if left := bytes.Count(offered, []byte{guard}); left > p.size/8 {
		return fmt.Errorf("%d of %d bytes were not overwritten", left, p.size)
	}
	if bytes.Count(after, []byte{guard}) != len(after) {
		return fmt.Errorf("bytes after the %d offered ones were overwritten", p.size)
	}
	return nil
}

func fillGuard(b []byte) {
	for i := range b {
		b[i] = guard
	}
}

// pattern fills b with bytes that depend on their offsets and on seed.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i + i/251 + seed*17)
	}
}

// do executes a request on a connection and waits until it has completed.
func (p *perftest) do(ctx context.Context, l *link, request rdma.SendRequest) error {
	before := l.completed[request.Opcode]
	if err := l.PostSend([]rdma.SendRequest{request}); err != nil {
		return err
	}
	l.Flush()
	completed := func() bool { return l.completed[request.Opcode] > before }
	return p.until(ctx, request.Opcode.String(), completed)
}

// until polls until condition returns true.
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

// poll handles at most one completion.
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
		// Copy the message, so that its buffer is free for the next one.
		message := p.messages.bytes[keysBytes : keysBytes+int(c.Length)]
		p.inbox = append(p.inbox, slices.Clone(message))
		return p.control.PostReceive([]rdma.ReceiveRequest{p.controlReceive()})
	case c.Opcode == rdma.OpReceive:
		p.received = c.Length
	}
	return nil
}

// controlReceive returns a request that receives the next control message.
func (p *perftest) controlReceive() rdma.ReceiveRequest {
	return rdma.ReceiveRequest{Local: p.messages.segment(keysBytes, keysBytes)}
}

// awaitEnd polls until the connection has ended, ignoring the receives that complete as flushed.
func (p *perftest) awaitEnd(ctx context.Context, l *link) error {
	for l.completed[rdma.OpDisconnected] == 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for perftest to end the connections: %w", context.Cause(ctx))
		}
		_ = p.poll()
	}
	return nil
}
