package datapath

import (
	"context"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// loopDevice is an RDMA device in memory, for one relay lane: whatever is sent
// has been answered by a target when the queue is polled next, reads on the
// data connection and everything else where it was sent.
type loopDevice struct {
	rdma.Device // what a relay lane does not use
	queue       *loopQueue
	memory      []byte // of the only region
	connections [roleCount]*loopConnection
}

func newLoopDevice() *loopDevice {
	return &loopDevice{queue: &loopQueue{completions: make([]rdma.Completion, 0, 4096)}}
}

func (d *loopDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) { return loopDomain{d}, nil }

func (d *loopDevice) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

func (d *loopDevice) Connect(_ context.Context, _ netip.AddrPort, config rdma.ConnectionConfig) (rdma.Connection, error) {
	c := &loopConnection{device: d, context: config.Context, receives: make([]rdma.ReceiveRequest, 0, config.ReceiveRequests)}
	d.connections[connectionRole(config.Context%uint64(roleCount))] = c
	return c, c.PostReceive(config.Receives)
}

type loopDomain struct{ device *loopDevice }

func (d loopDomain) Register(region *memory.Region, _ memory.Access) (rdma.MemoryRegion, error) {
	if d.device.memory != nil {
		return nil, status.NotSupported
	}
	d.device.memory = region.Bytes()
	return loopRegion{}, nil
}

func (d loopDomain) Close() error { return nil }

type loopRegion struct{ rdma.MemoryRegion }

func (loopRegion) LocalKey() uint32  { return 1 }
func (loopRegion) Base() uint64      { return 0 }
func (loopRegion) Deregister() error { return nil }

// loopQueue hands out completions in the order in which they came to be.
type loopQueue struct {
	rdma.CompletionQueue // a benchmark does not sleep
	completions          []rdma.Completion
	head                 int
}

func (q *loopQueue) Descriptor() int { return -1 }

func (q *loopQueue) Poll(completions []rdma.Completion) int {
	n := copy(completions, q.completions[q.head:])
	if q.head += n; q.head == len(q.completions) {
		q.completions, q.head = q.completions[:0], 0
	}
	return n
}

type loopConnection struct {
	rdma.Connection
	device   *loopDevice
	context  uint64
	receives []rdma.ReceiveRequest // posted, the oldest first
	taken    int                   // how many of them have been used
}

func (c *loopConnection) PostReceive(requests []rdma.ReceiveRequest) error {
	if c.taken > 0 && len(c.receives)+len(requests) > cap(c.receives) {
		c.receives, c.taken = c.receives[:copy(c.receives, c.receives[c.taken:])], 0
	}
	if len(c.receives)+len(requests) > cap(c.receives) {
		return status.Full
	}
	c.receives = append(c.receives, requests...)
	return nil
}

func (c *loopConnection) PostSend(requests []rdma.SendRequest) error {
	for i := range requests {
		r := &requests[i]
		if err := c.answer(c.device.message(r.Local)); err != nil {
			return err
		}
		if !r.Silent {
			c.complete(rdma.Completion{ID: r.ID, Opcode: rdma.OpSend})
		}
	}
	return nil
}

func (d *loopDevice) message(s rdma.Segment) *message {
	return (*message)(d.memory[s.Address:][:iomsg.Size])
}

// answer does what a target does with a message.
func (c *loopConnection) answer(request *message) error {
	on := c
	var m iomsg.Message
	iomsg.Decode(request[:], &m)
	if m.Type == iomsg.Read {
		on = c.device.connections[dataRole]
	}
	if on.taken == len(on.receives) {
		return status.Again
	}
	receive := &on.receives[on.taken]
	on.taken++
	answer := c.device.message(receive.Local)
	*answer = *request
	if m.Type.IsRequest() {
		iomsg.TurnIntoResult(answer[:], status.Success)
	}
	on.complete(rdma.Completion{ID: receive.ID, Opcode: rdma.OpReceive, Length: iomsg.Size})
	return nil
}

func (c *loopConnection) complete(completion rdma.Completion) {
	completion.Context = c.context
	c.device.queue.completions = append(c.device.queue.completions, completion)
}

func (c *loopConnection) Flush()     {}
func (c *loopConnection) Err() error { return nil }

func (c *loopConnection) Close() { c.complete(rdma.Completion{Opcode: rdma.OpDisconnected}) }
