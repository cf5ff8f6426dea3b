// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

var testTerms = terms{maxMessageSize: 256, receiveQueue: 4, peerReceiveQueue: 4}

// testLimits allows little memory, so that exceeding it is cheap.
func testLimits() Limits {
	limits := defaultLimits
	limits.MaxExportBytes = 1 << 20
	return limits
}

// newHalfConnection returns one side of a connection, and a bare socket for the other side, with
// which a test can do what no provider would. The connection serves nothing until start.
func newHalfConnection(tb testing.TB, role role) (*connection, *frameSocket) {
	tb.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	own, other := socketOf(tb, pair[0]), socketOf(tb, pair[1])
	c := newConnection(role, own, comch.Peer{PID: os.Getpid()}, testTerms, testLimits(),
		newPool(nil, unlimited), zap.NewNop())
	return c, other
}

func socketOf(tb testing.TB, descriptor int) *frameSocket {
	tb.Helper()
	file := os.NewFile(uintptr(descriptor), "socket")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		tb.Fatal(err)
	}
	return newFrameSocket(newUnixSocket(conn.(*net.UnixConn)), testTerms.maxMessageSize)
}

// newServedConnection is newHalfConnection with start.
func newServedConnection(tb testing.TB, role role) (*connection, *frameSocket) {
	tb.Helper()
	c, peer := newHalfConnection(tb, role)
	peer.setTimeout(time.Minute)
	c.start()
	tb.Cleanup(func() {
		c.Abort()
		peer.close()
		c.awaitGoroutines(time.Minute)
	})
	return c, peer
}

// awaitEnd waits until the connection has ended and returns the reason.
func awaitEnd(tb testing.TB, c comch.Connection) error {
	tb.Helper()
	select {
	case <-c.Done():
		return c.Err()
	case <-time.After(testkit.Patience):
		tb.Fatal("the connection has not ended")
		return nil
	}
}

// newTestPair returns both sides of a started connection.
func newTestPair(tb testing.TB) (client, server *connection) {
	tb.Helper()
	client, other := newHalfConnection(tb, clientRole)
	server = newConnection(serverRole, other, client.peer, testTerms, testLimits(),
		newPool(nil, unlimited), client.log)
	client.start()
	server.start()
	tb.Cleanup(func() {
		client.Abort()
		server.Abort()
	})
	return client, server
}

func allocate(tb testing.TB, length uint64) *memory.Region {
	tb.Helper()
	region, err := memory.Alloc("emulated-test", length)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = region.Close() })
	return region
}

func duplicateOf(tb testing.TB, descriptor int) int {
	tb.Helper()
	dup, err := duplicate(descriptor)
	if err != nil {
		tb.Fatal(err)
	}
	return dup
}
