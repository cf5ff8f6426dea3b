// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The stream beside a connection carries frames, little-endian:
//
//	offset size
//	0      4    magic "zcdr"
//	4      1    version 1
//	5      1    kind
//	6      2    length of what follows
//
// A request and an accept hold the Reads from one peer at a time (u16), the Reads outstanding
// (u16), the length of the private data (u8), the private data, and the details of the connection,
// which only libdoca understands. A reject holds the reason. An ask holds a key (u32), and the
// export that answers it the same key and the export, which is empty if the connection's domain has
// no such memory. An end holds a status code (u32, 0 for an orderly end) and its text. It is the
// last frame.
const (
	frameMagic   = 0x7264637a
	frameVersion = 1
	frameHeader  = 8
	maxFrame     = 16 << 10
	maxEndText   = 255
)

// frameKind says what a frame is.
type frameKind uint8

const (
	frameRequest frameKind = iota + 1
	frameAccept
	frameReject
	frameAsk
	frameExport
	frameEnd
)

type frame struct {
	kind    frameKind
	payload []byte
}

func (f *frame) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, frameHeader+len(f.payload)), frameMagic)
	b = append(b, frameVersion, byte(f.kind))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(f.payload)))
	return append(b, f.payload...)
}

// readFrame reads a frame, whose payload it does not check.
func readFrame(from io.Reader) (frame, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return frame{}, err
	}
	length := int(binary.LittleEndian.Uint16(header[6:]))
	f := frame{kind: frameKind(header[5]), payload: make([]byte, min(length, maxFrame))}
	switch {
	case binary.LittleEndian.Uint32(header[:]) != frameMagic:
		return frame{}, badFrame("it begins with %#x", header[:4])
	case header[4] != frameVersion:
		return frame{}, status.Errorf(status.UnsupportedVersion,
			"the peer speaks version %d, and this program knows only %d", header[4], frameVersion)
	case f.kind < frameRequest || f.kind > frameEnd:
		return frame{}, badFrame("its kind is %d", header[5])
	case length > maxFrame:
		return frame{}, badFrame("it has %d bytes", length)
	}
	_, err := io.ReadFull(from, f.payload)
	return f, err
}

func badFrame(format string, arguments ...any) error {
	return status.Errorf(status.InvalidValue, "malformed frame: %s",
		fmt.Sprintf(format, arguments...))
}

// encodeEnd returns an end with the reason, nil for an orderly one.
func encodeEnd(reason error) frame {
	b := binary.LittleEndian.AppendUint32(nil, uint32(status.CodeOf(reason)))
	if reason != nil {
		text := reason.Error()
		b = append(b, text[:min(len(text), maxEndText)]...)
	}
	return frame{frameEnd, b}
}

// parseEnd returns the reason, nil for an orderly end.
func parseEnd(b []byte) error {
	if len(b) < 4 {
		return badFrame("an end of %d bytes", len(b))
	}
	code := status.Code(binary.LittleEndian.Uint32(b))
	if code == status.Success {
		return nil
	}
	if !code.Known() {
		code = status.Unknown
	}
	return status.Errorf(code, "the peer has ended the connection: %q",
		b[4:min(len(b), 4+maxEndText)])
}

// endTimeout bounds how long the last frame of a stream may take.
const endTimeout = time.Second

// stream is the TCP stream beside a connection. Goroutines read and write it.
type stream struct {
	socket net.Conn

	mu      sync.Mutex
	changed sync.Cond // queue has changed
	queue   []frame
	ended   bool // the last frame is in the queue
}

func newStream(socket net.Conn) *stream {
	s := &stream{socket: socket}
	s.changed.L = &s.mu
	return s
}

// maxQueuedFrames bounds what waits for the socket. This side has one ask outstanding, and answers
// one of the peer's at a time.
const maxQueuedFrames = 8

// send queues a frame. It never waits.
func (s *stream) send(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.queue) >= maxQueuedFrames && f.kind != frameEnd {
		return // a peer that does not read gets no answers
	}
	s.queue = append(s.queue, f)
	if s.ended = f.kind == frameEnd; s.ended {
		_ = s.socket.SetWriteDeadline(time.Now().Add(endTimeout))
	}
	s.changed.Signal()
}

// write writes what is queued until the end has been written, or the socket fails.
func (s *stream) write() {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 {
			s.changed.Wait()
		}
		f := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		// A failure ends read, which ends the connection, and so this loop.
		_, _ = s.socket.Write(f.encode())
		if f.kind == frameEnd {
			_ = s.socket.Close()
			return
		}
	}
}

// read serves the peer of c until the stream ends.
func (s *stream) read(c *connection) {
	for {
		f, err := readFrame(s.socket)
		if err != nil {
			c.fail(status.Errorf(status.ConnectionReset, "the stream beside the connection: %w",
				err))
			return
		}
		switch f.kind {
		case frameAsk:
			err = s.answer(c, f.payload)
		case frameExport:
			err = s.learn(c, f.payload)
		case frameEnd:
			if err = parseEnd(f.payload); err == nil {
				c.finish()
				return
			}
		default:
			err = badFrame("kind %d after the handshake", f.kind)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// answer tells the peer the export of memory that it has asked for. Asking for what it must not
// reach ends the connection.
func (s *stream) answer(c *connection, ask []byte) error {
	if len(ask) != 4 {
		return badFrame("an ask of %d bytes", len(ask))
	}
	reply := append([]byte(nil), ask...)
	r := c.domain.find(binary.LittleEndian.Uint32(ask))
	if r != nil {
		reply = append(reply, r.export...)
	}
	s.send(frame{frameExport, reply})
	if len(reply) == len(ask) {
		return status.Errorf(status.IOFailed, "the peer uses a key that no memory has for it")
	}
	return nil
}

// learn takes the answer to the connection's ask.
func (s *stream) learn(c *connection, reply []byte) error {
	if len(reply) < 4 {
		return badFrame("an export of %d bytes", len(reply))
	}
	asked := &answer{key: binary.LittleEndian.Uint32(reply)}
	if len(reply) == 4 {
		asked.err = errNoSuchMemory
	} else {
		asked.memory, asked.err = c.device.doca.ImportMemory(reply[4:])
	}
	if !c.answered.CompareAndSwap(nil, asked) {
		asked.release()
		return badFrame("an export that was not asked for")
	}
	c.Notify()
	return nil
}

var errNoSuchMemory = status.Errorf(status.IOFailed, "the peer has no memory with this key for us")

// answer is what the peer has said about a key.
type answer struct {
	key    uint32
	memory *doca.MemoryMap
	err    error
}

func (a *answer) release() {
	if a.memory != nil {
		_ = a.memory.Close() // a map of a peer's memory; a failure leaks it
	}
}
