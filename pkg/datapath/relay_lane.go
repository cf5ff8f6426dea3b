// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/trace"
)

// comchBatch is how many requests of a client are forwarded together at most.
const comchBatch = 32

// RelayLaneConfig configures a RelayLane.
type RelayLaneConfig struct {
	Worker *Worker
	// Queue is the queue's index in its session. Counters are the sets that add up what the lane
	// counts, under that index.
	Queue    int
	Counters []*CounterSet
	// Device makes the RDMA connections. Domain is the session's protection domain on Device, and
	// Export the memory registered in Domain that the target reads and writes: the client's, or the
	// session's bounce buffers.
	Device rdma.Device
	Domain rdma.ProtectionDomain
	Export rdma.MemoryRegion
	// ExportLength and ExportAccess limit the client's memory that requests may name, and the
	// rights to it.
	ExportLength uint64
	ExportAccess memory.Access
	// Bounce, if set, keeps the target away from the client's memory.
	Bounce   *BounceConfig
	Consumer comch.Consumer
	Producer comch.Producer
	// ChannelThrottle and SessionThrottle limit the rate at which the lane reads requests; nil
	// sets no limits.
	ChannelThrottle *Throttle
	SessionThrottle *Throttle
	// Tracer records traced IOs; it may be nil.
	Tracer *trace.Tracer
	// Translator, if set, translates the client's messages.
	Translator Translator
	// Foreign, if set, translates messages for a target that is not one of ours: it knows no hello,
	// takes one message per Send, and reads and writes only. ConnectForeign connects it.
	Foreign ForeignTarget
	// Depth is how many requests the client may have outstanding.
	Depth int
	// BufferSize is the largest data transfer of one request, in bytes.
	BufferSize uint32
	// OnFailure is called once, on the worker's thread, with the error that made the lane fail. It
	// must not block.
	OnFailure func(error)
	// OnTargetShutdown is called once, on the worker's thread, when the target has declined a
	// request because it is shutting down. It must not block.
	OnTargetShutdown func()
}

// Translator translates the messages of clients that do not use the layout of package iomsg. Both
// methods work in place on a message of iomsg.Size bytes and must not allocate. The worker of the
// lane calls them.
type Translator interface {
	// FromClient turns a client's message into one of package iomsg.
	FromClient(message []byte)
	// ToClient turns a message that FromClient has made, whose type and result may have changed
	// since, into one for the client.
	ToClient(message []byte)
}

// ForeignTarget translates messages for targets that do not use the layout of package iomsg. Their
// responses have the type, the result, and the tag of package iomsg, which such targets return
// unread. It works in place and must not allocate. The worker of the lane calls it.
type ForeignTarget interface {
	// CanCarry reports whether the target's protocol has a request of the type, with its data at
	// the offset in the client's memory and at the offset in the volume.
	CanCarry(t iomsg.Type, requesterOffset, storageOffset uint64) bool
	// ToTarget turns a request that CanCarry accepts into one for the target.
	ToTarget(message []byte)
	// TakesStop reports whether the target takes part in the queue's stop, on the connection of
	// all messages. If not, it learns of the end by a control message.
	TakesStop() bool
}

// RelayConsumerConfig returns the configuration of the Comch consumers of a queue of the given
// depth: the relay lane's and the client's.
func RelayConsumerConfig(depth int) comch.ConsumerConfig {
	receives := depth + spareMessages
	return comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size}
}

// RelayLane is the relay's share of a client queue: it forwards the client's requests from Comch to
// the target, and the target's responses back. It also pushes the data of writes into the target's
// staging, if the target offers staging. The control plane calls its methods, one at a time.
type RelayLane struct {
	lane
	config   RelayLaneConfig
	slots    slotTable
	declined int               // requests in flight that the target has declined: see keepDeclined
	staging  rdma.RemoteMemory // of the target; empty if it fetches data itself
	export   rdma.Segment      // start of Export; set if there is staging
	bounce   *bounce           // nil unless data passes through bounce buffers
	// lateProducer and lateConsumer are the Comch objects if their device finds errors late, and
	// isLate reports whether either does.
	lateProducer comch.LateProducer
	lateConsumer comch.LateConsumer
	isLate       bool
	// watched is the consumer if that has a watch, and Poll has nothing to do but to read requests.
	watched comch.WatchedConsumer
	watch   progress.Watch
	// outbox holds responses for which the client has posted no receive.
	outbox     fifo.Queue[message]
	rejectCode status.Code
	throttle   laneThrottle

	// Scratch of the worker's thread: values passed through an interface would otherwise be
	// allocated for each message.
	request       message
	size          uint32 // data of the request read last; 0 if it was rejected
	received      [comchBatch]comch.Received
	unflushed     bool // responses were sent to the client since the last flush
	consumerArmed bool
	producerArmed bool
	isDue         bool // the lane sleeps until its rate limits let it continue
}

// NewRelayLane creates a lane on its worker and posts the receives for the client's requests. The
// lane owns the consumer, the producer, and the engine of its bounce buffers; Close releases them
// all. If NewRelayLane fails, they remain the caller's.
func NewRelayLane(ctx context.Context, config RelayLaneConfig) (*RelayLane, error) {
	l := &RelayLane{
		config: config, slots: newSlotTable(config.Depth),
		outbox: fifo.New[message](config.Depth + comchBatch + spareMessages),
		bounce: newBounce(config.Bounce, config.Depth, config.BufferSize),
	}
	l.throttle.throttles = [ThrottleLevelCount]*Throttle{
		channelThrottle: config.ChannelThrottle, sessionThrottle: config.SessionThrottle,
	}
	l.lateProducer, _ = config.Producer.(comch.LateProducer)
	l.lateConsumer, _ = config.Consumer.(comch.LateConsumer)
	l.isLate = l.lateProducer != nil || l.lateConsumer != nil
	if !l.isLate && l.bounce == nil {
		l.watched, _ = config.Consumer.(comch.WatchedConsumer)
	}
	l.init(config.Worker, config.Tracer, config.OnFailure)
	var err error
	if l.connections, l.messages, err = newConnections(config.Domain, config.Depth); err != nil {
		return nil, fmt.Errorf("create relay lane: %w", err)
	}
	for i := range uint64(config.Depth + spareMessages) {
		if err := config.Consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, errors.Join(
				fmt.Errorf("create relay lane: post receive %d on the Comch consumer: %w", i, err),
				l.messages.close())
		}
	}
	config.Consumer.Flush()
	waiters := []progress.Waiter{relayConsumerWaiter{l}, relayProducerWaiter{l}}
	if l.bounce != nil {
		waiters = append(waiters, relayCopyWaiter{l})
	}
	err = l.attach(ctx, config.Device, l, l, waiters...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create relay lane: %w", err), l.messages.close())
	}
	l.observe(config.Queue, config.Counters)
	return l, nil
}

// ConnectConfig configures one of a relay lane's connections.
type ConnectConfig struct {
	Role   iomsg.ConnectionRole
	Remote netip.AddrPort
	// PrivateData carries the token that the target has issued.
	PrivateData []byte
	// TLS, unless nil, protects the connection.
	TLS *rdma.ClientTLS
	// Source is the local address to connect from, if valid.
	Source netip.Addr
	// InboundReads is how many outstanding RDMA Reads to offer the target.
	InboundReads int
	// Staging, on the data connection, is where the lane pushes the data of writes: a buffer of the
	// buffer size for each slot of the queue. If it is empty, the target fetches the data.
	Staging rdma.RemoteMemory
}

// Connect establishes one of the lane's two connections, exchanges the hellos, and returns when the
// connection is ready.
func (l *RelayLane) Connect(ctx context.Context, config ConnectConfig) error {
	role := config.Role
	c := &l.connections[role]
	established, err := l.config.Device.Connect(ctx, config.Remote, rdma.ConnectionConfig{
		Domain: l.config.Domain, Queue: l.dispatcher.queue, Context: l.registration.context(role),
		PrivateData: config.PrivateData, TLS: config.TLS, Source: config.Source,
		SendRequests: sendQueueDepth(l.config.Depth), ReceiveRequests: int(c.receives),
		InboundReads: config.InboundReads, Receives: c.initialReceives(),
	})
	if err != nil {
		return fmt.Errorf("connect %v connection to %v: %w", role, config.Remote, err)
	}
	if config.TLS != nil && established.Parameters().Protection == rdma.Unprotected {
		established.Abort()
		return status.Errorf(status.Authentication, "connect %v connection to %v: the provider has "+
			"not protected it", role, config.Remote)
	}
	err = l.worker.do(ctx, func() {
		if !l.adopt(role, established) {
			return
		}
		if role == iomsg.DataConnection && config.Staging.Length > 0 {
			l.staging = config.Staging
			export := l.config.Export
			l.export = rdma.Segment{Key: export.LocalKey(), Address: export.Base()}
		}
		c.sendHello() // the connecting side speaks first
		l.postGathered(c)
		c.flush()
	})
	if err != nil {
		established.Abort()
		return err
	}
	if err := l.awaitHello(ctx, role); err != nil {
		return fmt.Errorf("exchange hellos on the %v connection with %v: %w",
			role, config.Remote, err)
	}
	return nil
}

const (
	// firstReminder is how long the target may take to answer the hello before it is reminded.
	firstReminder = 250 * time.Millisecond
	// maxReminders fit into every send queue, also if the target lets none of them complete.
	maxReminders = 5
)

// awaitHello waits for the target's hello. The kernel's siw can miss what arrives right behind its
// reply to a connection request, and so this side's hello, until more arrives. The provider iwarp
// takes care of that, but siw itself does not. So the lane reminds a silent target by Writes of no
// bytes, with twice the pause before each.
func (l *RelayLane) awaitHello(ctx context.Context, role iomsg.ConnectionRole) error {
	if l.config.Device.Capabilities().Transport != iWARP {
		return l.awaitReady(ctx, role)
	}
	for i := range maxReminders {
		waiting, cancel := context.WithTimeout(ctx, firstReminder<<i)
		err := l.awaitReady(waiting, role)
		isSilent := err != nil && err == waiting.Err()
		cancel()
		if !isSilent || ctx.Err() != nil {
			return err
		}
		err = l.worker.do(ctx, func() {
			if c := &l.connections[role]; !c.ready && !c.closed && !c.disconnected {
				// If it fails, the connection has ended, and its end says why.
				_ = c.post([]rdma.SendRequest{{ID: workID(writeWork, 0), Opcode: rdma.OpWrite}})
				c.flush()
			}
		})
		if err != nil {
			return err
		}
	}
	return l.awaitReady(ctx, role)
}

// iWARP is the name of a transport (rdma.Capabilities).
const iWARP = "iwarp"

// ConnectForeign establishes one of the lane's two connections to a Foreign target: exchange passes
// the details of this side's end to the target, and returns those of the target's. Messages travel
// on the data connection. The control connection is the one on which the target moves data.
func (l *RelayLane) ConnectForeign(
	ctx context.Context, role iomsg.ConnectionRole, inboundReads int,
	exchange func(details []byte) ([]byte, error),
) error {
	return l.connectByDetails(ctx, l.config.Device, role, rdma.ConnectionConfig{
		Domain: l.config.Domain, SendRequests: sendQueueDepth(l.config.Depth),
		InboundReads: inboundReads,
	}, exchange)
}

// Start begins to forward requests. Both connections must be ready.
func (l *RelayLane) Start(ctx context.Context) error {
	var failed error
	err := l.worker.do(ctx, func() { failed = l.start() })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("start relay lane: %w", err)
	}
	return nil
}

// Depth returns how many requests the client may have outstanding.
func (l *RelayLane) Depth() int { return l.config.Depth }

// Throttled returns how long rate limits have made the client's requests wait.
func (l *RelayLane) Throttled() time.Duration { return time.Duration(l.throttle.totalNs.Load()) }

// Wake lets the lane notice at once that the limits of its throttles have changed.
func (l *RelayLane) Wake() { l.worker.engine.Wake() }

// CheckDeadline fails the lane if a request has been in flight for longer than timeout.
func (l *RelayLane) CheckDeadline(timeout time.Duration) {
	l.worker.engine.Do(func() {
		oldest := l.slots.oldest()
		if l.state != laneRunning || oldest == nil || nanotime()-oldest.startNs <= int64(timeout) {
			return
		}
		l.keepsDelivering = true
		culprit := "target did not respond to an IO"
		if oldest.copying {
			culprit = "the DMA engine did not copy the data of an IO"
		}
		l.fail(status.Errorf(status.TimeOut, "%s within %v", culprit, timeout))
	})
}

// Revoke delivers the responses that have arrived and closes both connections. When it returns, the
// target can no longer read or write the client's memory through this lane.
func (l *RelayLane) Revoke(ctx context.Context) error {
	if l.detached {
		return nil
	}
	return l.worker.do(ctx, l.deliverAndRevoke)
}

func (l *RelayLane) deliverAndRevoke() {
	l.pollLastResponses()
	if l.awaitingTarget() > 0 { // what does not arrive need not be waited for
		for role := range iomsg.ConnectionRoleCount {
			l.connections[role].reset()
		}
	}
	l.revoke()
}

// lastPolls bounds the polls for responses before a revocation. They move several times what the
// receive buffers of a lane's connections hold, so the bound matters only if the target continues
// to send.
const lastPolls = 128

// pollLastResponses delivers the responses that have already arrived. A target that shuts down
// gracefully responds to everything before it announces its end, but on another connection. Data of
// reads may arrive ahead of a response: a poll moves it without a completion, so only the queue
// itself knows whether anything is left.
func (l *RelayLane) pollLastResponses() {
	queue := l.dispatcher.queue
	for range lastPolls {
		if !l.canAcceptResponses() || l.awaitingTarget() == 0 {
			return
		}
		if l.dispatcher.Poll() == 0 && queue.Arm() {
			queue.Disarm()
			return
		}
	}
}

// awaitingTarget returns the number of requests without a response from the target.
func (l *RelayLane) awaitingTarget() int { return l.slots.inFlight() - l.declined }

// FailRequests completes every request in flight with code, and rejects every later one with it.
// Nothing else completes a forwarded request without a response from the target. The caller first
// revokes all lanes of the session and deregisters the client's memory; FailRequests makes sure of
// this lane's part. A request whose data is being copied completes when the copy has ended.
func (l *RelayLane) FailRequests(ctx context.Context, code status.Code) error {
	if l.detached {
		return nil
	}
	return l.worker.do(ctx, func() {
		l.failWhere(code, func(*slot) bool { return true })
	})
}

// FailReads is FailRequests for the requests that have changed nothing: those of other types, and
// those that the target has declined. It returns the number of the others in flight, which the
// target may still be carrying out.
func (l *RelayLane) FailReads(ctx context.Context, code status.Code) (changes int, err error) {
	if l.detached {
		return 0, nil
	}
	err = l.worker.do(ctx, func() {
		l.failWhere(code, func(s *slot) bool { return !s.operation.Changes() || s.declined })
		for i := range l.slots.slots {
			if s := &l.slots.slots[i]; s.inFlight && !s.copying {
				changes++
			}
		}
	})
	return changes, err
}

func (l *RelayLane) failWhere(code status.Code, fails func(*slot) bool) {
	if l.state == laneClosed {
		return
	}
	l.revoke()
	l.state = laneRejecting
	l.draining = false
	l.rejectCode = code
	l.nowNs = nanotime()
	for i := range l.slots.slots {
		s := &l.slots.slots[i]
		if !s.inFlight || s.copying || !fails(s) { // endCopy completes what is being copied
			continue
		}
		s.ioSize = 0
		l.complete(uint32(i), s, code)
	}
	l.nowNs = 0
	l.declined = 0
	l.inFlight.Store(int64(l.slots.inFlight()))
	l.counters.publish()
	l.flushResponses()
}

// Close revokes the lane, waits for its last completions, and releases it with its consumer and
// producer. If ctx ends first, the lane's memory is leaked rather than freed under a device that
// may still use it, and Close can be called again.
func (l *RelayLane) Close(ctx context.Context) error {
	err := l.Revoke(ctx)
	if err == nil && !l.detached {
		err = l.detach(ctx, l.slots.inFlight)
	}
	if err == nil {
		err = l.free(ctx, l.release)
	}
	if err != nil {
		return fmt.Errorf("close relay lane: %w", err)
	}
	return nil
}

func (l *RelayLane) release() error {
	return errors.Join(l.config.Consumer.Close(), l.config.Producer.Close(), l.messages.close(),
		l.bounce.close())
}

// The worker sleeps on the lane's consumer while the lane accepts requests, and on its producer
// while responses wait for the client to post receives. At most one of the two is armed at a time,
// except that a late producer is always armed. Their Drain hides that of the lane: it consumes
// wake-ups (progress.Waiter).
type (
	relayConsumerWaiter struct{ *RelayLane }
	relayProducerWaiter struct{ *RelayLane }
)

func (w relayConsumerWaiter) Descriptor() int { return w.config.Consumer.Descriptor() }

func (w relayProducerWaiter) Descriptor() int { return w.config.Producer.Descriptor() }

func (w relayConsumerWaiter) Arm() bool {
	w.isDue = false
	if !w.canAcceptRequests() || w.draining || w.outbox.Len() > 0 || !w.hasRoom() {
		return true // nothing to wait for: no request would be accepted now
	}
	if w.state == laneRunning && w.throttle.update() && !w.throttle.mayRead(nanotime()) {
		w.isDue = true
		return true
	}
	w.consumerArmed = w.config.Consumer.Arm()
	return w.consumerArmed
}

// Due makes the worker continue when the lane's rate limits do.
func (w relayConsumerWaiter) Due() (in time.Duration, ok bool) {
	return time.Duration(w.throttle.untilNs - nanotime()), w.isDue
}

func (w relayProducerWaiter) Arm() bool {
	if !w.canAcceptRequests() || w.outbox.Len() == 0 && w.lateProducer == nil {
		return true
	}
	w.producerArmed = w.config.Producer.Arm()
	return w.producerArmed
}

func (w relayConsumerWaiter) Disarm() {
	if w.consumerArmed {
		w.consumerArmed = false
		w.config.Consumer.Disarm()
	}
}

func (w relayProducerWaiter) Disarm() {
	if w.producerArmed {
		w.producerArmed = false
		w.config.Producer.Disarm()
	}
}

func (w relayConsumerWaiter) Clear() { w.config.Consumer.Clear() }

func (w relayProducerWaiter) Clear() { w.config.Producer.Clear() }
