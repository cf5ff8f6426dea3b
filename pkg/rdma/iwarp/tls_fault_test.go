// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/tlsrecord"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// secureEnd is one end of a connection with TLS.
type secureEnd struct {
	device rdma.Device
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	conn   rdma.Connection
}

func openSecureEnd(t *testing.T, provider rdma.Provider) *secureEnd {
	t.Helper()
	e := &secureEnd{}
	var errs [3]error
	e.device, errs[0] = provider.Open(netip.MustParseAddr("127.0.0.1"))
	e.domain, errs[1] = e.device.NewProtectionDomain()
	e.queue, errs[2] = e.device.NewCompletionQueue(16)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func (e *secureEnd) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{Domain: e.domain, Queue: e.queue, SendRequests: 8,
		ReceiveRequests: 8, InboundReads: 4, OutboundReads: 4}
}

// poll polls the end's queue, and reports whether its connection has ended.
func (e *secureEnd) poll() bool {
	var completions [8]rdma.Completion
	for _, c := range completions[:e.queue.Poll(completions[:])] {
		if c.Opcode == rdma.OpDisconnected {
			return true
		}
	}
	return false
}

// With TLS, this process copies what it sends. A fault must not end the process.
func TestInaccessibleMemoryFailsOnlyItsConnectionOverTLS(t *testing.T) {
	const pages = 16
	for _, length := range []uint32{64, 4096, 32 << 10} {
		provider := rdmatest.OverTLS(t, New(Options{}))
		x, y := openSecureEnd(t, provider), openSecureEnd(t, provider)
		region, err := x.domain.Register(inaccessibleMemory(t, pages), 0)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := y.device.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			var err error
			x.conn, err = x.device.Connect(t.Context(), listener.Address(), x.config())
			failed <- err
		}()
		request, err := listener.Accept(t.Context())
		if err == nil {
			y.conn, err = request.Accept(t.Context(), y.config())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		err = x.conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend,
			Local: rdma.Segment{Key: region.LocalKey(), Length: length}}})
		if err != nil {
			t.Fatal(err)
		}
		x.conn.Flush()
		testkit.Eventually(t, "the connection ends", x.poll)
		if err := x.conn.Err(); err == nil || !errors.Is(err, status.IOFailed) {
			t.Errorf("%d bytes: the connection ended because of %v", length, err)
		}
		testkit.Eventually(t, "the peer's connection ends", y.poll)
		for _, close := range []func() error{listener.Close, region.Deregister, x.queue.Close,
			y.queue.Close, x.domain.Close, y.domain.Close, x.device.Close, y.device.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// strangeStream is a stream that the data path cannot use.
type strangeStream struct {
	network.Stream
	closed bool
}

func (s *strangeStream) Close() error {
	s.closed = true
	return s.Stream.Close()
}

// A connection that the data path cannot take over is closed: nobody else has it any more.
func TestAStreamThatCannotBeDetachedIsClosed(t *testing.T) {
	own, peer := tcpPair(t)
	authority := mutualtlstest.NewAuthority(t)
	credentials, err := mutualtls.Load(authority.Write(t.TempDir(), []string{"a.test"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := tlsrecord.Server(t.Context(), peer, credentials.DataServer(nil))
		accepted <- err
	}()
	stream := &strangeStream{Stream: own}
	secured, err := tlsrecord.Client(t.Context(), stream, credentials.DataClient("a.test"))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if _, err := detachSocket(secured); !errors.Is(err, status.NotSupported) {
		t.Errorf("detachSocket: %v", err)
	}
	if !stream.closed {
		t.Error("the stream is open")
	}
}
