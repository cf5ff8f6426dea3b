package datapath

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// volumeBatch is how many volume completions a lane takes per poll.
const volumeBatch = 32

// TargetLaneConfig says what a TargetLane serves.
type TargetLaneConfig struct {
	Worker *Worker
	// Queue is the queue's index in its session, under which Counters count.
	// Without Counters nobody learns of the counts.
	Queue    int
	Counters *CounterSet
	// Device is where connections arrive. Domain, on it, is the session's.
	Device rdma.Device
	Domain rdma.ProtectionDomain
	Volume volume.Volume
	// VolumeMemory is Volume.Memory registered in Domain, if reads may go
	// straight from it; nil sends them through staging.
	VolumeMemory rdma.MemoryRegion
	// Export is the client's memory as the relay has exported it.
	Export rdma.RemoteMemory
	// Depth is how many requests the relay may have outstanding, BufferSize
	// the largest data transfer of one in bytes. Staging takes their product.
	Depth      int
	BufferSize uint32
	// OnFailure is told once, on the worker's thread, why the lane cannot go
	// on; it must not block.
	OnFailure func(error)
}

// TargetLane is the target's side of a queue: it takes requests, moves their
// data between volume and remote memory, and answers each on the connection
// that its request came on. Its methods are for the control plane and may be called by any
// goroutine, one at a time.
type TargetLane struct {
	worker   *Worker
	dispatch *dispatcher
	config   TargetLaneConfig
	place    placeID
	counters *Counters
	info     volume.Info
	lane     volume.Queue

	endpoints [iomsg.ConnectionRoleCount]endpoint
	messages  *messageMemory
	staging   staging

	transactions []transaction // by slot
	answering    int           // transactions not yet answered
	submitted    int           // volume requests under way
	backlog      messageQueue  // requests for whose answers there is no room yet
	waitRead     fifo
	reads        int // RDMA Reads under way
	maxReads     int

	completed [volumeBatch]*volume.Request
	// fetching is scratch of the worker's thread: what goes through an
	// interface would otherwise be allocated for each Read.
	fetching [1]rdma.SendRequest
	nowNs    int64
	state    targetState
	started  bool // requests are taken
	draining bool // new requests are refused
	stopping bool // a stop has come and is yet to be answered
	stopped  bool // it has been answered: nothing more may come
	stop     message
	hello    [iomsg.ConnectionRoleCount]bool // arrived before the connection was attached

	inFlight atomic.Int64 // for observers
	ready    [iomsg.ConnectionRoleCount]chan error
	drained  chan struct{}
}

// targetState is where a lane is in its life.
type targetState uint8

const (
	targetServing targetState = iota
	targetFailed              // takes nothing more
	targetClosed
)

// NewTargetLane makes a lane on its worker, without connections.
func NewTargetLane(ctx context.Context, config TargetLaneConfig) (*TargetLane, error) {
	l := &TargetLane{
		worker: config.Worker, config: config, info: config.Volume.Info(),
		counters:     countersOf(config.Counters, config.Queue, config.Worker),
		transactions: make([]transaction, config.Depth), backlog: newMessageQueue(config.Depth),
		waitRead: newFIFO(config.Depth), maxReads: 1,
		ready:   [iomsg.ConnectionRoleCount]chan error{make(chan error, 1), make(chan error, 1)},
		drained: make(chan struct{}),
	}
	for i := range l.transactions {
		l.transactions[i].request.UserData = uint64(i)
	}
	if err := l.allocate(); err != nil {
		return nil, errors.Join(fmt.Errorf("create target lane: %w", err), l.release())
	}
	if err := l.attach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create target lane: %w", err), l.release())
	}
	return l, nil
}

func (l *TargetLane) allocate() error {
	var err error
	if l.endpoints, l.messages, err = newEndpoints(l.config.Domain, l.config.Depth); err != nil {
		return err
	}
	if l.staging, err = newStaging(l.config.Domain, l.config.Depth, l.config.BufferSize); err != nil {
		return err
	}
	if l.lane, err = l.config.Volume.NewQueue(len(l.transactions)); err != nil {
		return fmt.Errorf("open a lane of volume %q: %w", l.info.Name, err)
	}
	return nil
}

// release frees what allocate made.
func (l *TargetLane) release() error {
	var errs []error
	if l.lane != nil {
		errs = append(errs, l.lane.Close())
	}
	if l.staging.registered != nil {
		errs = append(errs, l.staging.close())
	}
	if l.messages != nil {
		errs = append(errs, l.messages.close())
	}
	return errors.Join(errs...)
}

func (l *TargetLane) attach(ctx context.Context) error {
	var failed, err error
	if l.dispatch, err = l.worker.dispatcherOn(ctx, l.config.Device); err != nil {
		return err
	}
	err = l.worker.do(ctx, func() {
		// A lane without a descriptor has nothing to wait for: its requests
		// are done when Submit returns.
		if l.lane.Descriptor() >= 0 {
			if failed = l.worker.engine.AddWaiter(l.lane); failed != nil {
				return
			}
		}
		l.place = l.dispatch.register(l)
		l.worker.lanes.Add(1)
		l.worker.engine.Add(l)
	})
	return errors.Join(err, failed)
}

// Staging is where the relay may put the data of writes ahead of their
// requests: for each slot a buffer of the buffer size.
func (l *TargetLane) Staging() rdma.RemoteMemory { return l.staging.remote() }

// Accept makes one of the lane's two connections out of a request of the
// relay; data tells which. It returns before the hello has been exchanged:
// see Ready.
func (l *TargetLane) Accept(ctx context.Context, request rdma.Request, data bool, outboundReads int) error {
	role := iomsg.ControlConnection
	if data {
		role = iomsg.DataConnection
	}
	e := &l.endpoints[role]
	connection, err := request.Accept(ctx, rdma.ConnectionConfig{
		Domain: l.config.Domain, Queue: l.dispatch.queue, Context: l.place.context(role),
		SendRequests: sendRequests(l.config.Depth), ReceiveRequests: int(e.receives),
		OutboundReads: outboundReads, Receives: e.initialReceives(),
	})
	if err != nil {
		return fmt.Errorf("accept %v connection from %v: %w", role, request.Remote(), err)
	}
	if err := l.worker.do(ctx, func() { l.adopt(role, connection) }); err != nil {
		connection.Abort()
		return err
	}
	return nil
}

// adopt makes a connection the lane's own.
func (l *TargetLane) adopt(role iomsg.ConnectionRole, connection rdma.Connection) {
	e := &l.endpoints[role]
	e.connection = connection
	if l.state != targetServing {
		e.closed = false
		e.close()
		return
	}
	if role == iomsg.DataConnection {
		l.maxReads = max(1, connection.Parameters().OutboundReads)
	}
	if l.hello[role] {
		l.answerHello(e)
		l.endBatch()
	}
}

// Ready waits until the hellos of both connections have been exchanged.
func (l *TargetLane) Ready(ctx context.Context) error {
	for role := range iomsg.ConnectionRoleCount {
		select {
		case err := <-l.ready[role]:
			if err != nil {
				return fmt.Errorf("wait for the hello on the %v connection: %w", role, err)
			}
			l.tellReady(role, nil) // for the next caller
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the hello on the %v connection: %w", role, ctx.Err())
		}
	}
	return nil
}

func (l *TargetLane) tellReady(role iomsg.ConnectionRole, err error) {
	select {
	case l.ready[role] <- err:
	default: // told before
	}
}
