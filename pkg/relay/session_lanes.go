// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// StartDataPathConnections opens all queues and forwards the request.
func (s *session) StartDataPathConnections(
	ctx context.Context, m *controlmsg.StartDataPathConnections,
) (*controlmsg.StartDataPathConnectionsReply, error) {
	reply := &controlmsg.StartDataPathConnectionsReply{}
	for queue, id := range m.ConsumerIDs {
		consumer, err := s.openQueue(ctx, queue, comch.ConsumerID(id))
		if err != nil {
			return nil, fmt.Errorf("queue %d: %w", queue, err)
		}
		reply.ConsumerIDs = append(reply.ConsumerIDs, uint32(consumer))
	}
	// The target ignores the Comch ids.
	if _, err := targets.Call(ctx, s.target, m); err != nil {
		return nil, err
	}
	return reply, nil
}

// openQueue opens a lane, which owns its Comch consumer and producer, and its two RDMA connections.
// It returns the consumer.
func (s *session) openQueue(
	ctx context.Context, queue int, clientConsumer comch.ConsumerID,
) (comch.ConsumerID, error) {
	opening, cancel := s.stepTimeout(ctx)
	defer cancel()
	depth := int(s.config.Depth)
	consumer, err := s.connection.NewConsumer(opening, datapath.RelayConsumerConfig(depth))
	if err != nil {
		return 0, fmt.Errorf("create Comch consumer: %w", err)
	}
	producer, err := s.connection.NewProducer(opening, clientConsumer)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("create Comch producer for consumer %d: %w",
			clientConsumer, err), consumer.Close())
	}
	var bounce *datapath.BounceConfig
	if s.bounce != nil {
		if bounce, err = s.bounce.lane(queue, depth); err != nil {
			return 0, errors.Join(err, consumer.Close(), producer.Close())
		}
	}
	lane, err := datapath.NewRelayLane(opening, datapath.RelayLaneConfig{
		Worker: s.channel.workers.Pick(), Queue: queue, Counters: s.counterSets(),
		Device: s.target.Device, Domain: s.domain,
		Export: s.registered, ExportLength: s.config.Export.Length, ExportAccess: s.access,
		Bounce:   bounce,
		Consumer: consumer, Producer: producer,
		Translator:      s.translator,
		Foreign:         s.foreign,
		Tracer:          s.channel.relay.config.Tracer,
		ChannelThrottle: &s.channel.throttle, SessionThrottle: &s.throttle,
		Depth: depth, BufferSize: s.config.BufferSize, OnFailure: s.onLaneFailure(queue),
		OnTargetShutdown: s.onTargetShutdown,
	})
	if err != nil {
		if bounce != nil {
			err = errors.Join(err, bounce.Engine.Close())
		}
		return 0, errors.Join(err, consumer.Close(), producer.Close())
	}
	s.mu.Lock()
	s.lanes = append(s.lanes, lane)
	s.mu.Unlock()
	for i := range iomsg.ConnectionRoleCount {
		role := i
		if s.target.Version == dialects.DOCA2_10 { // whose targets expect them in this order
			role = iomsg.ConnectionRoleCount - 1 - i
		}
		if err := s.connectLane(ctx, lane, queue, role); err != nil {
			return 0, err
		}
	}
	return consumer.ID(), nil
}

// connectLane establishes one RDMA connection, to the address and with the token that the target
// returns for it.
func (s *session) connectLane(
	ctx context.Context, lane *datapath.RelayLane, queue int, role iomsg.ConnectionRole,
) error {
	if s.target.Dialect != nil {
		return s.connectForeignLane(ctx, lane, queue, role)
	}
	source := s.target.Source
	details, err := targets.Call(ctx, s.target,
		&controlmsg.CreateRDMAConnection{Queue: uint32(queue), Role: role, Source: source})
	if err != nil {
		return err
	}
	remote, err := s.target.RDMARemote(details.Address)
	if err != nil {
		return err
	}
	var staging rdma.RemoteMemory
	if details.Staging != nil {
		staging = *details.Staging
		if need := uint64(s.config.Depth) * uint64(s.config.BufferSize); staging.Length != need {
			return status.Errorf(status.Unexpected,
				"the target offers %d bytes of staging for a queue that needs %d", staging.Length,
				need)
		}
	}
	connecting, cancel := s.stepTimeout(ctx)
	defer cancel()
	return targets.AsTemporary(lane.Connect(connecting, datapath.ConnectConfig{
		Remote: remote, Source: source,
		PrivateData:  controlmsg.RDMAPrivateData{Token: details.Token}.Append(nil),
		TLS:          s.target.DataTLS(details.Token),
		InboundReads: min(int(s.config.Depth), s.target.Device.Capabilities().MaxInboundReads),
		Role:         role,
		Staging:      staging,
	}))
}

// connectForeignLane establishes one RDMA connection to a target of the DOCA applications. Messages
// travel on what is the data connection here, and the control connection there.
func (s *session) connectForeignLane(
	ctx context.Context, lane *datapath.RelayLane, queue int, role iomsg.ConnectionRole,
) error {
	theirs := dialects.RoleData
	if role == iomsg.DataConnection {
		theirs = dialects.RoleControl
	}
	connecting, cancel := s.stepTimeout(ctx)
	defer cancel()
	reads := min(int(s.config.Depth), s.target.Device.Capabilities().MaxInboundReads)
	return targets.AsTemporary(lane.ConnectForeign(connecting, role, reads,
		func(details []byte) ([]byte, error) {
			return s.target.Dialect.Connect(connecting, queue, theirs, details)
		}))
}

// counterSets returns what counts the session's IOs.
func (s *session) counterSets() []*datapath.CounterSet {
	sets := []*datapath.CounterSet{s.channel.counters, &s.counters}
	clients := s.channel.relay.clientCounters
	if set := clients.Of(s.channel.id.String(), s.config.Client); set != nil {
		sets = append(sets, set)
	}
	return sets
}

// openLanes returns the lanes opened so far. Any goroutine may call it.
func (s *session) openLanes() []*datapath.RelayLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lanes)
}

// onLaneFailure returns the function that a lane calls on its worker's thread when it fails. The
// failure ends the session, unless the session is being destroyed: the target may then close its
// connections before the relay does.
func (s *session) onLaneFailure(queue int) func(error) {
	return func(err error) {
		if !s.stage.now().needsTarget() {
			return
		}
		// Cancelling runs other code and must not delay the worker.
		go s.endForLane(queue, err)
	}
}

func (s *session) endForLane(queue int, err error) {
	s.log.Debug("queue failed", zap.Int("queue", queue), zap.Error(err))
	if s.targetLeaves.Load() { // its farewell says why, over another connection
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(farewellTimeout):
		}
	}
	s.cancel(fmt.Errorf("queue %d: %w", queue, err))
}

// targetShutdownTimeout bounds how long a session waits for the requests that a target carries out
// while it shuts down. Such a target normally ends the session itself.
const targetShutdownTimeout = 30 * time.Second

// farewellTimeout bounds how long it then waits, also after the end of an RDMA connection, for the
// target to say why it ends the session.
const farewellTimeout = time.Second

// onTargetShutdown ends the session when the target has completed the requests that it has not
// declined. A lane calls it on its worker's thread.
func (s *session) onTargetShutdown() {
	s.targetLeaves.Store(true)
	go s.awaitTargetShutdown()
}

func (s *session) awaitTargetShutdown() {
	s.log.Debug("waiting for what the target completes while it shuts down")
	defer s.log.Debug("no longer waiting for a target that shuts down")
	ctx, cancel := context.WithTimeout(context.Background(), targetShutdownTimeout)
	defer cancel()
	s.drain(ctx)
	select {
	case <-s.ctx.Done():
	case <-time.After(farewellTimeout):
		s.cancel(status.Errorf(status.Shutdown, "target %v is shutting down",
			s.reached.Load().Address))
	}
}

// deadlineChecks is how many times per IO timeout the lanes look for IOs that have exceeded it.
const deadlineChecks = 8

// watchDeadlines makes the lanes look for IOs that have exceeded the IO timeout.
func (s *session) watchDeadlines() {
	timeout, limited := s.settings.IOTimeout.Duration()
	if !limited {
		return
	}
	s.log.Debug("watching the deadlines of IOs")
	defer s.log.Debug("no longer watching the deadlines of IOs")
	ticker := time.NewTicker(max(timeout/deadlineChecks, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		for _, lane := range s.openLanes() {
			if lane.InFlight() > 0 {
				lane.CheckDeadline(timeout)
			}
		}
	}
}

// drain stops accepting IOs from the client and waits for those in flight, until ctx or the session
// ends. It returns how many were still in flight then.
func (s *session) drain(ctx context.Context) (unfinished int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	return datapath.DrainAll(ctx, s.openLanes())
}

// closeLanes closes all lanes with their connections, consumers and producers. Those that it cannot
// close stay.
func (s *session) closeLanes(ctx context.Context) error {
	open, err := datapath.CloseAll(ctx, s.openLanes())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes = open
	return err
}

// stepTimeout returns a context that bounds one step of the handshake.
func (s *session) stepTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.settings.ControlTimeout)
}
