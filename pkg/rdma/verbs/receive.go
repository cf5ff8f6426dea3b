// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
)

// PostReceive implements rdma.Connection. It posts the receives to the device at once, without
// waiting for Flush.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	c.openIfEstablished()
	if c.phase == phaseDetached {
		return workqueue.ErrDetached
	}
	work, err := c.prepareReceives(requests)
	if err != nil || len(work) == 0 {
		return err
	}
	switch c.phase {
	case phaseOpen:
		if err := c.qp.PostReceive(work); err != nil {
			c.beginClose(err)
		}
	case phaseClosed:
		c.completeAllReceives()
	}
	return nil
}

// prepareReceives puts receives into the ring and returns the work requests for the device, which
// are valid until the next call.
func (c *connection) prepareReceives(requests []rdma.ReceiveRequest) ([]ibv.ReceiveWork, error) {
	r := &c.receives
	if uint32(len(requests)) > r.Room() {
		return nil, workqueue.ErrReceiveQueueFull
	}
	for i := range requests {
		request := &requests[i]
		if _, err := c.domain.resolve(&request.Local, memory.LocalWrite); err != nil {
			return nil, workqueue.PostError("receive", request.ID, err)
		}
		index := r.Tail + uint32(i)
		*r.At(index) = receiveEntry{id: request.ID}
		c.scratch[i] = ibv.ReceiveWork{
			WorkID:   receiveWorkID(c.token, index),
			Address:  request.Local.Address,
			Length:   request.Local.Length,
			LocalKey: request.Local.Key,
		}
	}
	r.Tail += uint32(len(requests))
	return c.scratch[:len(requests)], nil
}

// completeAllReceives does the same for the receive queue.
func (c *connection) completeAllReceives() {
	for e := c.receives.nextFlushed(); e != nil; e = c.receives.nextFlushed() {
		c.completeReceive(e)
	}
}

func (c *connection) completeReceive(e *receiveEntry) {
	*c.receives.Complete(&c.queue.completions) = rdma.Completion{
		ID: e.id, Context: c.context, Opcode: rdma.OpReceive, Status: e.status, Length: e.length,
	}
}
