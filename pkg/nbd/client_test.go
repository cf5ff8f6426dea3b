// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The client has its own idea of the numbers of the protocol, so that a wrong constant of the
// server does not go unnoticed.
const (
	optExportName = 1
	optAbort      = 2
	optList       = 3
	optStartTLS   = 5
	optInfo       = 6
	optGo         = 7
	optStructured = 8
	optListMeta   = 9
	optSetMeta    = 10
	optExtended   = 11

	repAck = 1
	repErr = 1 << 31
)

// mode is what a client negotiates.
type mode int

const (
	simple mode = iota
	structured
	extended
)

func (m mode) String() string { return [...]string{"simple", "structured", "extended"}[m] }

// startServer serves an export under the name "disk" and returns the path of its socket.
func startServer(t testing.TB, config nbd.Config, export blockio.Export) (*nbd.Server, string) {
	t.Helper()
	if config.Logger == nil {
		if t, ok := t.(*testing.T); ok {
			config.Logger = zaptest.NewLogger(t)
		}
	}
	server, err := nbd.NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := server.AddExport("disk", export); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "nbd")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(listener); err != nil {
		t.Fatal(err)
	}
	return server, path
}

// failing is a test, or a check of package rapid.
type failing interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// client is an NBD client that does what a test says, right or wrong.
type client struct {
	t    failing
	conn net.Conn
	mode mode
	size uint64
	// flags are the transmission flags.
	flags uint16
}

func dial(t testing.TB, path string) *client {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, conn: conn}
}

// greet does the handshake up to the options.
func (c *client) greet() {
	c.t.Helper()
	hello := c.read(18)
	if string(hello[:16]) != "NBDMAGICIHAVEOPT" || hello[17] != 3 {
		c.t.Fatalf("the server greets with %q", hello)
	}
	c.write(binary.BigEndian.AppendUint32(nil, 3))
}

// connect negotiates a mode and chooses the export "disk".
func connect(t testing.TB, path string, m mode) *client {
	t.Helper()
	c := dial(t, path)
	c.greet()
	c.choose(m)
	return c
}

func (c *client) choose(m mode) {
	c.t.Helper()
	c.mode = m
	switch m {
	case structured:
		c.mustOption(optStructured, nil)
	case extended:
		c.mustOption(optExtended, nil)
	}
	if m != simple {
		c.mustOption(optSetMeta, append(text("disk"), queries("base:allocation")...))
	}
	for _, info := range c.mustOption(optGo, append(text("disk"), 0, 0)) {
		if binary.BigEndian.Uint16(info.data) == 0 {
			c.size, c.flags = binary.BigEndian.Uint64(info.data[2:]),
				binary.BigEndian.Uint16(info.data[10:])
		}
	}
}

func text(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

func queries(all ...string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(all)))
	for _, q := range all {
		b = append(b, text(q)...)
	}
	return b
}

func (c *client) read(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatalf("read %d bytes: %v", n, err)
	}
	return b
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// expectEnd fails unless the server ends the connection without sending anything more.
func (c *client) expectEnd() {
	c.t.Helper()
	if n, err := c.conn.Read(make([]byte, 1)); n > 0 || isTimeout(err) {
		c.t.Fatalf("the server has sent %d bytes instead of ending the connection: %v", n, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// answer is a reply to an option.
type answer struct {
	kind uint32
	data []byte
}

func optionHeader(option uint32, length int) []byte {
	b := append([]byte(nil), "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, option)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// option sends an option and returns the answers, of which the last is final.
func (c *client) option(option uint32, data []byte) []answer {
	c.t.Helper()
	c.write(append(optionHeader(option, len(data)), data...))
	return c.answers(option)
}

func (c *client) answers(option uint32) []answer {
	c.t.Helper()
	var all []answer
	for {
		head := c.read(20)
		if binary.BigEndian.Uint64(head) != 0x3e889045565a9 ||
			binary.BigEndian.Uint32(head[8:]) != option {
			c.t.Fatalf("the answer to option %d begins with % x", option, head)
		}
		a := answer{kind: binary.BigEndian.Uint32(head[12:]),
			data: c.read(int(binary.BigEndian.Uint32(head[16:])))}
		all = append(all, a)
		if a.kind == repAck || a.kind >= repErr {
			return all
		}
	}
}

// mustOption returns the answers before the acknowledgment.
func (c *client) mustOption(option uint32, data []byte) []answer {
	c.t.Helper()
	all := c.option(option, data)
	last := all[len(all)-1]
	if last.kind != repAck {
		c.t.Fatalf("option %d is answered with %#x: %s", option, last.kind, last.data)
	}
	return all[:len(all)-1]
}

// call is a request of a client.
type call struct {
	kind   blockio.Command
	flags  uint16
	cookie uint64
	offset uint64
	length uint64
	data   []byte // to write
}

func (c *client) encode(r call) []byte {
	magic := uint32(0x25609513)
	if c.mode == extended {
		magic = 0x21e41c71
		if r.kind == blockio.Write {
			r.flags |= 1 << 5
		}
	}
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint16(b, r.flags)
	b = binary.BigEndian.AppendUint16(b, uint16(r.kind))
	b = binary.BigEndian.AppendUint64(b, r.cookie)
	b = binary.BigEndian.AppendUint64(b, r.offset)
	if c.mode == extended {
		b = binary.BigEndian.AppendUint64(b, r.length)
	} else {
		b = binary.BigEndian.AppendUint32(b, uint32(r.length))
	}
	return append(b, r.data...)
}

// outcome is the answer to a request.
type outcome struct {
	failure blockio.Errno
	data    []byte // that was read
	chunks  int    // with data
	extents []extent
}

type extent struct{ length, flags uint64 }

// receive receives one message, and adds it to the outcomes of the requests in progress, by cookie.
// It returns the cookie of a request that it completes.
func (c *client) receive(calls map[uint64]call, outcomes map[uint64]*outcome) (uint64, bool) {
	c.t.Helper()
	magic := binary.BigEndian.Uint32(c.read(4))
	lookup := func(cookie uint64) (call, *outcome) {
		r, ok := calls[cookie]
		if !ok {
			c.t.Fatalf("a reply to %#x, which is not in progress", cookie)
		}
		if outcomes[cookie] == nil {
			outcomes[cookie] = &outcome{}
			if r.kind == blockio.Read {
				outcomes[cookie].data = make([]byte, r.length)
			}
		}
		return r, outcomes[cookie]
	}
	switch {
	case magic == 0x67446698 && c.mode != extended:
		b := c.read(12)
		cookie := binary.BigEndian.Uint64(b[4:])
		r, o := lookup(cookie)
		o.failure = blockio.Errno(binary.BigEndian.Uint32(b))
		if r.kind == blockio.Read && o.failure == blockio.Success {
			if c.mode != simple {
				c.t.Fatal("a simple reply to a read, although structured replies were negotiated")
			}
			o.data = c.read(int(r.length))
			o.chunks++
		}
		return cookie, true
	case magic == 0x668e33ef && c.mode == structured:
		b := c.read(16)
		return c.chunk(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]),
			binary.BigEndian.Uint64(b[4:]), uint64(binary.BigEndian.Uint32(b[12:])), lookup)
	case magic == 0x6e8a278c && c.mode == extended:
		b := c.read(28)
		r, _ := lookup(binary.BigEndian.Uint64(b[4:]))
		if offset := binary.BigEndian.Uint64(b[12:]); offset != r.offset {
			c.t.Fatalf("a reply with offset %d to a request at %d", offset, r.offset)
		}
		return c.chunk(binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]),
			binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[20:]), lookup)
	}
	c.t.Fatalf("reply magic %#x in mode %v", magic, c.mode)
	return 0, false
}

// chunk receives the payload of a chunk.
func (c *client) chunk(flags, kind uint16, cookie, length uint64,
	lookup func(uint64) (call, *outcome)) (uint64, bool) {
	c.t.Helper()
	r, o := lookup(cookie)
	payload := c.read(int(length))
	switch kind {
	case 0:
		if length != 0 || flags&1 == 0 {
			c.t.Fatalf("a chunk of type none with %d bytes and flags %#x", length, flags)
		}
	case 1:
		offset := binary.BigEndian.Uint64(payload)
		if offset < r.offset || offset+length-8 > r.offset+r.length || length <= 8 {
			c.t.Fatalf("a chunk of %d bytes at %d for a request of %d at %d", length-8, offset,
				r.length, r.offset)
		}
		copy(o.data[offset-r.offset:], payload[8:])
		o.chunks++
	case 5:
		for b := payload[4:]; len(b) > 0; b = b[8:] {
			o.extents = append(o.extents, extent{uint64(binary.BigEndian.Uint32(b)),
				uint64(binary.BigEndian.Uint32(b[4:]))})
		}
	case 6:
		for b := payload[8:]; len(b) > 0; b = b[16:] {
			o.extents = append(o.extents, extent{binary.BigEndian.Uint64(b),
				binary.BigEndian.Uint64(b[8:])})
		}
	case 1<<15 + 1:
		o.failure = blockio.Errno(binary.BigEndian.Uint32(payload))
	default:
		c.t.Fatalf("a chunk of type %d", kind)
	}
	return cookie, flags&1 != 0
}

// do sends a request and waits for its outcome.
func (c *client) do(r call) *outcome {
	c.t.Helper()
	c.write(c.encode(r))
	return c.await(r)
}

// await waits for the outcome of a request that was sent.
func (c *client) await(r call) *outcome {
	c.t.Helper()
	outcomes := make(map[uint64]*outcome)
	for {
		if _, done := c.receive(map[uint64]call{r.cookie: r}, outcomes); done {
			return outcomes[r.cookie]
		}
	}
}

// awaitAll waits for the outcomes of requests that were sent, by cookie.
func (c *client) awaitAll(calls map[uint64]call) map[uint64]*outcome {
	c.t.Helper()
	outcomes := make(map[uint64]*outcome)
	for completed := 0; completed < len(calls); {
		if _, done := c.receive(calls, outcomes); done {
			completed++
		}
	}
	return outcomes
}

func (r call) String() string {
	return fmt.Sprintf("%v of %d bytes at %d with flags %#x", r.kind, r.length, r.offset, r.flags)
}
