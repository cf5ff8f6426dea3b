package iwarp_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// newCrowd makes a queue with that many idle connections.
func newCrowd(t testing.TB, count int) rdma.CompletionQueue {
	t.Helper()
	x, y := newSide(t, false), newSide(t, false)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	listener, err := y.device.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := func(s *side) rdma.ConnectionConfig {
		return rdma.ConnectionConfig{Domain: s.domain, Queue: s.queue, SendRequests: 1, ReceiveRequests: 1}
	}
	failed := make(chan error, 1)
	var conns []rdma.Connection
	for range count {
		go func() {
			conn, err := x.device.Connect(ctx, listener.Address(), config(x))
			conns = append(conns, conn)
			failed <- err
		}()
		request, err := listener.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := request.Accept(ctx, config(y)); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { disperse(x, y, conns) })
	x.queue.Poll(nil)
	return x.queue
}

// disperse closes all connections and waits for their ends on both sides.
func disperse(x, y *side, conns []rdma.Connection) {
	for _, c := range conns {
		c.Close()
	}
	for _, s := range []*side{x, y} {
		for ended := 0; ended < len(conns); {
			ended += s.queue.Poll(s.poll[:])
		}
		_ = s.queue.Close()
	}
}
