// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// work is a posted request.
type work struct {
	request rdma.SendRequest // of a receive, ID and Local
	offset  uint64           // of the local segment in region
	// region is in use until the request has completed. Deregister reads it.
	region atomic.Pointer[region]
	ended  bool
	status rdma.CompletionStatus
	length uint32
}

// acquire notes that a request uses a region. Either it sees that the region is being deregistered,
// or Deregister sees the request.
func (w *work) acquire(r *region) error {
	w.region.Store(r)
	if r.revoked.Load() {
		w.region.Store(nil)
		return errUnknownKey
	}
	return nil
}

// take finds the memory of a request that is being posted.
func (c *connection) take(w *work, writes bool) error {
	w.ended, w.status, w.length, w.offset = false, rdma.StatusSuccess, 0, 0
	if w.request.Local.Length == 0 {
		return nil
	}
	r, offset, err := c.domain.resolve(&w.request.Local, writes)
	if err != nil {
		return err
	}
	w.offset = offset
	return w.acquire(r)
}

// drop takes back the first requests of a post that has failed.
func (c *connection) drop(q *workqueue.Queue[work], count int) {
	for i := range count + 1 {
		q.At(q.Tail + uint32(i)).region.Store(nil)
	}
}

func (w *work) local() doca.Segment {
	r := w.region.Load()
	if r == nil {
		return doca.Segment{}
	}
	return doca.Segment{Map: r.memory, Offset: w.offset, Length: uint64(w.request.Local.Length)}
}

// uses reports whether a posted request uses a region. Any goroutine may call it.
func (c *connection) uses(r *region) bool {
	for _, q := range []*workqueue.Queue[work]{&c.sends, &c.receives} {
		for i := range q.Slots() {
			if q.At(uint32(i)).region.Load() == r {
				return true
			}
		}
	}
	return false
}

func flush(w *work) {
	if !w.ended {
		w.ended, w.status = true, rdma.StatusFlushed
	}
}
