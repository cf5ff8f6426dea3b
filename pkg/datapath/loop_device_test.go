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
// has been answered by a target when the queue is polled next.
type loopDevice struct {
	rdma.Device // what a relay lane does not use
	queue       *loopQueue
	memory      []byte // of the only region
	connections [iomsg.ConnectionRoleCount]*loopConnection
}

func newLoopDevice() *loopDevice {
	return &loopDevice{queue: &loopQueue{completions: make([]rdma.Completion, 0, 4096)}}
}

func (d *loopDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) { return loopDomain{d}, nil }

func (d *loopDevice) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

func (d *loopDevice) Connect(_ context.Context, _ netip.AddrPort, config rdma.ConnectionConfig) (rdma.Connection, error) {
	c := &loopConnection{device: d, context: config.Context, receives: make([]rdma.ReceiveRequest, 0, config.ReceiveRequests)}
	d.connections[iomsg.ConnectionRole(config.Context%uint64(iomsg.ConnectionRoleCount))] = c
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
	withheld             []rdma.Completion // of Sends, while withhold is set
	withhold             bool
}

// deliver hands out the completions of Sends that were withheld.
func (q *loopQueue) deliver() {
	q.completions = append(q.completions, q.withheld...)
	q.withheld, q.withhold = nil, false
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
		if err := c.answer(c.device.bytes(r.Local)); err != nil {
			return err
		}
		if !r.Silent {
			c.complete(rdma.Completion{ID: r.ID, Opcode: rdma.OpSend})
		}
	}
	return nil
}

func (d *loopDevice) bytes(s rdma.Segment) []byte { return d.memory[s.Address:][:s.Length] }

// answer does what a target does with the messages of a Send.
func (c *loopConnection) answer(requests []byte) error {
	if c.taken == len(c.receives) {
		return status.Again
	}
	receive := &c.receives[c.taken]
	c.taken++
	answers := c.device.bytes(receive.Local)[:len(requests)]
	copy(answers, requests)
	for rest := answers; len(rest) > 0; rest = rest[iomsg.Size:] {
		var m iomsg.Message
		iomsg.Decode(rest, &m)
		if m.Type.IsRequest() {
			iomsg.TurnIntoResult(rest, status.Success)
		}
	}
	c.complete(rdma.Completion{ID: receive.ID, Opcode: rdma.OpReceive, Length: uint32(len(answers))})
	return nil
}

func (c *loopConnection) complete(completion rdma.Completion) {
	completion.Context = c.context
	q := c.device.queue
	if q.withhold && completion.Opcode == rdma.OpSend {
		q.withheld = append(q.withheld, completion)
		return
	}
	q.completions = append(q.completions, completion)
}

func (c *loopConnection) Flush()     {}
func (c *loopConnection) Err() error { return nil }

func (c *loopConnection) Close() { c.complete(rdma.Completion{Opcode: rdma.OpDisconnected}) }
