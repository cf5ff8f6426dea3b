// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// PostReceive adds receives to the receive queue.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	if c.Phase == softrdma.PhaseDetached {
		return workqueue.ErrDetached
	}
	if uint64(len(requests)) > uint64(c.receives.Room()) {
		return workqueue.ErrReceiveQueueFull
	}
	for i := range requests {
		r := &requests[i]
		w := c.receives.At(c.receives.Tail + uint32(i))
		w.request = rdma.SendRequest{ID: r.ID, Local: r.Local}
		if err := c.take(w, true); err != nil {
			c.drop(&c.receives, i)
			return workqueue.PostError("receive", r.ID, err)
		}
	}
	c.receives.Tail += uint32(len(requests))
	if c.Phase == softrdma.PhaseEnded {
		c.flushReceives()
	}
	return nil
}

func (c *connection) submitReceives() {
	for q := &c.receives; q.Next != q.Tail; q.Next++ {
		slot := c.sends.Slots() + q.Slot(q.Next)
		err := c.rdma.Submit(doca.RDMAReceive, slot, q.At(q.Next).local(), doca.Segment{})
		if errors.Is(err, status.Again) {
			return
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// flushReceives completes the receives that have not ended.
func (c *connection) flushReceives() {
	for q := &c.receives; q.Head != q.Tail; {
		w := q.At(q.Head)
		flush(w)
		c.complete(q, w, rdma.OpReceive)
	}
	c.receives.Next = c.receives.Tail
}
