// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// TestBothSidesYieldUnderContention moves data that fits into the ring: one side copies it in, the
// other out.
func TestBothSidesYieldUnderContention(t *testing.T) {
	const size = softrdma.YieldBytes
	x, y := connected(t)
	source, err := x.domain.Register(memory.Wrap(make([]byte, size)), memory.LocalWrite)
	must(t, err)
	defer func() { must(t, source.Deregister()) }()
	sink, err := y.domain.Register(memory.Wrap(make([]byte, size)), memory.RemoteWrite)
	must(t, err)
	defer func() { must(t, sink.Deregister()) }()
	write := []rdma.SendRequest{{Opcode: rdma.OpWrite, RemoteKey: sink.RemoteKey(),
		Local: rdma.Segment{Key: source.LocalKey(), Length: size}}}
	table := x.domain.(*registration.Domain).Table()
	other := registration.NewDomain("other session", table, func() {})

	for _, contended := range []bool{false, true} {
		x.domain.(*registration.Domain).Activate()
		x.queue.Fairness, y.queue.Fairness = softrdma.Fairness{}, softrdma.Fairness{}
		if contended {
			other.Activate()
		}
		must(t, x.conn.PostSend(write))
		x.conn.Flush()
		if got := x.queue.Fairness.BeginTurn(); got != contended {
			t.Errorf("contended: %v, but the sender yields: %v", contended, got)
		}
		if contended {
			other.Activate()
		} else {
			y.domain.(*registration.Domain).Activate()
		}
		y.poll()
		if got := y.queue.Fairness.BeginTurn(); got != contended {
			t.Errorf("contended: %v, but the receiver yields: %v", contended, got)
		}
		x.poll()
	}
}
