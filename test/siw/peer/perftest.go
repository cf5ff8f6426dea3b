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

// The sizes of control messages, as perftest 6.06 sends them.
const (
	versionBytes = 16 // text
	keysBytes    = 56 // numbers in network byte order at their places in a C structure
)

// The places of what matters to iWARP in a side's keys; the rest addresses
// InfiniBand queue pairs.
const (
	readDepthOffset = 4
	keyOffset       = 16
	addressOffset   = 24
)

// readDepth is how many Reads are outstanding, and cycleBytes what perftest
// rounds its buffers up to.
const (
	readDepth  = 4
	cycleBytes = 4096
)

// remoteKeys is the memory that the other side offers.
type remoteKeys struct {
	key     uint32
	address uint64
}

// open makes both connections, with what the sides tell each other before.
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
		if _, err := p.swap(ctx, message.what, message.bytes); err != nil {
			return err
		}
	}
	if _, err := p.swapKeys(ctx, "turn to connect"); err != nil {
		return err
	}
	if p.data.Connection, err = p.connection(ctx, rdma.ConnectionConfig{Context: dataContext}); err != nil {
		return err
	}
	_, err = p.swapKeys(ctx, "second connection")
	return err
}

// swap sends a control message and returns the other side's, of the same
// length. The client sends first.
func (p *perftest) swap(ctx context.Context, what string, mine []byte) ([]byte, error) {
	if !p.accepts {
		if err := p.tell(ctx, mine); err != nil {
			return nil, err
		}
	}
	if err := p.until(ctx, what, func() bool { return len(p.inbox) > 0 }); err != nil {
		return nil, err
	}
	theirs := p.inbox[0]
	p.inbox = p.inbox[1:]
	if len(theirs) != len(mine) {
		return nil, fmt.Errorf("%s: perftest sent %d bytes, not %d: %x", what, len(theirs), len(mine), theirs)
	}
	if p.accepts {
		return theirs, p.tell(ctx, mine)
	}
	return theirs, nil
}

func (p *perftest) tell(ctx context.Context, message []byte) error {
	copy(p.messages.bytes, message)
	return p.do(ctx, &p.control, rdma.SendRequest{Opcode: rdma.OpSend, Local: p.messages.segment(0, len(message))})
}

// swapKeys tells the other side what is offered. It also serves to wait for
// the other side.
func (p *perftest) swapKeys(ctx context.Context, what string) (remoteKeys, error) {
	var mine [keysBytes]byte
	binary.BigEndian.PutUint32(mine[readDepthOffset:], readDepth)
	binary.BigEndian.PutUint32(mine[keyOffset:], p.offered.RemoteKey())
	binary.BigEndian.PutUint64(mine[addressOffset:], p.offered.Base())
	theirs, err := p.swap(ctx, what, mine[:])
	if err != nil {
		return remoteKeys{}, err
	}
	return remoteKeys{
		key: binary.BigEndian.Uint32(theirs[keyOffset:]), address: binary.BigEndian.Uint64(theirs[addressOffset:]),
	}, nil
}

// prepare swaps the keys as often as perftest does before a run.
func (p *perftest) prepare(ctx context.Context) (keys remoteKeys, err error) {
	for _, what := range []string{"keys", "keys, again", "queue pairs ready"} {
		if keys, err = p.swapKeys(ctx, what); err != nil {
			return keys, err
		}
	}
	return keys, nil
}

// report swaps the outcome of a bandwidth test, field by field. Only the
// client's has a meaning: the server prints it.
func (p *perftest) report(ctx context.Context) error {
	if _, err := p.swapKeys(ctx, "end of the run"); err != nil {
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
		theirs, err := p.swap(ctx, field.what, mine)
		if err != nil {
			return err
		}
		if p.accepts && field.counted && !bytes.Equal(theirs, mine) {
			return fmt.Errorf("perftest reports %s %x, not %x", field.what, theirs, mine)
		}
	}
	return nil
}

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
