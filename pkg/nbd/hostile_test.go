// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	const attackers = 10_000
	const pending = 32
	export := newMemoryExport()
	_, path := startServer(t, nbd.Config{MaxPending: pending, Logger: zap.NewNop()}, export)
	before, memoryBefore := runtime.NumGoroutine(), memoryInUse()
	honest := connect(t, path, structured)
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	most, mostMemory := 0, uint64(0)
	for i := range attackers {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		// All stages of a negotiation, none of them to its end.
		_, _ = conn.Write(append([]byte{0, 0, 0, 3}, optionHeader(optGo, 100)...)[:i%21])
		if open = append(open, conn); len(open) > 500 { // as many descriptors as a test may have
			_ = open[0].Close()
			open = open[1:]
		}
		if i%500 == 0 {
			if o := honest.do(call{kind: blockio.Read, length: 10}); o.failure != blockio.Success {
				t.Fatalf("read fails with %v", o.failure)
			}
			fresh := connect(t, path, simple)
			fresh.write(fresh.encode(call{kind: nbd.Disconnect}))
			fresh.expectEnd()
			mostMemory = max(mostMemory, memoryInUse())
		}
		most = max(most, runtime.NumGoroutine())
	}
	if most > before+attackers/10 {
		t.Errorf("%d goroutines for %d pending negotiations", most-before, pending)
	}
	// Even 2 KiB for each attacker would be more.
	if mostMemory > memoryBefore+16<<20 {
		t.Errorf("%d bytes for %d pending negotiations", mostMemory-memoryBefore, pending)
	}
	testkit.Eventually(t, "only the pending negotiations are left", func() bool {
		return runtime.NumGoroutine() <= before+pending+4
	})
}

// memoryInUse returns the size of live objects and of stacks, in bytes.
func memoryInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// A client that does not read its replies occupies its own share of the memory, and no more.
func TestASlowReaderHurtsNobodyElse(t *testing.T) {
	export := newMemoryExport()
	server, path := startServer(t, nbd.Config{}, export)
	slow := connect(t, path, structured)
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := range 2000 {
			b := slow.encode(call{kind: blockio.Read, cookie: uint64(i), length: 1 << 20})
			if _, err := slow.conn.Write(b); err != nil {
				return // the test is over
			}
		}
	})
	testkit.Eventually(t, "the slow client fills its share", func() bool {
		export.mu.Lock()
		defer export.mu.Unlock()
		return export.used >= export.room-export.buffer
	})
	fast := connect(t, path, simple)
	for range 200 {
		o := fast.do(call{kind: blockio.Read, offset: 5, length: 100_000})
		if o.failure != blockio.Success {
			t.Fatalf("read fails with %v", o.failure)
		}
	}
	export.mu.Lock()
	used := export.used
	export.mu.Unlock()
	if used > export.room+export.buffer {
		t.Errorf("%d bytes are in use, the slow client's share is %d", used, export.room)
	}
	if n := server.Status()[0].InFlight; n > 256 {
		t.Errorf("%d requests are in flight", n)
	}
	_ = slow.conn.Close()
	sending.Wait()
	testkit.Eventually(t, "the slow client's share is free", func() bool {
		return server.Status()[0].Connections == 1
	})
}

// A client that reads nothing loses what carries its TLS together with its connection.
func TestAClientThatReadsNothingOverTLSIsNotWaitedFor(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	own := credentials(t, authority, "server.test")
	server, err := nbd.NewServer(nbd.Config{
		TLS: func() *tls.Config {
			return own.ServerWithoutProtocol(mutualtlstest.Names("client.test"))
		},
		Admit: func(conn net.Conn) (string, error) {
			return "", conn.(*net.UnixConn).SetWriteBuffer(1) // as little as the system allows
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.SetCloseTimeout(50 * time.Millisecond)
	export := newMemoryExport()
	export.buffer = 64 << 10
	if err := server.AddExport("disk", export); err != nil {
		t.Fatal(err)
	}
	c := dial(t, listen(t, server))
	c.greet()
	c.startTLS(credentials(t, authority, "client.test").Client("server.test"))
	c.choose(structured)
	c.write(c.encode(call{kind: blockio.Read, length: export.room}))
	c.read(1) // then all of the read has its buffers
	testkit.Eventually(t, "the worker has sent more than the client's socket holds", func() bool {
		export.mu.Lock()
		defer export.mu.Unlock()
		return export.used <= export.room-export.buffer
	})
	c.write(make([]byte, len(c.encode(call{})))) // violates the protocol
	testkit.Eventually(t, "the worker has ended the connection", func() bool {
		return server.Status()[0].Connections == 0
	})
	closed := make(chan error, 1)
	go func() { closed <- server.Close(t.Context()) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Error("the server waits for a client that reads nothing")
	}
}

func TestWrongRequestsEndTheConnectionAndNothingElse(t *testing.T) {
	export := newMemoryExport()
	_, path := startServer(t, nbd.Config{}, export)
	honest := connect(t, path, structured)
	for name, test := range map[string]struct {
		mode  mode
		input func(c *client) []byte
	}{
		"wrong magic":       {simple, func(*client) []byte { return make([]byte, 28) }},
		"extended magic":    {simple, func(c *client) []byte { return extendedCall() }},
		"compact magic":     {extended, func(*client) []byte { return append([]byte{0x25, 0x60, 0x95, 0x13}, make([]byte, 28)...) }},
		"a write of 4 GiB":  {simple, func(c *client) []byte { return c.encode(call{kind: blockio.Write, length: 1<<32 - 1}) }},
		"a write of 16 EiB": {extended, func(c *client) []byte { return c.encode(call{kind: blockio.Write, length: 1<<64 - 1}) }},
		"a read with a payload": {extended, func(c *client) []byte {
			return c.encode(call{kind: blockio.Read, flags: 1 << 5, length: 1})
		}},
		"wrong magic after a request": {structured, func(c *client) []byte {
			return append(c.encode(call{kind: blockio.Read, length: 1 << 20}), make([]byte, 28)...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, path, test.mode)
			c.write(test.input(c))
			for b := make([]byte, 1<<20); ; {
				if _, err := c.conn.Read(b); isTimeout(err) {
					t.Fatal("the server keeps the connection")
				} else if err != nil {
					break
				}
			}
			if o := honest.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
				t.Errorf("flush of another client fails with %v", o.failure)
			}
		})
	}
}

func extendedCall() []byte {
	c := &client{mode: extended}
	return c.encode(call{kind: blockio.Read, length: 1})
}

// Clients that vanish in the middle of everything leave nothing behind.
func TestClientsThatVanishLeaveNothingBehind(t *testing.T) {
	const clients = 150
	export := newMemoryExport()
	export.sessions = clients
	server, path := startServer(t, nbd.Config{
		Workers: 2, MaxConnections: clients, // the ends of all may be pending at the same time
		Logger: zap.NewNop(),
	}, export)
	data := make([]byte, 600<<10)
	input := make(map[mode][]byte)
	for _, m := range modes {
		c := &client{mode: m}
		for j := range 10 {
			input[m] = append(input[m], c.encode(call{kind: blockio.Read, cookie: uint64(j),
				length: 3 << 20})...)
			input[m] = append(input[m], c.encode(call{kind: blockio.Write, cookie: uint64(100 + j),
				length: uint64(len(data)), data: data})...)
		}
	}
	for i := range clients {
		c := connect(t, path, modes[i%3])
		b := input[c.mode]
		_ = c.conn.SetWriteDeadline(time.Now().Add(time.Duration(i%7) * time.Millisecond))
		_, _ = c.conn.Write(b[:len(b)*(i%11)/11])
		_ = c.conn.Close()
	}
	testkit.Eventually(t, "all connections have ended and all buffers are released", func() bool {
		s := server.Status()[0]
		export.mu.Lock()
		defer export.mu.Unlock()
		return s.Connections == 0 && s.InFlight == 0 && export.open == 0 && export.used == 0
	})
}

// listen makes a server listen on a new socket.
func listen(t testing.TB, server *nbd.Server) string {
	t.Helper()
	path := t.TempDir() + "/nbd"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(listener); err != nil {
		t.Fatal(err)
	}
	return path
}

func FuzzNegotiation(f *testing.F) {
	for _, input := range violations {
		f.Add(input)
	}
	name := append(text("disk"), 0, 0)
	f.Add(append(append([]byte{0, 0, 0, 3}, optionHeader(optGo, len(name))...), name...))
	long := append(text(strings.Repeat("x", 4096)), 0, 0)
	f.Add(append(append([]byte{0, 0, 0, 3}, optionHeader(optGo, len(long))...), long...))
	meta := append(text("disk"), queries("base:allocation")...)
	f.Add(bytes.Join([][]byte{{0, 0, 0, 3}, optionHeader(optExtended, 0),
		optionHeader(optSetMeta, len(meta)), meta, optionHeader(optList, 0),
		optionHeader(optAbort, 0)}, nil))
	server, path := startServer(f, nbd.Config{Logger: zap.NewNop()}, newMemoryExport())
	f.Fuzz(func(t *testing.T, input []byte) {
		c := dial(t, path)
		c.read(18)
		checkRefusals(t, feed(t, c, input))
		testkit.Eventually(t, "the connection has ended", func() bool {
			return server.Status()[0].Connections == 0
		})
	})
}

func FuzzTransmission(f *testing.F) {
	c := &client{}
	for _, r := range []call{{kind: blockio.Read, length: 5}, {kind: blockio.Write, length: 3,
		data: []byte("abc")}, {kind: blockio.Flush}, {kind: blockio.Trim, length: 1 << 20},
		{kind: blockio.WriteZeroes, length: 77, flags: 2}, {kind: blockio.BlockStatus, length: 1},
		{kind: blockio.Cache, length: 1 << 20}, {kind: nbd.Disconnect}, {kind: 9, length: 9}} {
		for _, m := range modes {
			c.mode = m
			f.Add(byte(m), append(c.encode(r), c.encode(r)...))
		}
	}
	export := newMemoryExport()
	server, path := startServer(f, nbd.Config{Logger: zap.NewNop()}, export)
	f.Fuzz(func(t *testing.T, m byte, input []byte) {
		feed(t, connect(t, path, modes[int(m)%len(modes)]), input)
		testkit.Eventually(t, "the connection has ended and its buffers are released", func() bool {
			s := server.Status()[0]
			export.mu.Lock()
			defer export.mu.Unlock()
			return s.Connections == 0 && s.InFlight == 0 && export.used == 0
		})
	})
}

// longestRefusal is the longest text of an error reply, in bytes.
const longestRefusal = 512

// checkRefusals checks the lengths of the error replies that a server has sent in a negotiation.
func checkRefusals(t *testing.T, output []byte) {
	t.Helper()
	for len(output) >= 20 && binary.BigEndian.Uint64(output) == 0x3e889045565a9 {
		kind, length := binary.BigEndian.Uint32(output[12:]), binary.BigEndian.Uint32(output[16:])
		if kind >= repErr && length > longestRefusal {
			t.Errorf("an error reply of %d bytes: %.100q", length, output[20:])
		}
		output = output[min(20+int(length), len(output)):]
	}
}

// feed sends input and reads until the server ends the connection, which it has to do because the
// input ends. It returns what the server has sent.
func feed(t *testing.T, c *client, input []byte) []byte {
	t.Helper()
	var output []byte
	var reading sync.WaitGroup
	reading.Go(func() {
		for b := make([]byte, 64<<10); ; {
			n, err := c.conn.Read(b)
			output = append(output, b[:n]...)
			if isTimeout(err) {
				t.Error("the server keeps the connection")
				return
			} else if err != nil {
				return
			}
		}
	})
	_, _ = c.conn.Write(input) // the server may end the connection before it has read everything
	_ = c.conn.(*net.UnixConn).CloseWrite()
	reading.Wait()
	_ = c.conn.Close()
	return output
}
