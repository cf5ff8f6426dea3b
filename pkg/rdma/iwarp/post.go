package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Errors that callers may meet often are made once.
var (
	errSendQueueFull    = status.Errorf(status.Full, "send queue is full")
	errReceiveQueueFull = status.Errorf(status.Full, "receive queue is full")
	errReadDepth        = status.Errorf(status.Again, "as many Reads are outstanding as the peer takes")
	errDetached         = status.Errorf(status.NotConnected, "connection has ended and its last completion was collected")
)

// PostReceive implements rdma.Connection.
func (c *connection) PostReceive(requests []rdma.ReceiveRequest) error {
	if c.phase == phaseDetached {
		return errDetached
	}
	if uint32(len(requests)) > c.receives.room() {
		return errReceiveQueueFull
	}
	for i := range requests {
		r := &requests[i]
		region, err := c.resolve(r.Local, memory.LocalWrite)
		if err != nil {
			return postError("receive", r.ID, err)
		}
		*c.receives.at(c.receives.tail + uint32(i)) = receiveWork{
			id: r.ID, region: region, local: r.Local.Address, length: r.Local.Length,
		}
	}
	c.receives.tail += uint32(len(requests))
	if c.phase == phaseEnded {
		c.flushReceives(rdma.StatusFlushed)
	}
	return nil
}

// PostSend implements rdma.Connection.
func (c *connection) PostSend(requests []rdma.SendRequest) error {
	if c.phase == phaseDetached {
		return errDetached
	}
	if uint32(len(requests)) > c.sends.room() {
		return errSendQueueFull
	}
	var reads uint32
	for i := range requests {
		w := c.sends.at(c.sends.tail + uint32(i))
		if err := c.prepare(w, &requests[i]); err != nil {
			return err
		}
		w.chained = i < len(requests)-1
		if w.opcode == rdma.OpRead {
			reads++
		}
	}
	if reads > 0 && c.phase == phaseOpen && c.reads.posted+reads > c.reads.limit {
		return errReadDepth
	}
	c.reads.posted += reads
	c.sends.tail += uint32(len(requests))
	if c.phase == phaseEnded {
		c.flushSends(rdma.StatusFlushed)
		return nil
	}
	c.queue.list(c)
	return nil
}

// prepare checks a request and turns it into work.
func (c *connection) prepare(w *sendWork, r *rdma.SendRequest) error {
	var rights memory.Access
	switch r.Opcode {
	case rdma.OpSend, rdma.OpWrite:
	case rdma.OpRead:
		rights = memory.LocalWrite
	default:
		return status.Errorf(status.InvalidValue, "post request %#x: opcode %q cannot be posted for sending", r.ID, r.Opcode)
	}
	if r.Local.Length > maxMessageSize {
		return status.Errorf(status.TooBig, "post %v %#x: message of %d bytes exceeds %d", r.Opcode, r.ID, r.Local.Length, uint32(maxMessageSize))
	}
	if r.RemoteAddress+uint64(r.Local.Length) < r.RemoteAddress {
		return status.Errorf(status.InvalidValue, "post %v %#x: %d bytes at remote address %#x wrap", r.Opcode, r.ID, r.Local.Length, r.RemoteAddress)
	}
	region, err := c.resolve(r.Local, rights)
	if err != nil {
		return postError(r.Opcode.String(), r.ID, err)
	}
	*w = sendWork{
		id: r.ID, region: region, local: r.Local.Address, remote: r.RemoteAddress,
		length: r.Local.Length, stag: r.RemoteKey, opcode: r.Opcode, silent: r.Silent,
	}
	return nil
}

// resolve finds the memory of a segment. After the end of the connection it is
// not needed, and may be gone.
func (c *connection) resolve(local rdma.Segment, rights memory.Access) (*memoryRegion, error) {
	if c.phase != phaseOpen {
		return nil, nil
	}
	return c.domain.resolve(local, rights)
}

func postError(operation string, id uint64, err error) error {
	return status.Errorf(status.CodeOf(err), "post %s %#x: %w", operation, id, err)
}
