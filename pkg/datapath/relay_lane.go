package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// comchBatch is how many requests of a client are forwarded together.
const comchBatch = 32

// spareMessages is the room, beyond the depth, for the messages that are not
// IOs: hello, stop, and their answers.
const spareMessages = 4

// RelayLaneConfig says what a RelayLane serves.
type RelayLaneConfig struct {
	Worker *Worker
	// Queue is the queue's index in its session, under which Counters count.
	// Without Counters nobody learns of the counts.
	Queue    int
	Counters *CounterSet
	// Device is where the connections are made. Domain, on it, is the
	// session's.
	Device rdma.Device
	Domain rdma.ProtectionDomain
	Export rdma.MemoryRegion
	// ExportLength and ExportAccess bound what requests may name.
	ExportLength uint64
	ExportAccess memory.Access
	Consumer     comch.Consumer
	Producer     comch.Producer
	// Depth is how many requests the client may have outstanding.
	Depth int
	// BufferSize is the largest data transfer of one request in bytes.
	BufferSize uint32
	// OnFailure is told once, on the worker's thread, why the lane cannot go
	// on; it must not block.
	OnFailure func(error)
}

// RelayConsumerConfig is the Comch consumer that a relay lane, or the
// client's side of it, needs for a depth.
func RelayConsumerConfig(depth int) comch.ConsumerConfig {
	receives := depth + spareMessages
	return comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size}
}

// RelayLane is the relay's side of a queue: it forwards a client's requests
// from Comch to the target, and the target's answers back. It also writes the
// data of writes into the target's staging, if the target lets it. Its methods
// are for the control plane and may be called by any goroutine, one at a time.
type RelayLane struct {
	worker   *Worker
	dispatch *dispatcher
	config   RelayLaneConfig
	place    placeID
	counters *Counters

	slots     relaySlots
	endpoints [iomsg.ConnectionRoleCount]endpoint
	messages  *messageMemory
	staging   rdma.RemoteMemory // of the target, for the data of writes
	export    rdma.Segment      // begins at the client's region; set if there is staging
	outbox    messageQueue      // answers that the client has posted no receive for
	state     relayState
	stop      stopBarrier
	failCode  status.Code
	draining  bool // nothing more is taken from the client
	lost      bool // a connection has ended, which made the lane fail

	// Scratch of the worker's thread: what goes through an interface would
	// otherwise be allocated for each message.
	request       message
	received      [comchBatch]comch.Received
	unflushed     bool // answers were sent to the client since the last flush
	consumerArmed bool
	producerArmed bool
	nowNs         int64

	inFlight atomic.Int64 // for observers
	ready    [iomsg.ConnectionRoleCount]chan error
	stopped  chan struct{}
	gone     chan struct{} // both connections have seen their last completion
}

// relayState is where a lane is in its life.
type relayState uint8

const (
	relayWaiting relayState = iota // connections are being made
	relayRunning                   // requests are forwarded
	relayFailed                    // nothing is forwarded, nothing is answered by the relay itself yet
	relayRefused                   // everything is answered with failCode
	relayClosed
)

// stopBarrier follows the stop message of a queue.
type stopBarrier struct {
	requested bool // by the client; later requests are refused
	passed    bool // to the target
	answered  bool // by the target
	delivered bool
	message   message
}

// NewRelayLane makes a lane on its worker and posts the receives for the
// client's requests. Close releases it, the consumer and the producer.
func NewRelayLane(ctx context.Context, config RelayLaneConfig) (*RelayLane, error) {
	l := &RelayLane{
		worker: config.Worker, config: config, counters: countersOf(config.Counters, config.Queue, config.Worker), slots: newRelaySlots(config.Depth),
		outbox:  newMessageQueue(config.Depth + comchBatch + spareMessages),
		ready:   [iomsg.ConnectionRoleCount]chan error{make(chan error, 1), make(chan error, 1)},
		stopped: make(chan struct{}), gone: make(chan struct{}),
	}
	var err error
	if l.endpoints, l.messages, err = newEndpoints(config.Domain, config.Depth); err != nil {
		return nil, fmt.Errorf("create relay lane: %w", err)
	}
	if err := l.postConsumerReceives(); err != nil {
		return nil, errors.Join(fmt.Errorf("create relay lane: %w", err), l.messages.close())
	}
	if err := l.attach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create relay lane: %w", err), l.messages.close())
	}
	return l, nil
}

func (l *RelayLane) postConsumerReceives() error {
	for i := range uint64(l.config.Depth + spareMessages) {
		if err := l.config.Consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return fmt.Errorf("post receive %d on the Comch consumer: %w", i, err)
		}
	}
	l.config.Consumer.Flush()
	return nil
}

func (l *RelayLane) attach(ctx context.Context) error {
	var failed, err error
	if l.dispatch, err = l.worker.dispatcherOn(ctx, l.config.Device); err != nil {
		return err
	}
	err = l.worker.do(ctx, func() {
		engine := l.worker.engine
		failed = errors.Join(engine.AddWaiter(l.consumerWaiter()), engine.AddWaiter(l.producerWaiter()))
		if failed != nil {
			engine.RemoveWaiter(l.consumerWaiter())
			engine.RemoveWaiter(l.producerWaiter())
			return
		}
		l.place = l.dispatch.register(l)
		l.worker.lanes.Add(1)
		engine.Add(l)
	})
	return errors.Join(err, failed)
}

// LaneConnection says how to make one of a lane's connections.
type LaneConnection struct {
	Remote netip.AddrPort
	// PrivateData carries the target's token back to it.
	PrivateData []byte
	// Source is the local address to connect from, if valid.
	Source netip.Addr
	// InboundReads is how many reads of the target to offer at a time.
	InboundReads int
	// Data makes the data connection instead of the control connection.
	Data bool
	// Staging is where the data of writes goes on the data connection: in the
	// target's memory, for each slot of the queue a buffer of the buffer size.
	// Without it the target fetches the data.
	Staging rdma.RemoteMemory
}

// Connect makes one of the lane's two connections, exchanges the hello and
// returns when it is ready.
func (l *RelayLane) Connect(ctx context.Context, config LaneConnection) error {
	role := iomsg.ControlConnection
	if config.Data {
		role = iomsg.DataConnection
	}
	e := &l.endpoints[role]
	connection, err := l.config.Device.Connect(ctx, config.Remote, rdma.ConnectionConfig{
		Domain: l.config.Domain, Queue: l.dispatch.queue, Context: l.place.context(role),
		PrivateData: config.PrivateData, Source: config.Source,
		SendRequests: sendRequests(l.config.Depth), ReceiveRequests: int(e.receives),
		InboundReads: config.InboundReads, Receives: e.initialReceives(),
	})
	if err != nil {
		return fmt.Errorf("connect %v connection to %v: %w", role, config.Remote, err)
	}
	if err := l.worker.do(ctx, func() { l.greet(role, connection, config.Staging) }); err != nil {
		connection.Abort()
		return err
	}
	select {
	case err = <-l.ready[role]:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("exchange hello on the %v connection with %v: %w", role, config.Remote, err)
	}
	return nil
}

// greet sends the hello: the connecting side speaks first.
func (l *RelayLane) greet(role iomsg.ConnectionRole, connection rdma.Connection, staging rdma.RemoteMemory) {
	e := &l.endpoints[role]
	e.connection = connection
	if role == iomsg.DataConnection && staging.Length > 0 {
		l.staging = staging
		l.export = rdma.Segment{Key: l.config.Export.LocalKey(), Address: l.config.Export.Base()}
	}
	if l.state != relayWaiting || e.disconnected {
		if !e.disconnected {
			connection.Close()
		}
		l.tellReady(role, status.Errorf(status.ConnectionReset, "the session has ended"))
		return
	}
	e.hello()
	l.post(role)
	e.flush()
}

func (l *RelayLane) tellReady(role iomsg.ConnectionRole, err error) {
	select {
	case l.ready[role] <- err:
	default: // told before
	}
}
