// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// volumeBatch is how many volume completions a lane polls at once.
const volumeBatch = 32

// TargetLaneConfig configures a TargetLane.
type TargetLaneConfig struct {
	Worker *Worker
	// Queue is the queue's index in its session. Counters are the sets that add up what the lane
	// counts, under that index.
	Queue    int
	Counters []*CounterSet
	// Device accepts the RDMA connections. Domain is the session's protection domain on Device.
	Device rdma.Device
	Domain rdma.ProtectionDomain
	Volume volume.Volume
	// VolumeMemory is Volume.Memory registered in Domain, if the lane may send the data of reads
	// straight from it. If it is nil, that data passes through staging.
	VolumeMemory rdma.MemoryRegion
	// Export is the client's memory as the relay has exported it.
	Export rdma.RemoteMemory
	// Foreign, if set, translates the messages of a relay that is not one of ours: it knows no
	// hello and no slots, takes one message per Send, and expects data on a connection of its own.
	// Every response is the request with another type and result. Only FromClient is used.
	// AcceptForeign connects it. Such a relay's IOs cannot be traced.
	Foreign Translator
	// Tracer records traced IOs; it may be nil.
	Tracer *trace.Tracer
	// ReadOnly makes the lane reject whatever would change the volume.
	ReadOnly bool
	// Lease decides whether the session may change the volume now. Nil means that it always may.
	Lease *lease.Session
	// Depth is how many requests the relay may have outstanding, BufferSize the largest data
	// transfer of one request in bytes. Staging takes their product.
	Depth      int
	BufferSize uint32
	// OnFailure is called once, on the worker's thread, with the error that made the lane fail. It
	// must not block.
	OnFailure func(error)
}

// TargetLane is the target's share of a client queue: it receives requests, moves their data
// between the volume and the client's memory, and responds on the connection that carried the
// request. The control plane calls its methods, one at a time.
type TargetLane struct {
	lane
	config  TargetLaneConfig
	info    volume.Info
	volume  volume.Queue
	staging staging

	transactions []transaction // by the relay's slot
	active       int           // transactions that have begun and not completed
	// backlog holds requests that wait for room for their responses.
	backlog      fifo.Queue[message]
	waitingReads fifo.Queue[uint32] // slots whose fetch waits for another to complete
	parked       fifo.Queue[uint32] // slots of changes that wait for the lease
	leaseNow     int64              // the time by the lease's clock in this turn, 0 if not read yet
	reads        int                // RDMA Reads in flight
	maxReads     int

	// freeSlots and translated serve a Foreign relay: slots that no request has, and scratch.
	freeSlots  []uint32
	translated message

	// helloReceived is set if the relay's hello arrived before Accept returned.
	helloReceived [iomsg.ConnectionRoleCount]bool

	// Scratch of the worker's thread: values passed through an interface would otherwise be
	// allocated for each use.
	completed [volumeBatch]*volume.Request
	fetching  [1]rdma.SendRequest
}

// What a target lane occupies besides staging and messages, at most, with any provider: per slot a
// transaction and the entries of RDMA queues, and for the lane itself two RDMA connections.
const (
	memoryPerSlot = 2 << 10
	memoryPerLane = 320 << 10
)

// TargetLaneMemory returns how much memory a target lane occupies, in bytes, for admission control.
// What a volume and the kernel allocate is not included.
func TargetLaneMemory(depth int, bufferSize uint32) uint64 {
	_, messages := layOutConnections(depth)
	return uint64(depth)*(uint64(bufferSize)+memoryPerSlot) + uint64(messages*iomsg.Size) +
		memoryPerLane
}

// NewTargetLane creates a lane on its worker, without connections.
func NewTargetLane(ctx context.Context, config TargetLaneConfig) (*TargetLane, error) {
	l := &TargetLane{
		config: config, info: config.Volume.Info(), maxReads: 1,
		transactions: make([]transaction, config.Depth),
		backlog:      fifo.New[message](config.Depth),
		waitingReads: fifo.New[uint32](config.Depth),
		parked:       fifo.New[uint32](config.Depth),
	}
	tracer := config.Tracer
	if config.Foreign != nil {
		tracer = nil
		for i := range config.Depth {
			l.freeSlots = append(l.freeSlots, uint32(config.Depth-1-i))
		}
	}
	l.init(config.Worker, tracer, config.OnFailure)
	for i := range l.transactions {
		l.transactions[i].request.UserData = uint64(i)
	}
	l.info.ReadOnly = l.info.ReadOnly || config.ReadOnly
	err := l.allocate()
	if err == nil {
		err = l.attach(ctx, config.Device, l, l, l.volume)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create target lane: %w", err), l.closeVolume(),
			l.release())
	}
	l.observe(config.Queue, config.Counters)
	return l, nil
}

func (l *TargetLane) allocate() error {
	c := &l.config
	var err error
	if l.connections, l.messages, err = newConnections(c.Domain, c.Depth); err != nil {
		return err
	}
	if l.staging, err = newStaging(c.Domain, c.Depth, c.BufferSize); err != nil {
		return err
	}
	if l.volume, err = c.Volume.NewQueue(c.Depth); err != nil {
		return fmt.Errorf("open a queue of volume %q: %w", l.info.Name, err)
	}
	return nil
}

// closeVolume closes the lane's queue of the volume, if there is one.
func (l *TargetLane) closeVolume() error {
	if l.volume == nil {
		return nil
	}
	err := l.volume.Close()
	l.volume = nil
	return err
}

// release frees what allocate has allocated, even if allocate failed, but the volume's queue.
func (l *TargetLane) release() error {
	var errs []error
	if l.staging.registered != nil {
		errs = append(errs, l.staging.close())
	}
	if l.messages != nil {
		errs = append(errs, l.messages.close())
	}
	return errors.Join(errs...)
}

// Staging returns the memory into which the relay may push the data of writes ahead of their
// requests: a buffer of the buffer size for each slot.
func (l *TargetLane) Staging() rdma.RemoteMemory {
	r := l.staging.registered
	return rdma.RemoteMemory{
		Key: r.RemoteKey(), Base: r.Base(), Length: r.Len(), Access: memory.RemoteWrite,
	}
}

// Accept accepts the relay's request for one of the lane's two connections. It returns before the
// hellos have been exchanged: see Ready.
func (l *TargetLane) Accept(
	ctx context.Context, request rdma.Request, role iomsg.ConnectionRole, outboundReads int,
) error {
	c := &l.connections[role]
	var lent []rdma.LentMemory
	if role == iomsg.DataConnection {
		// The relay may read all of the volume in any case. Staging is never used again.
		lent = append(lent, rdma.LentMemory{Region: l.staging.registered, Writable: true})
		if l.config.VolumeMemory != nil {
			lent = append(lent, rdma.LentMemory{Region: l.config.VolumeMemory})
		}
	}
	established, err := request.Accept(ctx, rdma.ConnectionConfig{
		Domain: l.config.Domain, Queue: l.dispatcher.queue, Context: l.registration.context(role),
		SendRequests: sendQueueDepth(l.config.Depth), ReceiveRequests: int(c.receives),
		OutboundReads: outboundReads, Receives: c.initialReceives(), Lent: lent,
	})
	if err != nil {
		return fmt.Errorf("accept %v connection from %v: %w", role, request.Remote(), err)
	}
	err = l.worker.do(ctx, func() {
		if !l.adopt(role, established) {
			return
		}
		if role == iomsg.DataConnection {
			l.maxReads = max(1, established.Parameters().OutboundReads)
		}
		if l.helloReceived[role] {
			l.respondHello(c)
			l.endBatch()
		}
	})
	if err != nil {
		established.Abort()
		return err
	}
	return nil
}

// AcceptForeign establishes one of the two connections of a Foreign relay, whose end theirs
// describes, and returns the details of this side's. Messages travel on the data connection, and
// data on the control connection.
func (l *TargetLane) AcceptForeign(
	ctx context.Context, role iomsg.ConnectionRole, theirs []byte, outboundReads int,
) (own []byte, err error) {
	err = l.connectByDetails(ctx, l.config.Device, role, rdma.ConnectionConfig{
		Domain: l.config.Domain, SendRequests: sendQueueDepth(l.config.Depth),
		OutboundReads: outboundReads,
	}, func(details []byte) ([]byte, error) {
		own = slices.Clone(details)
		return theirs, nil
	})
	if err == nil && role == iomsg.ControlConnection {
		err = l.worker.do(ctx, func() { l.maxReads = max(1, outboundReads) })
	}
	return own, err
}

// Ready waits until the hellos of both connections have been exchanged.
func (l *TargetLane) Ready(ctx context.Context) error {
	for role := range iomsg.ConnectionRoleCount {
		err := l.awaitReady(ctx, role)
		if err != nil && ctx.Err() != nil {
			return status.Errorf(status.TimeOut, "wait for the hello on the %v connection: %w",
				role, err)
		}
		if err != nil {
			return fmt.Errorf("wait for the hello on the %v connection: %w", role, err)
		}
	}
	return nil
}

// Start begins to serve requests. Both connections must be ready.
func (l *TargetLane) Start(ctx context.Context) error {
	var failed error
	err := l.worker.do(ctx, func() { failed = l.start() })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("start target lane: %w", err)
	}
	return nil
}

// Resume looks again at the changes that wait for the lease.
func (l *TargetLane) Resume(ctx context.Context) error {
	return l.worker.do(ctx, func() {
		for n := l.parked.Len(); n > 0 && l.isAlive(); n-- {
			l.submit(l.parked.Pop())
		}
		l.flushResponses()
	})
}

// Revoke closes both connections and accepts no more requests. Volume requests in progress
// continue: see Quiesced.
func (l *TargetLane) Revoke(ctx context.Context) error {
	if l.detached {
		return nil
	}
	return l.worker.do(ctx, l.revoke)
}

// Detach revokes the lane, waits until it is quiesced, and lets go of the volume. If ctx ends
// first, Detach can be called again.
func (l *TargetLane) Detach(ctx context.Context) error {
	err := l.Revoke(ctx)
	if err == nil && !l.detached {
		err = l.detach(ctx, func() int { return l.active + l.backlog.Len() })
	}
	if err == nil {
		err = l.closeVolume()
	}
	if err != nil {
		return fmt.Errorf("detach target lane: %w", err)
	}
	return nil
}

// Close detaches the lane and releases it. If ctx ends first, the lane's memory is leaked rather
// than freed under a device or a volume that may still use it, and Close can be called again.
func (l *TargetLane) Close(ctx context.Context) error {
	err := l.Detach(ctx)
	if l.detached {
		err = errors.Join(err, l.free(ctx, l.release))
	}
	return err
}

// staging is registered memory through which data passes between the wire and the volume: a buffer
// for each slot of the relay. The relay may write there at any time. What it changes after sending
// a request is only its own client's data.
type staging struct {
	region     *memory.Region
	registered rdma.MemoryRegion
	size       uint32 // of a buffer, in bytes
}

func newStaging(domain rdma.ProtectionDomain, count int, size uint32) (staging, error) {
	region, err := memory.Alloc("zc-relay staging", uint64(count)*uint64(size))
	if err != nil {
		return staging{}, fmt.Errorf("allocate %d staging buffers of %d bytes: %w",
			count, size, err)
	}
	registered, err := domain.Register(region, memory.LocalWrite|memory.RemoteWrite)
	if err != nil {
		return staging{}, errors.Join(
			fmt.Errorf("register %d staging buffers of %d bytes: %w", count, size, err),
			region.Close())
	}
	return staging{region: region, registered: registered, size: size}, nil
}

// bytes returns the first length bytes of a slot's buffer.
func (s *staging) bytes(slot, length uint32) []byte {
	start := uint64(slot) * uint64(s.size)
	return s.region.Bytes()[start : start+uint64(length)]
}

// segment names the first length bytes of a slot's buffer in a work request.
func (s *staging) segment(slot, length uint32) rdma.Segment {
	return rdma.Segment{
		Key: s.registered.LocalKey(), Length: length,
		Address: s.registered.Base() + uint64(slot)*uint64(s.size),
	}
}

func (s *staging) close() error { return errors.Join(s.registered.Deregister(), s.region.Close()) }
