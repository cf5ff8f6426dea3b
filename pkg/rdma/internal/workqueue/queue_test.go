// SPDX-License-Identifier: Apache-2.0

package workqueue

import (
	"errors"
	"math"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A queue has room for its limit of requests, and polling a completion returns the room of its
// request and of the silent ones before it.
func TestRoomIsReturnedWithTheCompletions(t *testing.T) {
	const limit = 6
	q, completions := NewQueue[int](limit), NewCompletions(1)
	for round := range 100 {
		if room := q.Room(); room != limit {
			t.Fatalf("round %d: room for %d requests, want %d", round, room, limit)
		}
		q.Tail += limit
		if room := q.Room(); room != 0 {
			t.Fatalf("round %d: room for %d requests in a full queue", round, room)
		}
		for _, slots := range []uint32{1, 3, 2} {
			for range slots - 1 {
				q.CompleteSilently()
			}
			q.Complete(&completions).ID = uint64(slots)
		}
		polled, room := make([]rdma.Completion, 1), uint32(0)
		for _, slots := range []uint32{1, 3, 2} {
			if n := completions.Collect(polled); n != 1 || polled[0].ID != uint64(slots) {
				t.Fatalf("round %d: %d completions, %+v", round, n, polled)
			}
			if room += slots; q.Room() != room {
				t.Fatalf("round %d: room for %d requests, want %d", round, q.Room(), room)
			}
		}
		if n := completions.Collect(polled); n != 0 {
			t.Fatalf("round %d: a completion too many", round)
		}
	}
}

func TestSendRequestsAreChecked(t *testing.T) {
	const most = 1000
	for name, test := range map[string]struct {
		opcode rdma.Opcode
		length uint32
		remote uint64
		rights memory.Access
		code   status.Code
	}{
		"a Send":              {rdma.OpSend, most, 0, 0, status.Success},
		"a Write":             {rdma.OpWrite, most, math.MaxUint64 - most, 0, status.Success},
		"a Read":              {rdma.OpRead, most, 0, memory.LocalWrite, status.Success},
		"too long":            {rdma.OpSend, most + 1, 0, 0, status.TooBig},
		"wraps around":        {rdma.OpWrite, most, math.MaxUint64 - most + 1, 0, status.InvalidValue},
		"a Read wraps around": {rdma.OpRead, 1, math.MaxUint64, 0, status.InvalidValue},
		"a receive":           {rdma.OpReceive, 1, 0, 0, status.InvalidValue},
	} {
		request := rdma.SendRequest{Opcode: test.opcode, RemoteAddress: test.remote,
			Local: rdma.Segment{Length: test.length}}
		rights, err := CheckSend(&request, most)
		if test.code == status.Success && err != nil ||
			test.code != status.Success && !errors.Is(err, test.code) || rights != test.rights {
			t.Errorf("%s: rights %#x, error %v", name, uint32(rights), err)
		}
	}
}
