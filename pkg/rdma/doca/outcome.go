// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// collect delivers what libdoca has done, and returns whether there was something.
func (c *connection) collect() bool {
	c.rdma.Turn(turnRecords)
	found := false
	for {
		done, ok := c.rdma.Next()
		if !ok {
			break
		}
		found = true
		c.note(&done)
	}
	before := c.queue.Completions.Len()
	c.deliver()
	return found || c.queue.Completions.Len() > before
}

// note records the end of an operation.
func (c *connection) note(done *doca.Worked) {
	q, slot := &c.sends, done.Slot
	if slot >= c.sends.Slots() {
		q, slot = &c.receives, slot-c.sends.Slots()
	}
	w := q.At(uint32(slot))
	w.ended, w.length = true, done.Length
	w.region.Store(nil)
	if done.Err == nil {
		return
	}
	w.status = outcomeOf(q == &c.receives, done.Err)
	if w.status != rdma.StatusFlushed || c.stream == nil {
		c.fail(c.device.withGID(done.Err))
		return
	}
	// The peer has gone. The stream will tell whether that was in order.
	time.AfterFunc(endTimeout, func() { c.fail(c.device.withGID(done.Err)) })
}

// outcomeOf translates an error of libdoca.
func outcomeOf(isReceive bool, err error) rdma.CompletionStatus {
	switch status.CodeOf(err) {
	case status.NotConnected, status.ConnectionReset, status.ConnectionAborted, status.Shutdown:
		return rdma.StatusFlushed
	case status.TooBig:
		if isReceive {
			return rdma.StatusLocalLength
		}
	case status.TimeOut:
		return rdma.StatusRetryExceeded
	}
	if isReceive {
		return rdma.StatusFatal
	}
	return rdma.StatusRemoteAccess
}

// deliver completes the requests that have ended, in the order in which they were posted. One that
// the end of the connection has flushed waits for that end.
func (c *connection) deliver() {
	for q := &c.receives; q.Head != q.Next; {
		w := q.At(q.Head)
		if !w.ended || w.status == rdma.StatusFlushed {
			break
		}
		c.complete(q, w, rdma.OpReceive)
	}
	for q := &c.sends; q.Head != q.Next; {
		w := q.At(q.Head)
		if !w.ended || w.status == rdma.StatusFlushed {
			break
		}
		c.completeSend(w)
	}
}

// complete removes w, the request at the head of q.
func (c *connection) complete(q *workqueue.Queue[work], w *work, opcode rdma.Opcode) {
	w.region.Store(nil)
	*q.Complete(&c.queue.Completions) = rdma.Completion{ID: w.request.ID,
		Context: c.Context, Length: w.length, Opcode: opcode, Status: w.status}
}
