//go:build verbs

package verbs

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Errors that callers may meet often are made once.
var (
	errSendQueueFull    = status.Errorf(status.Full, "send queue is full")
	errReceiveQueueFull = status.Errorf(status.Full, "receive queue is full")
	errReadDepth        = status.Errorf(status.Again, "as many Reads are outstanding as the peer takes")
	errDetached         = status.Errorf(status.NotConnected, "connection has ended and its last completion was collected")
)

// PostReceive implements rdma.Connection. The receives are the device's when
// it returns.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	c.adopt()
	if c.phase == phaseDetached {
		return errDetached
	}
	work, err := c.prepareReceives(requests)
	if err != nil || len(work) == 0 {
		return err
	}
	switch c.phase {
	case phaseOpen:
		if err := c.qp.PostReceive(work); err != nil {
			c.beginEnd(err)
		}
	case phaseEnded:
		c.flushReceives()
	}
	return nil
}

// prepareReceives puts receives into the ring and returns them in the form in
// which the device takes them, valid until the next call.
func (c *connection) prepareReceives(requests []rdma.ReceiveRequest) ([]ibv.ReceiveWork, error) {
	r := &c.receives
	if uint32(len(requests)) > r.room() {
		return nil, errReceiveQueueFull
	}
	for i := range requests {
		request := &requests[i]
		if _, err := c.domain.resolve(&request.Local, memory.LocalWrite); err != nil {
			return nil, postError(rdma.OpReceive, request.ID, err)
		}
		index := r.tail + uint32(i)
		*r.at(index) = receiveEntry{id: request.ID}
		c.scratch[i] = ibv.ReceiveWork{
			WorkID: receiveWorkID(c.token, index), Address: request.Local.Address,
			Length: request.Local.Length, LocalKey: request.Local.Key,
		}
	}
	r.tail += uint32(len(requests))
	return c.scratch[:len(requests)], nil
}

// PostSend implements rdma.Connection. The requests go to the device with the
// next Flush, all that were posted since the last one as one chain.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	c.adopt()
	if c.phase == phaseDetached {
		return errDetached
	}
	r := &c.sends
	if uint32(len(requests)) > r.room() {
		return errSendQueueFull
	}
	before, reads := len(c.posted), 0
	for i := range requests {
		if err := c.prepare(&requests[i], r.tail+uint32(i)); err != nil {
			c.posted = c.posted[:before]
			return err
		}
		if requests[i].Opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && c.phase == phaseOpen && c.reads+reads > c.parameters.OutboundReads {
		c.posted = c.posted[:before]
		return errReadDepth
	}
	c.reads += reads
	r.tail += uint32(len(requests))
	if c.phase == phaseOpen {
		c.queue.list(c)
		return nil
	}
	c.posted = c.posted[:0]
	if c.phase == phaseEnded {
		c.flushSends()
	}
	return nil
}

// prepare checks a request, puts it into the ring and appends it to posted.
func (c *connection) prepare(r *rdma.SendRequest, index uint32) error {
	work := ibv.SendWork{
		WorkID: sendWorkID(c.token, index), Address: r.Local.Address, Length: r.Local.Length, LocalKey: r.Local.Key,
		RemoteAddress: r.RemoteAddress, RemoteKey: r.RemoteKey,
	}
	var rights memory.Access
	switch r.Opcode {
	case rdma.OpSend:
		work.Opcode = ibv.WorkSend
	case rdma.OpWrite:
		work.Opcode = ibv.WorkWrite
	case rdma.OpRead:
		work.Opcode, rights = ibv.WorkRead, memory.LocalWrite
	default:
		return status.Errorf(status.InvalidValue, "post request %#x: opcode %q cannot be posted for sending", r.ID, r.Opcode)
	}
	if uint64(r.Local.Length) > min(c.device.limits.MessageBytes, maxMessage) {
		return postError(r.Opcode, r.ID, status.Errorf(status.TooBig, "message of %d bytes is too long for the device", r.Local.Length))
	}
	region, err := c.domain.resolve(&r.Local, rights)
	if err != nil {
		return postError(r.Opcode, r.ID, err)
	}
	if !r.Silent || r.Opcode == rdma.OpRead {
		work.Flags = ibv.Signaled
	}
	// Inline bytes are read by the CPU, which could fault on memory that
	// another process can take away.
	if region != nil && !region.untrusted && r.Opcode != rdma.OpRead && int(r.Local.Length) <= c.qp.InlineBytes {
		work.Flags |= ibv.Inline
	}
	*c.sends.at(index) = sendEntry{id: r.ID, opcode: r.Opcode, silent: r.Silent}
	c.posted = append(c.posted, work)
	return nil
}

// submit gives the device what was posted.
func (c *connection) submit() {
	if len(c.posted) == 0 || c.phase != phaseOpen {
		return
	}
	work := c.posted
	c.posted = c.posted[:0]
	if err := c.qp.PostSend(work); err != nil {
		c.beginEnd(err)
	}
}

func postError(opcode rdma.Opcode, id uint64, err error) error {
	return fmt.Errorf("post %v %#x: %w", opcode, id, err)
}
