// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
)

// PostSend implements rdma.Connection. Flush, or the next Poll, posts all requests since the last
// flush to the device, as one chain.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	c.openIfEstablished()
	if c.phase == phaseDetached {
		return workqueue.ErrDetached
	}
	r := &c.sends
	if uint32(len(requests)) > r.Room() {
		return workqueue.ErrSendQueueFull
	}
	before, reads := len(c.unflushed), 0
	for i := range requests {
		if err := c.prepareSend(&requests[i], r.Tail+uint32(i)); err != nil {
			c.unflushed = c.unflushed[:before]
			return err
		}
		if requests[i].Opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && c.phase == phaseOpen && c.reads+reads > c.parameters.OutboundReads {
		c.unflushed = c.unflushed[:before]
		return workqueue.ErrReadDepth
	}
	c.reads += reads
	r.Tail += uint32(len(requests))
	if c.phase == phaseOpen {
		if !c.listed {
			c.listed = true
			c.queue.unflushed = append(c.queue.unflushed, c)
		}
		return nil
	}
	c.unflushed = c.unflushed[:0]
	if c.phase == phaseClosed {
		c.completeAllSends()
	}
	return nil
}

// prepareSend checks a request, puts it into the ring, and appends it to unflushed.
func (c *connection) prepareSend(r *rdma.SendRequest, index uint32) error {
	work := ibv.SendWork{
		WorkID:        sendWorkID(c.token, index),
		Address:       r.Local.Address,
		Length:        r.Local.Length,
		LocalKey:      r.Local.Key,
		RemoteAddress: r.RemoteAddress,
		RemoteKey:     r.RemoteKey,
	}
	switch r.Opcode {
	case rdma.OpSend:
		work.Opcode = ibv.WorkSend
	case rdma.OpWrite:
		work.Opcode = ibv.WorkWrite
	case rdma.OpRead:
		work.Opcode = ibv.WorkRead
	}
	rights, err := workqueue.CheckSend(r,
		uint32(min(c.device.limits.MessageBytes, maxMessage)))
	if err != nil {
		return err
	}
	region, err := c.domain.resolve(&r.Local, rights)
	if err != nil {
		return workqueue.PostError(r.Opcode.String(), r.ID, err)
	}
	if !r.Silent || r.Opcode == rdma.OpRead {
		work.Flags = ibv.Signaled
	}
	// The CPU reads inline bytes, and would fault on memory that another process has made
	// inaccessible.
	if region != nil && !region.untrusted && r.Opcode != rdma.OpRead &&
		int(r.Local.Length) <= c.qp.InlineBytes {
		work.Flags |= ibv.Inline
	}
	*c.sends.At(index) = sendEntry{id: r.ID, opcode: r.Opcode, silent: r.Silent}
	c.unflushed = append(c.unflushed, work)
	return nil
}

// Flush posts to the device what PostSend has added since the last flush.
func (c *connection) Flush() {
	c.openIfEstablished()
	c.flush()
}

// flush posts the unflushed requests to the device, unless the connection is ending.
func (c *connection) flush() {
	if len(c.unflushed) == 0 || c.phase != phaseOpen {
		return
	}
	work := c.unflushed
	c.unflushed = c.unflushed[:0]
	if err := c.qp.PostSend(work); err != nil {
		c.beginClose(err)
	}
}

// completeAllSends completes every request of the send queue. Requests whose outcome is unknown
// complete as flushed.
func (c *connection) completeAllSends() {
	for e := c.sends.nextFlushed(); e != nil; e = c.sends.nextFlushed() {
		c.completeSend(e)
	}
}

func (c *connection) completeSend(e *sendEntry) {
	if e.opcode == rdma.OpRead {
		c.reads--
	}
	if e.silent && e.status == rdma.StatusSuccess {
		c.sends.CompleteSilently()
		return
	}
	*c.sends.Complete(&c.queue.completions) = rdma.Completion{
		ID: e.id, Context: c.context, Opcode: e.opcode, Status: e.status,
	}
}
