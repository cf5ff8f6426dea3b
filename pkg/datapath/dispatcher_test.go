// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"runtime"
	"testing"
	"weak"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// oneCompletion is a completion queue that returns one completion per poll.
type oneCompletion struct {
	rdma.CompletionQueue
	context uint64
}

func (q *oneCompletion) Poll(completions []rdma.Completion) int {
	completions[0] = rdma.Completion{Context: q.context, Opcode: rdma.OpSend}
	return 1
}

// idleHandler ignores completions.
type idleHandler struct{ handled, batches int }

func (h *idleHandler) handleCompletion(iomsg.ConnectionRole, *rdma.Completion) { h.handled++ }
func (h *idleHandler) endBatch()                                               { h.batches++ }

// A closed lane has megabytes of tables, for itself and its connections. The worker may be idle
// afterwards, so nothing would replace a reference that the dispatcher kept.
func TestADispatcherDoesNotKeepAnUnregisteredHandler(t *testing.T) {
	queue := &oneCompletion{}
	d := &dispatcher{queue: queue}
	use := func() weak.Pointer[idleHandler] {
		handler := &idleHandler{}
		id := d.register(handler)
		queue.context = id.context(iomsg.DataConnection)
		if d.Poll(); handler.handled != 1 || handler.batches != 1 {
			t.Fatalf("handled %d completions in %d batches, want 1 in 1", handler.handled,
				handler.batches)
		}
		d.unregister(id)
		return weak.Make(handler)
	}
	kept := use()
	runtime.GC()
	if kept.Value() != nil {
		t.Error("an unregistered handler is still reachable")
	}
	runtime.KeepAlive(d)
}
