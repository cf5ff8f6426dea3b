// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection is a connection of a queue with hooks. Only the thread that polls the queue uses its
// fields, except those that do not change.
type connection struct {
	rdma.Connection // the inner one; nil until it is established
	queue           *queue
	domain          *domain // nil if it has no hooks
	context         uint64  // that the owner chose
	sendRequests    int

	// receives is what messages will be received into, in order. It is empty without rules for
	// received messages.
	receives  []rdma.Segment
	held      []heldBatch // not posted to the inner connection, in order
	heldCount int         // requests in held
	// lost means that held requests are not posted any more, but flushed.
	lost bool
	// ended means that the inner connection's OpDisconnected has been polled, and detached that the
	// owner has polled it.
	ended, detached bool
}

// heldBatch holds the requests of one call of PostSend.
type heldBatch struct {
	requests []rdma.SendRequest
	stall    fault.Stall
}

// PostReceive adds receives to the receive queue.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	if p := c.queue.points.postReceive; p != nil {
		var size uint64
		for i := range requests {
			size += uint64(requests[i].Local.Length)
		}
		if hit := p.Next(size); hit.Action == fault.Error {
			return hit.Err()
		}
	}
	if !c.ended || c.detached {
		err := c.Connection.PostReceive(requests)
		if err == nil {
			c.remember(requests)
		}
		return err
	}
	for i := range requests {
		c.flushAfterEnd(requests[i].ID, rdma.OpReceive)
	}
	return nil
}

// remember keeps where the messages of posted receives will be.
func (c *connection) remember(requests []rdma.ReceiveRequest) {
	if c.queue.points.receive == nil || c.domain == nil {
		return
	}
	for i := range requests {
		c.receives = append(c.receives, requests[i].Local)
	}
}

// receive applies the rules for received messages to the completion of the oldest receive.
func (c *connection) receive(completion *rdma.Completion) {
	if len(c.receives) == 0 {
		return
	}
	message := c.receives[0]
	c.receives = slices.Delete(c.receives, 0, 1)
	if completion.Status != rdma.StatusSuccess {
		return
	}
	message.Length = completion.Length
	hit := c.queue.points.receive.Next(uint64(completion.Length))
	if hit.Action == fault.Corrupt {
		hit.Corrupt(c.domain.bytesOf(message))
	}
}

// PostSend adds requests to the send queue, or holds them back.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	var hit fault.Hit
	if p := c.queue.points.postSend; p != nil {
		var size uint64
		for i := range requests {
			size += uint64(requests[i].Local.Length)
		}
		if hit = p.Next(size); hit.Action == fault.Error {
			return hit.Err()
		}
	}
	switch {
	case c.ended && !c.detached:
		for i := range requests {
			c.flushAfterEnd(requests[i].ID, requests[i].Opcode)
		}
		return nil
	case c.detached || hit.Action == fault.None && len(c.held) == 0 && !c.lost:
		return c.Connection.PostSend(requests)
	}
	if c.heldCount+len(requests) > c.sendRequests {
		return status.Full
	}
	if hit.Action == fault.Drop {
		c.lose()
	}
	if len(c.held) == 0 {
		c.queue.stalling = append(c.queue.stalling, c)
	}
	c.held = append(c.held, heldBatch{requests: slices.Clone(requests), stall: hit.Stall()})
	c.heldCount += len(requests)
	return nil
}

// lose ends the connection as if the network were lost. What is held back completes as flushed.
func (c *connection) lose() {
	c.lost = true
	c.Connection.Abort()
}

// Close ends the connection. What is held back completes as flushed.
func (c *connection) Close() {
	c.lost = c.lost || len(c.held) > 0
	c.Connection.Close()
}

// Reset ends the connection as Close does, if possible without what has been sent.
func (c *connection) Reset() {
	c.lost = c.lost || len(c.held) > 0
	rdma.Reset(c.Connection)
}

// postDue posts the batches that are due, in order.
func (c *connection) postDue() {
	posted := 0
	for posted < len(c.held) && !c.lost && c.held[posted].stall.IsOver() {
		err := c.Connection.PostSend(c.held[posted].requests)
		if errors.Is(err, status.Full) || errors.Is(err, status.Again) {
			break // there is room when earlier requests have completed
		}
		if err != nil {
			// The owner was told that these were posted, so only the end can undo it.
			c.lose()
			break
		}
		c.heldCount -= len(c.held[posted].requests)
		posted++
	}
	if posted > 0 {
		c.held = slices.Delete(c.held, 0, posted)
		c.Flush()
	}
}

// flushed returns the completion of a request that the inner connection never got.
func (c *connection) flushed(id uint64, opcode rdma.Opcode) heldCompletion {
	return heldCompletion{connection: c, completion: rdma.Completion{ID: id, Context: c.context,
		Opcode: opcode, Status: rdma.StatusFlushed}}
}

// flushAfterEnd completes a request ahead of OpDisconnected, which the owner has not polled yet.
func (c *connection) flushAfterEnd(id uint64, opcode rdma.Opcode) {
	q := c.queue
	end := slices.IndexFunc(q.held, func(h heldCompletion) bool {
		return h.connection == c && h.completion.Opcode == rdma.OpDisconnected
	})
	q.held = slices.Insert(q.held, end, c.flushed(id, opcode))
}
