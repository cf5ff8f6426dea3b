// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

// deadlineListener counts the deadlines that its connections get, and notes whether the last call
// has set or removed one.
type deadlineListener struct {
	net.Listener
	limited   *atomic.Bool
	deadlines *atomic.Int64
}

type deadlineConn struct {
	*net.UnixConn
	listener deadlineListener
}

func (l deadlineListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return deadlineConn{conn.(*net.UnixConn), l}, nil
}

func (c deadlineConn) SetDeadline(at time.Time) error {
	c.listener.limited.Store(!at.IsZero())
	if !at.IsZero() {
		c.listener.deadlines.Add(1)
	}
	return c.UnixConn.SetDeadline(at)
}

// A client that asks for an export waits at its barrier, without a deadline of the negotiation. One
// that only asks about it does not wait.
func TestAConnectionBeginsBehindTheBarrierOfItsExport(t *testing.T) {
	export := newMemoryExport()
	reached, open := make(chan struct{}, 1), make(chan struct{})
	var limited atomic.Bool
	var deadlines atomic.Int64
	export.barrier = func(ctx context.Context) error {
		if limited.Load() {
			t.Error("the negotiation's deadline goes on at the barrier")
		}
		reached <- struct{}{}
		select {
		case <-open:
		case <-ctx.Done():
			t.Error("the barrier has timed out")
		}
		return nil
	}
	server, _ := startServer(t, nbd.Config{BarrierTimeout: testkit.Patience}, export)
	path := t.TempDir() + "/nbd"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(deadlineListener{listener, &limited, &deadlines}); err != nil {
		t.Fatal(err)
	}
	for name, request := range map[string][]byte{
		"GO":          append(append(optionHeader(optGo, 10), text("disk")...), 0, 0),
		"EXPORT_NAME": append(optionHeader(optExportName, 4), "disk"...),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.greet()
			c.mustOption(optInfo, append(text("disk"), 0, 0))
			c.mustOption(optStructured, nil)
			c.write(request)
			<-reached
			before := deadlines.Load()
			open <- struct{}{}
			if c.mode = structured; name == "GO" {
				c.answers(optGo)
			} else {
				c.read(10)
			}
			if deadlines.Load() != before+1 {
				t.Error("the negotiation has no deadline behind the barrier")
			}
			if o := c.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
				t.Errorf("flush fails with %v", o.failure)
			}
		})
	}
}

// A client that cannot have the export is told so before it is told that it has it.
func TestAnExportThatIsNotReadyIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(e *memoryExport){
		"former requests":     func(e *memoryExport) { e.barrier = failingBarrier },
		"no room at a worker": func(e *memoryExport) { e.sessions = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			export := newMemoryExport()
			spoil(export)
			server, path := startServer(t, nbd.Config{MaxConnections: 1}, export)
			c := dial(t, path)
			c.greet()
			if a := c.option(optGo, append(text("disk"), 0, 0)); a[0].kind != repErr+2 {
				t.Errorf("GO is answered with %#x", a[0].kind)
			}
			other := dial(t, path)
			other.greet()
			other.write(append(optionHeader(optExportName, 4), "disk"...))
			other.expectEnd()
			testkit.Eventually(t, "nobody has a place", func() bool {
				return server.Status()[0].Connections == 0
			})
			export.set(func() { export.barrier, export.sessions = nil, 1 })
			c.choose(structured)
			if o := c.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
				t.Errorf("flush fails with %v", o.failure)
			}
		})
	}
}

func failingBarrier(context.Context) error { return errors.New("requests are in progress") }

// A client that goes away between the answer to GO and its first request gives its place back.
func TestAClientThatLeavesAtTheBarrierLeavesNothingBehind(t *testing.T) {
	export := newMemoryExport()
	reached, open := make(chan struct{}), make(chan struct{})
	export.barrier = func(context.Context) error {
		reached <- struct{}{}
		<-open
		return nil
	}
	server, path := startServer(t, nbd.Config{Workers: 2}, export)
	for range 20 {
		c := dial(t, path)
		c.greet()
		c.write(append(append(optionHeader(optGo, 10), text("disk")...), 0, 0))
		<-reached
		_ = c.conn.Close()
		open <- struct{}{}
	}
	testkit.Eventually(t, "all places are free", func() bool {
		connections := server.Status()[0].Connections
		export.mu.Lock()
		defer export.mu.Unlock()
		return connections == 0 && export.open == 0
	})
}

// A client has said that it leaves, or has died while its requests wait behind one for which there
// is no room. A new client waits for the end of the connection, but not for ever.
func TestAConnectionThatIsLeavingIsWaitedForAndThenEnded(t *testing.T) {
	own := credentials(t, mutualtlstest.NewAuthority(t), "server.test")
	for _, test := range []struct {
		name               string
		disconnects, isTLS bool
	}{{"after a request to disconnect", true, false}, {"without one", false, false},
		{"without one over TLS", false, true}} {
		t.Run(test.name, func(t *testing.T) {
			export := newMemoryExport()
			export.held, export.room = true, 512
			config := nbd.Config{BarrierTimeout: 2 * time.Millisecond}
			if test.isTLS {
				config.TLS = func() *tls.Config { return own.ServerWithoutProtocol(nil) }
			}
			server, path := startServer(t, config, export)
			connect := func() (c *client, carrier net.Conn) {
				c = dial(t, path)
				carrier = c.conn
				c.greet()
				if test.isTLS {
					c.startTLS(own.Client("server.test"))
				}
				c.choose(structured)
				return c, carrier
			}
			former, carrier := connect()
			w := former.encode(call{kind: blockio.Write, length: 512, data: make([]byte, 512)})
			requests, want := append(w, w...), 2 // and there is no room for the second
			if test.disconnects {
				requests, want = append(w, former.encode(call{kind: nbd.Disconnect})...), 1
			}
			former.write(requests)
			testkit.Eventually(t, "the server has received the requests", func() bool {
				return server.Status()[0].InFlight == want
			})
			if !test.disconnects {
				if err := carrier.(*net.UnixConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			c, _ := connect()
			if n := server.Status()[0].Connections; n != 1 {
				t.Errorf("%d connections, one of which should have ended", n)
			}
			export.set(func() { export.held = false })
			if o := c.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
				t.Errorf("flush fails with %v", o.failure)
			}
		})
	}
}

// A client that comes back finds the place of its former connection, although the server had not
// noticed the end of that one.
func TestAClientThatIsGoneHoldsNoPlace(t *testing.T) {
	_, path := startServer(t, nbd.Config{MaxConnections: 1}, newMemoryExport())
	for range 50 {
		c := connect(t, path, structured)
		_ = c.conn.Close()
	}
}

// An operation at one worker may wait for one that a dead connection has left at another.
func TestDisksStayOpenUntilAllConnectionsHaveEnded(t *testing.T) {
	export := newMemoryExport()
	server, path := startServer(t, nbd.Config{Workers: 2}, export)
	idle, busy := connect(t, path, structured), connect(t, path, structured)
	export.set(func() { export.held = true })
	busy.write(busy.encode(call{kind: blockio.Flush}))
	testkit.Eventually(t, "the request is in progress", func() bool {
		return server.Status()[0].InFlight == 1
	})
	closed := make(chan error, 1)
	go func() { closed <- server.Close(t.Context()) }()
	idle.expectEnd()
	for range 200 {
		var before int
		export.set(func() { before = export.polls[0] })
		testkit.Eventually(t, "the disk of the idle connection is polled", func() bool {
			export.mu.Lock()
			defer export.mu.Unlock()
			return export.polls[0] > before || export.closedEarly
		})
	}
	export.set(func() { export.held = false })
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if export.closedEarly {
		t.Error("a disk was closed while the export had connections")
	}
}

// What a client has sent and the server has not read when it is gone has no effect.
func TestRequestsOfAClientThatIsGoneAreNotRead(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			export := newMemoryExport()
			export.held = true
			server, path := startServer(t, nbd.Config{}, export)
			c := connect(t, path, m)
			data := bytes.Repeat([]byte{1}, 1<<20)
			c.write(c.encode(call{kind: blockio.Write, length: 1 << 20, data: data}))
			c.write(c.encode(call{kind: blockio.Write, offset: 4 << 20, length: 512,
				data: data[:512]}))
			testkit.Eventually(t, "the first write has all of the room", func() bool {
				export.mu.Lock()
				defer export.mu.Unlock()
				return export.used == export.room
			})
			_ = c.conn.Close()
			testkit.Eventually(t, "the connection has ended", func() bool {
				return server.Status()[0].Connections == 0
			})
			export.set(func() { export.held = false })
			o := connect(t, path, structured).do(call{kind: blockio.Read,
				offset: 4 << 20, length: 512})
			if o.failure != blockio.Success || !bytes.Equal(o.data, make([]byte, 512)) {
				t.Errorf("a request of a client that is gone was carried out (%v)", o.failure)
			}
		})
	}
}

// A client may request to disconnect and be gone before the server has read that.
func TestAHastyDisconnectIsRegular(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	_, path := startServer(t, nbd.Config{Logger: zap.New(core)}, newMemoryExport())
	const rounds = 30
	for i := range rounds {
		c := connect(t, path, modes[i%len(modes)])
		if i%2 == 0 {
			c.write(c.encode(call{kind: nbd.Disconnect}))
		}
		_ = c.conn.Close()
	}
	testkit.Eventually(t, "all connections have ended", func() bool {
		return logs.FilterMessage("NBD client disconnected").Len() == rounds
	})
	for _, entry := range logs.FilterMessage("NBD client disconnected").All() {
		if reason, found := entry.ContextMap()["reason"]; found {
			t.Errorf("disconnected with reason %v", reason)
		}
	}
}
