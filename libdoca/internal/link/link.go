// SPDX-License-Identifier: Apache-2.0

// Package link carries the operations of doca_rdma between two processes over a stream: sends,
// writes, reads, and atomics, each of which the peer acknowledges.
//
// It is not iWARP, because doca_rdma promises what iWARP lacks: a send waits for the peer's
// receive; all connections of a context share their receives; either side may send first; messages
// carry immediate data; and a write completes when the data has been placed.
//
// Both sides split operations into parts of at most 64 KiB. A side has at most 64 unacknowledged
// parts, so a receiver knows how much it may have to hold: a peer that sends more has violated the
// protocol. Parts are carried out in order.
package link

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	maxPart = 64 << 10 // bytes
	window  = 64       // unacknowledged parts
)

// Operation is what a request does.
type Operation uint8

// The operations.
const (
	Send Operation = iota + 1
	Write
	Read
	// CompareSwap and FetchAdd are the atomics. They change a word of the peer, and return what it
	// was before.
	CompareSwap
	FetchAdd
)

// WordSize is the length of the word of an atomic.
const WordSize = 8

// isAtomic reports whether an operation is an atomic.
func (o Operation) isAtomic() bool { return o == CompareSwap || o == FetchAdd }

// hasResponse reports whether data comes back.
func (o Operation) hasResponse() bool { return o == Read || o.isAtomic() }

// operandSize returns the length of what an atomic carries.
func (o Operation) operandSize() uint32 {
	if o == CompareSwap {
		return 2 * WordSize
	}
	return WordSize
}

// Key names exported memory. Whoever knows it may use the memory.
type Key [16]byte

// Memory is a range of bytes that may be anywhere.
type Memory interface {
	Load(to []byte, offset uint64) error
	Store(from []byte, offset uint64) error
}

// Message is what a receive has got.
type Message struct {
	Length       uint64
	Immediate    [4]byte // as it was sent
	HasImmediate bool
	IsWrite      bool // of which only the immediate data has come here
	Err          error
}

// Receive is a posted receive.
type Receive interface {
	// Store fails if there is no room.
	Store(from []byte, offset uint64) error
	// Complete is called once.
	Complete(Message)
}

// Handler serves the peer. Its methods may be called until Link.Wait returns, by one goroutine at a
// time.
type Handler interface {
	// Receive waits for a posted receive, until ctx ends.
	Receive(ctx context.Context) (Receive, error)
	// Access carries out one part of a Write or Read.
	Access(operation Operation, key Key, address uint64, data []byte) error
	// Atomic carries out a CompareSwap, of operands 0 and 1, or a FetchAdd, of operand 0. It
	// returns what the word was before.
	Atomic(operation Operation, key Key, address uint64, operands [2]uint64) (uint64, error)
}

// Request is an operation of this side. The link owns it until Done is called.
type Request struct {
	Operation    Operation
	Key          Key       // not of a Send
	Address      uint64    // not of a Send
	Length       uint64    // WordSize for an atomic
	Operands     [2]uint64 // of an atomic; see Handler.Atomic
	Immediate    [4]byte   // of a Send or Write
	HasImmediate bool
	Local        Memory // may be nil if Length is 0
	// Done is called once, by any goroutine, after the link has used Local for the last time.
	Done func(error)

	sent uint64 // bytes that have been passed on
}

// Link is one connection. Its methods may be called by any goroutine.
type Link struct {
	stream  net.Conn
	handler Handler
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	inbound chan *part
	wake    chan struct{} // of the writer

	mu         sync.Mutex
	queue      []*Request // to be sent
	unanswered []*sentPart
	responses  []*part
	err        error // why the link has ended
}

// sentPart is a part that has not been acknowledged.
type sentPart struct {
	request *Request
	offset  uint64
	length  uint32 // of the data in its answer
	last    bool
}

// New starts a link over a stream, which the link closes.
func New(stream net.Conn, handler Handler) *Link {
	l := &Link{stream: stream, handler: handler, inbound: make(chan *part, window),
		wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.running.Go(l.read)
	l.running.Go(l.write)
	l.running.Go(l.serve)
	return l
}

// Submit queues a request. If the link has ended, the request fails.
func (l *Link) Submit(request *Request) {
	l.mu.Lock()
	err := l.err
	if err == nil {
		l.queue = append(l.queue, request)
	}
	l.mu.Unlock()
	if err != nil {
		request.Done(err)
		return
	}
	l.signal()
}

func (l *Link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// closeTimeout bounds how long a link that is closed tries to send its last answers.
const closeTimeout = time.Second

// Close ends the link. Outstanding requests fail, but the peer gets the answers to what has been
// carried out.
func (l *Link) Close() {
	l.mu.Lock()
	if l.err == nil {
		l.err = errClosed
	}
	l.mu.Unlock()
	_ = l.stream.SetWriteDeadline(time.Now().Add(closeTimeout))
	l.signal()
}

// Ended returns a channel that is closed once the link has begun to end.
func (l *Link) Ended() <-chan struct{} { return l.ctx.Done() }

// Wait waits until the link has ended: all requests are done, and the handler is called no more.
func (l *Link) Wait() {
	<-l.ctx.Done()
	l.running.Wait()
	l.mu.Lock()
	queue, unanswered, err := l.queue, l.unanswered, l.err
	l.queue, l.unanswered = nil, nil
	l.mu.Unlock()
	for _, sent := range unanswered {
		if sent.last {
			sent.request.Done(err)
		}
	}
	for _, request := range queue { // the first of them may have been sent in part
		request.Done(err)
	}
}

var (
	errClosed = status.Errorf(status.NotConnected, "the connection has been closed")
	errPeer   = status.Errorf(status.NotConnected, "the peer has ended the connection")
	errBroken = status.Errorf(status.ConnectionAborted, "the peer violated the protocol")
)

// fail ends the link. The first cause counts.
func (l *Link) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.cancel()
	_ = l.stream.Close()
}

// part is a frame: a part of an operation, or the answer to one.
type part struct {
	operation Operation // 0 for an answer
	flags     uint8
	code      status.Code // of an answer
	length    uint32      // of data; of a Read, what is requested
	immediate [4]byte
	address   uint64
	key       Key
	data      []byte
}

const (
	flagLast      = 1 << iota // part of its operation
	flagImmediate             // it has immediate data

	headerSize = 1 + 1 + 2 + 4 + 4 + 4 + 8 + 16
)

func (p *part) encode(b []byte) {
	clear(b[:headerSize])
	b[0], b[1] = byte(p.operation), p.flags
	binary.LittleEndian.PutUint16(b[2:], uint16(p.code))
	binary.LittleEndian.PutUint32(b[4:], p.length)
	copy(b[8:], p.immediate[:])
	binary.LittleEndian.PutUint64(b[16:], p.address)
	copy(b[24:], p.key[:])
}

// decode reads a header. It is not to be trusted.
func (p *part) decode(b []byte) error {
	p.operation, p.flags = Operation(b[0]), b[1]
	p.code = status.Code(binary.LittleEndian.Uint16(b[2:]))
	p.length = binary.LittleEndian.Uint32(b[4:])
	copy(p.immediate[:], b[8:])
	p.address = binary.LittleEndian.Uint64(b[16:])
	copy(p.key[:], b[24:])
	if p.operation > FetchAdd || p.flags&^(flagLast|flagImmediate) != 0 || p.length > maxPart ||
		p.operation.isAtomic() && (p.flags != flagLast || p.length != p.operation.operandSize()) {
		return errBroken
	}
	return nil
}

// hasData reports whether data follows the header.
func (p *part) hasData() bool { return p.operation != Read && p.length > 0 }

// read reads what the peer sends: parts go to serve, and answers complete requests.
func (l *Link) read() {
	reader := bufio.NewReaderSize(l.stream, 2*maxPart)
	header := make([]byte, headerSize)
	for {
		p := &part{}
		_, err := io.ReadFull(reader, header)
		if err == nil {
			err = p.decode(header)
		}
		if err == nil && p.hasData() {
			p.data = make([]byte, p.length)
			_, err = io.ReadFull(reader, p.data)
		}
		if err == nil && p.operation == 0 {
			err = l.answer(p)
		} else if err == nil {
			select {
			case l.inbound <- p:
			default:
				err = errBroken // more parts than the window allows
			}
		}
		if err != nil {
			if !errors.Is(err, status.ConnectionAborted) && !errors.Is(err, status.IOFailed) {
				err = errPeer
			}
			l.fail(err)
			return
		}
	}
}

// answer takes the answer to the oldest part. A part that has failed ends the link.
func (l *Link) answer(p *part) error {
	l.mu.Lock()
	if len(l.unanswered) == 0 {
		l.mu.Unlock()
		return errBroken
	}
	sent := l.unanswered[0]
	l.mu.Unlock()
	if p.code != status.Success {
		return status.Errorf(status.IOFailed, "the peer cannot carry out the request: %w", p.code)
	}
	if p.length != sent.length {
		return errBroken
	}
	var err error
	if p.length > 0 {
		if sent.request.Operation.isAtomic() {
			binary.NativeEndian.PutUint64(p.data, binary.LittleEndian.Uint64(p.data))
		}
		err = sent.request.Local.Store(p.data, sent.offset)
	}
	if err != nil {
		return status.Errorf(status.IOFailed, "store what was read: %w", err)
	}
	l.mu.Lock()
	l.unanswered = l.unanswered[1:]
	l.mu.Unlock()
	if sent.last {
		sent.request.Done(nil)
	}
	l.signal() // the window has room
	return nil
}

// write sends answers, and parts as far as the window allows.
func (l *Link) write() {
	writer := bufio.NewWriterSize(l.stream, 2*maxPart)
	header := make([]byte, headerSize)
	data := make([]byte, maxPart)
	for {
		p, err := l.next(data)
		switch {
		case err != nil:
		case p == nil:
			if err = writer.Flush(); err == nil {
				err = l.cause() // it is being closed
			}
			if err == nil {
				select {
				case <-l.wake:
					continue
				case <-l.ctx.Done():
					return
				}
			}
		default:
			p.encode(header)
			if _, err = writer.Write(header); err == nil && p.hasData() {
				_, err = writer.Write(p.data)
			}
		}
		if err == nil {
			continue
		}
		if status.CodeOf(err) == status.Unknown {
			err = errPeer
		}
		l.fail(err)
		return
	}
}

// cause returns why the link has ended, or nil.
func (l *Link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// next returns what is to be sent next, or nil. data is for the contents of a part.
func (l *Link) next(data []byte) (*part, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.responses) > 0 {
		p := l.responses[0]
		l.responses = l.responses[1:]
		return p, nil
	}
	if len(l.queue) == 0 || len(l.unanswered) == window || l.err != nil {
		return nil, nil
	}
	r := l.queue[0]
	length := min(r.Length-r.sent, maxPart)
	p := &part{operation: r.Operation, length: uint32(length), key: r.Key,
		address: r.Address + r.sent, immediate: r.Immediate}
	if r.sent+length == r.Length {
		p.flags |= flagLast
		if r.HasImmediate {
			p.flags |= flagImmediate
		}
	}
	switch {
	case r.Operation.isAtomic():
		p.data = data[:r.Operation.operandSize()]
		p.length = uint32(len(p.data))
		for i := range len(p.data) / WordSize {
			binary.LittleEndian.PutUint64(p.data[i*WordSize:], r.Operands[i])
		}
	case r.Operation != Read && length > 0:
		p.data = data[:length]
		if err := r.Local.Load(p.data, r.sent); err != nil {
			return nil, status.Errorf(status.IOFailed, "load what to send: %w", err)
		}
	}
	last := p.flags&flagLast != 0
	sent := &sentPart{request: r, offset: r.sent, last: last}
	if r.Operation.hasResponse() {
		sent.length = uint32(length)
	}
	l.unanswered = append(l.unanswered, sent)
	r.sent += length
	if last {
		l.queue = l.queue[1:]
	}
	return p, nil
}

// serve carries out the peer's parts, in order.
func (l *Link) serve() {
	s := server{link: l}
	defer s.failReceive()
	for {
		select {
		case p := <-l.inbound:
			if !s.serve(p) {
				return
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// server is the state of serve.
type server struct {
	link     *Link
	receive  Receive // of the send in progress, or nil
	got      uint64  // bytes of the operation in progress
	complete *Message
}

// serve carries out one part, queues the answer, and completes the receive after that. It returns
// false once the link has ended, or a part has failed: what follows relies on that part.
func (s *server) serve(p *part) bool {
	l := s.link
	answer := &part{}
	err := s.carryOut(p, answer)
	if l.ctx.Err() != nil {
		return false
	}
	if err != nil {
		answer = &part{code: status.CodeOf(err)}
		s.complete = &Message{Err: err}
	}
	l.mu.Lock()
	isFull := len(l.responses) == window
	l.responses = append(l.responses, answer)
	l.mu.Unlock()
	l.signal()
	if isFull { // the peer does not wait for answers
		l.fail(errBroken)
		return false
	}
	if s.complete != nil && s.receive != nil {
		s.receive.Complete(*s.complete)
		s.receive = nil
	}
	s.complete = nil
	return err == nil
}

func (s *server) carryOut(p *part, answer *part) error {
	l := s.link
	isLast, hasImmediate := p.flags&flagLast != 0, p.flags&flagImmediate != 0
	if p.operation == Read {
		answer.data = make([]byte, p.length)
		answer.length = p.length
		return l.handler.Access(Read, p.key, p.address, answer.data)
	}
	if p.operation.isAtomic() {
		return s.carryOutAtomic(p, answer)
	}
	if s.receive == nil && (p.operation == Send || (isLast && hasImmediate)) {
		receive, err := l.handler.Receive(l.ctx)
		if err != nil {
			return err
		}
		s.receive = receive
	}
	var err error
	switch {
	case p.operation == Send:
		err = s.receive.Store(p.data, s.got)
	case len(p.data) > 0:
		err = l.handler.Access(Write, p.key, p.address, p.data)
	}
	s.got += uint64(len(p.data))
	if isLast && err == nil {
		s.complete = &Message{Length: s.got, Immediate: p.immediate, HasImmediate: hasImmediate,
			IsWrite: p.operation == Write}
		s.got = 0
	}
	return err
}

func (s *server) carryOutAtomic(p *part, answer *part) error {
	var operands [2]uint64
	for i := range len(p.data) / WordSize {
		operands[i] = binary.LittleEndian.Uint64(p.data[i*WordSize:])
	}
	before, err := s.link.handler.Atomic(p.operation, p.key, p.address, operands)
	answer.data = binary.LittleEndian.AppendUint64(nil, before)
	answer.length = WordSize
	return err
}

// failReceive fails the receive of a message that has not come completely.
func (s *server) failReceive() {
	if s.receive != nil {
		s.receive.Complete(Message{Err: errPeer})
	}
}
