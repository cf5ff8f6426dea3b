package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// session is one client connection with its target connection.
type session struct {
	id         uint64
	opened     time.Time
	channel    *channel
	settings   *ChannelConfig // of when it began
	log        *zap.Logger
	connection comch.Connection
	client     *controlmsg.Responder
	target     *targetConnection
	// machine ties client and target together; nil until there is a target.
	machine *controlmsg.RelayMachine

	// ctx ends with the session; its cause is why.
	ctx    context.Context
	cancel context.CancelCauseFunc

	released chan struct{} // closed when nothing of the session is left

	config     controlmsg.ConfigureDataPath
	region     *memory.Region
	access     memory.Access
	exported   int64
	domain     rdma.ProtectionDomain
	registered rdma.MemoryRegion
	lanes      *laneList
	started    bool // the data path, by start storage
	stopped    bool // the target knows that its connections may end
	destroyed  bool
}

func newSession(c *channel, connection comch.Connection) *session {
	id := c.relay.sessionID.Add(1)
	peer := connection.Peer()
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{
		id: id, opened: time.Now(), channel: c, settings: c.settings.Load(), connection: connection, ctx: ctx, cancel: cancel, lanes: &laneList{},
		released: make(chan struct{}),
		log:      c.log.With(zap.Uint64("session", id), zap.Int("client_pid", peer.PID), zap.Uint32("client_uid", peer.UID)),
		client:   c.newResponder(connection),
	}
}

// newResponder makes the relay's end of a conversation with a client.
func (c *channel) newResponder(connection comch.Connection) *controlmsg.Responder {
	return controlmsg.NewResponder(controlmsg.NewComchTransport(connection), controlmsg.EndpointConfig{
		Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleRelay, Timeout: c.settings.Load().ControlTimeout,
		Software: c.relay.config.Software, Logger: c.log,
	})
}

// run serves the client until the session ends, and releases it.
func (s *session) run() {
	s.log.Info("client connected")
	go s.watchDeadlines()
	go s.watchClient()
	reason := s.serve()
	s.cancel(reason)
	s.end(reason)
	s.channel.clients.leave(s)
}

// serve answers the client's requests. It returns nil after an orderly end.
func (s *session) serve() error {
	for {
		request, err := s.client.Next(s.ctx)
		if cause := context.Cause(s.ctx); cause != nil {
			return cause
		}
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		reply, err := s.handle(request.Message)
		if cause := context.Cause(s.ctx); cause != nil {
			err = cause
		}
		if err != nil {
			s.log.Warn("request failed", zap.Stringer("request", request.Message.Kind()), zap.Error(err))
			err = s.client.Fail(s.answering(), request.Correlation, err)
		} else {
			err = s.reply(request.Correlation, reply)
		}
		if err != nil {
			return fmt.Errorf("answer %v: %w", request.Message.Kind(), err)
		}
		if s.destroyed {
			return nil
		}
	}
}

// reply answers the client, through the machine once there is a target.
func (s *session) reply(correlation uint64, reply controlmsg.Message) error {
	if s.machine == nil {
		return s.client.Reply(s.answering(), correlation, reply)
	}
	return s.machine.Reply(s.answering(), correlation, reply)
}

// answering is the context for answers: also one that tells why the session
// ends must go out. The endpoint bounds it.
func (s *session) answering() context.Context { return context.WithoutCancel(s.ctx) }

// handle carries out one request of the client. The responder has checked
// that it comes in order.
func (s *session) handle(message controlmsg.Message) (controlmsg.Message, error) {
	switch m := message.(type) {
	case *controlmsg.OpenVolume:
		return s.openVolume()
	case *controlmsg.ConfigureDataPath:
		return s.configure(m)
	case *controlmsg.StartDataPathConnections:
		return s.startConnections(m)
	case *controlmsg.StartStorage:
		return s.startStorage()
	case *controlmsg.Stop:
		return s.stop()
	case *controlmsg.DestroyObjects:
		return s.destroy()
	}
	return nil, status.Errorf(status.Unexpected, "request %v is not for a relay", message.Kind())
}

// openVolume connects to the target, if need be when it has come back. A
// client may ask again: for a target that was down, or to learn of a size
// that has changed.
func (s *session) openVolume() (controlmsg.Message, error) {
	if err := s.channel.link.await(s.ctx, s.settings.SessionWait); err != nil {
		return nil, err
	}
	target, err := s.channel.openTarget(s.ctx, s.settings)
	if err != nil {
		return nil, err
	}
	if former := s.target; former != nil {
		former.expendable.Store(true)
		former.requester.Close(nil)
	}
	s.target, s.machine = target, controlmsg.NewRelayMachine(s.client, target.requester)
	go s.watchTarget(target)
	reply := *target.volume
	limits := &s.settings.Limits
	reply.MaxQueues = min(reply.MaxQueues, limits.MaxQueues)
	reply.MaxDepth = min(reply.MaxDepth, limits.MaxDepth)
	reply.MaxBufferSize = min(reply.MaxBufferSize, limits.MaxBufferSize)
	return &reply, nil
}

// configure imports the client's memory, exports it again for RDMA, and
// relays the request with that export in place of the client's.
func (s *session) configure(m *controlmsg.ConfigureDataPath) (controlmsg.Message, error) {
	if s.target == nil {
		return nil, status.Errorf(status.BadState, "the volume is not open")
	}
	if err := s.checkLimits(m); err != nil {
		return nil, err
	}
	if err := s.enterEpoch(m); err != nil {
		return nil, err
	}
	if err := s.importMemory(m); err != nil {
		return nil, errors.Join(err, s.releaseMemory())
	}
	request := *m
	request.Export = controlmsg.Export{
		Access: s.access, Length: m.Export.Length,
		RDMA: &controlmsg.RDMAExport{
			Transport: s.target.device.Capabilities().Transport,
			Key:       s.registered.RemoteKey(), Base: s.registered.Base(),
		},
	}
	reply, err := s.call(&request)
	if err != nil {
		return nil, errors.Join(err, s.releaseMemory())
	}
	s.config = *m
	return reply, nil
}

// enterEpoch makes sure that nothing of the client's former session is left.
func (s *session) enterEpoch(m *controlmsg.ConfigureDataPath) error {
	ctx, cancel := s.stepTimeout()
	defer cancel()
	return s.channel.clients.enter(ctx, m, s)
}

// checkLimits compares with the limits that the client has been told, and
// with those that are the relay's business only.
func (s *session) checkLimits(m *controlmsg.ConfigureDataPath) error {
	theirs, ours := s.target.volume, &s.settings.Limits
	queues, depth := min(ours.MaxQueues, theirs.MaxQueues), min(ours.MaxDepth, theirs.MaxDepth)
	bufferSize := min(ours.MaxBufferSize, theirs.MaxBufferSize)
	switch {
	case m.QueueCount > queues:
		return status.Errorf(status.TooBig, "%d queues are more than the %d that are allowed", m.QueueCount, queues)
	case m.Depth > depth:
		return status.Errorf(status.TooBig, "depth %d is more than the %d that is allowed", m.Depth, depth)
	case uint64(m.QueueCount)*uint64(m.Depth) > uint64(ours.MaxOutstanding):
		return status.Errorf(status.TooBig, "%d queues of depth %d are more than the %d requests that are allowed in all", m.QueueCount, m.Depth, ours.MaxOutstanding)
	case m.Export.Length > ours.MaxExport:
		return status.Errorf(status.TooBig, "export of %d bytes is more than the %d that are allowed", m.Export.Length, ours.MaxExport)
	case m.BufferSize > bufferSize:
		return status.Errorf(status.TooBig, "buffer size %d is more than the %d that is allowed", m.BufferSize, bufferSize)
	}
	return nil
}

// importMemory makes the client's memory reachable for the target, with the
// rights that the client has granted and no others.
func (s *session) importMemory(m *controlmsg.ConfigureDataPath) error {
	length := int64(m.Export.Length)
	if total := s.channel.exported.Add(length); uint64(total) > s.settings.Limits.MaxExport {
		s.channel.exported.Add(-length)
		return status.Errorf(status.NoMemory, "export of %d bytes: all sessions of the channel together may export %d", length, s.settings.Limits.MaxExport)
	}
	s.exported = length
	region, granted, err := s.connection.ImportMemory(m.Export.Descriptor)
	if err != nil {
		return fmt.Errorf("import the client's memory: %w", err)
	}
	s.region = region
	if region.Len() < m.Export.Length {
		return status.Errorf(status.InvalidValue, "the client exported %d bytes and announces %d", region.Len(), m.Export.Length)
	}
	s.access = granted & m.Export.Access
	if s.domain, err = s.target.device.NewProtectionDomain(); err != nil {
		return fmt.Errorf("make a protection domain: %w", err)
	}
	rights := s.access & (memory.RemoteRead | memory.RemoteWrite)
	if s.access.Has(memory.RemoteWrite) {
		rights |= memory.LocalWrite // verbs demands it of whoever grants remote writes
	}
	if s.registered, err = s.domain.Register(region, rights); err != nil {
		return fmt.Errorf("register the client's memory for RDMA: %w", err)
	}
	return nil
}

// startConnections makes, for each queue, the Comch consumer and producer and
// the two RDMA connections, and relays the request.
func (s *session) startConnections(m *controlmsg.StartDataPathConnections) (controlmsg.Message, error) {
	if len(m.ConsumerIDs) != int(s.config.QueueCount) {
		return nil, status.Errorf(status.InvalidValue, "%d consumers for %d queues", len(m.ConsumerIDs), s.config.QueueCount)
	}
	reply := &controlmsg.StartDataPathConnectionsReply{}
	for queue, id := range m.ConsumerIDs {
		consumer, err := s.startQueue(queue, comch.ConsumerID(id))
		if err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
		reply.ConsumerIDs = append(reply.ConsumerIDs, uint32(consumer))
	}
	// The target has no use for Comch ids; their number tells it the queues.
	if _, err := s.call(&controlmsg.StartDataPathConnections{ConsumerIDs: m.ConsumerIDs}); err != nil {
		return nil, err
	}
	return reply, nil
}

func (s *session) startQueue(queue int, clientConsumer comch.ConsumerID) (comch.ConsumerID, error) {
	lane, consumer, err := s.newLane(queue, clientConsumer)
	if err != nil {
		return 0, err
	}
	s.lanes.add(lane)
	for _, role := range []iomsg.ConnectionRole{iomsg.ControlConnection, iomsg.DataConnection} {
		if err := s.connectLane(lane, queue, role); err != nil {
			return 0, err
		}
	}
	return consumer, nil
}

// newLane makes a lane, which then owns its consumer and producer.
func (s *session) newLane(queue int, clientConsumer comch.ConsumerID) (*datapath.RelayLane, comch.ConsumerID, error) {
	ctx, cancel := s.stepTimeout()
	defer cancel()
	depth := int(s.config.Depth)
	consumer, err := s.connection.NewConsumer(ctx, datapath.RelayConsumerConfig(depth))
	if err != nil {
		return nil, 0, fmt.Errorf("create Comch consumer: %w", err)
	}
	producer, err := s.connection.NewProducer(ctx, clientConsumer)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("create Comch producer to consumer %d: %w", clientConsumer, err), consumer.Close())
	}
	lane, err := datapath.NewRelayLane(ctx, datapath.RelayLaneConfig{
		Worker: s.channel.workers.Pick(), Queue: queue, Counters: s.channel.counters, Device: s.target.device, Domain: s.domain, Export: s.registered,
		ExportLength: s.config.Export.Length, ExportAccess: s.access,
		Consumer: consumer, Producer: producer,
		Depth: depth, BufferSize: s.config.BufferSize, OnFailure: s.laneFailed(queue),
	})
	if err != nil {
		return nil, 0, errors.Join(err, consumer.Close(), producer.Close())
	}
	return lane, consumer.ID(), nil
}

// connectLane makes one RDMA connection to where the target says, with the
// token that it gave.
func (s *session) connectLane(lane *datapath.RelayLane, queue int, role iomsg.ConnectionRole) error {
	answer, err := s.call(&controlmsg.CreateRDMAConnection{Queue: uint32(queue), Role: role, Source: s.target.source})
	if err != nil {
		return err
	}
	details, ok := answer.(*controlmsg.CreateRDMAConnectionReply)
	if !ok {
		return status.Errorf(status.Unexpected, "target answered create RDMA connection with %v", answer.Kind())
	}
	if details.Address.Addr().Unmap().Is4() != s.target.source.Is4() {
		return status.Errorf(status.BadConfig, "the target takes RDMA connections at %v, which %v cannot reach: choose --rdma-address of both in the same family",
			details.Address, s.target.source)
	}
	staging, err := s.stagingOf(details)
	if err != nil {
		return err
	}
	ctx, cancel := s.stepTimeout()
	defer cancel()
	return lane.Connect(ctx, datapath.ConnectConfig{
		Remote: details.Address, Source: s.target.source,
		PrivateData:  controlmsg.RDMAPrivateData{Token: details.Token}.Append(nil),
		InboundReads: min(int(s.config.Depth), s.target.device.Capabilities().MaxInboundReads),
		Role:         role,
		Staging:      staging,
	})
}

// stagingOf is where the target wants the data of writes.
func (s *session) stagingOf(details *controlmsg.CreateRDMAConnectionReply) (rdma.RemoteMemory, error) {
	staging := details.Staging
	if staging == nil {
		return rdma.RemoteMemory{}, nil
	}
	if need := uint64(s.config.Depth) * uint64(s.config.BufferSize); staging.Length != need {
		return rdma.RemoteMemory{}, status.Errorf(status.Unexpected, "the target offers %d bytes of staging for a queue that needs %d", staging.Length, need)
	}
	return *staging, nil
}

// startStorage starts the data path, the target's side first.
func (s *session) startStorage() (controlmsg.Message, error) {
	if _, err := s.call(&controlmsg.StartStorage{}); err != nil {
		return nil, err
	}
	for queue, lane := range s.lanes.snapshot() {
		if err := lane.Start(s.ctx); err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	s.started = true
	return &controlmsg.StartStorageReply{}, nil
}

// stop confirms what the stop messages on the queues have done.
func (s *session) stop() (controlmsg.Message, error) {
	if err := s.awaitStopMessages(); err != nil {
		return nil, err
	}
	if err := s.stopTarget(); err != nil {
		return nil, err
	}
	return &controlmsg.StopReply{}, nil
}

// awaitStopMessages waits until every queue has been stopped, if the data path
// was started at all.
func (s *session) awaitStopMessages() error {
	if !s.started {
		return nil
	}
	ctx, cancel := s.stepTimeout()
	defer cancel()
	for queue, lane := range s.lanes.snapshot() {
		select {
		case <-lane.Stopped():
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "queue %d has not been stopped with a stop message", queue)
		}
	}
	return nil
}

// stopTarget tells the target that its connections may end now.
func (s *session) stopTarget() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	_, err := s.call(&controlmsg.Stop{})
	return err
}

// destroy releases everything of the session, here and at the target. A
// client may ask for it at any time; what is in flight is then refused.
func (s *session) destroy() (controlmsg.Message, error) {
	if err := s.stopTargetIfConfigured(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	s.revoke(ctx)
	s.refuse(ctx, status.Shutdown)
	if err := s.closeLanes(); err != nil {
		return nil, err
	}
	if err := s.destroyTarget(); err != nil {
		return nil, err
	}
	s.destroyed = true
	return &controlmsg.DestroyObjectsReply{}, nil
}

// stopTargetIfConfigured tells the target, before the connections are closed,
// that this is no failure. What was on a target that is gone is released with
// it.
func (s *session) stopTargetIfConfigured() error {
	if s.target == nil {
		return nil
	}
	s.target.expendable.Store(true) // it closes the connection when it has answered
	if s.config.QueueCount == 0 {
		return nil
	}
	return s.unlessTargetIsGone(s.stopTarget())
}

func (s *session) destroyTarget() error {
	if s.target == nil {
		return nil
	}
	_, err := s.call(&controlmsg.DestroyObjects{})
	return s.unlessTargetIsGone(err)
}

func (s *session) unlessTargetIsGone(err error) error {
	if s.target.requester.Err() != nil {
		return nil
	}
	return err
}

// call sends a request to the target.
func (s *session) call(request controlmsg.Message) (controlmsg.Message, error) {
	reply, err := s.machine.Call(s.ctx, request)
	if err != nil {
		return nil, fmt.Errorf("target %v: %w", s.settings.Target, err)
	}
	return reply, nil
}

// stepTimeout bounds one step of the handshake.
func (s *session) stepTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, s.settings.ControlTimeout)
}

// laneList is a session's lanes, read by observers while the session adds to
// them.
type laneList struct {
	mu    sync.Mutex
	lanes []*datapath.RelayLane
}

func (l *laneList) add(lane *datapath.RelayLane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lanes = append(l.lanes, lane)
}

func (l *laneList) snapshot() []*datapath.RelayLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lanes)
}

// takeAll returns all lanes and forgets them.
func (l *laneList) takeAll() []*datapath.RelayLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	lanes := l.lanes
	l.lanes = nil
	return lanes
}
