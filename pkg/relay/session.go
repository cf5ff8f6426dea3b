// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/bucket"
	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// session is one client's use of a channel: its Comch connection, a control connection to the
// target, and their queues. It is the controlmsg.Handler of the client's requests.
//
// The client learns of success only after the target has succeeded: a method that carries out a
// request of the client returns nil only after the target has replied to the same request. The
// target gets requests only from these methods, so each has a request of the client as its cause.
type session struct {
	id         uint64
	stage      sessionStage // where it is in its life
	opened     time.Time
	channel    *channelCommon
	settings   *ChannelConfig // as of the start of the session
	log        *zap.Logger
	connection comch.Connection
	client     controlmsg.Server
	target     *targets.Connection                // nil until the volume is open
	reached    atomic.Pointer[targets.Connection] // the same, for any goroutine
	epoch      *epoch.Session
	dials      *bucket.Bucket // connections to the target
	// targetLeaves is set when the target has declined a request because it shuts down.
	targetLeaves atomic.Bool
	// longestLease is what the client has been told of the targets' leases.
	longestLease time.Duration
	volumeSize   atomic.Uint64 // in bytes, as the client knows it
	throttle     datapath.Throttle
	counters     datapath.CounterSet

	// ctx ends with the session; its cause is the reason.
	ctx    context.Context
	cancel context.CancelCauseFunc

	translator datapath.Translator          // of the client's IO messages; nil for our protocol
	foreign    datapath.ForeignTarget       // of IO messages for the target; nil for our protocol
	announced  *controlmsg.OpenVolumeReply  // to the client
	config     controlmsg.ConfigureDataPath // accepted by the target
	sessionMemory
	serving devicecall.Step // carries out the client's requests

	mu       sync.Mutex // guards what follows: others drain the session, and observe its lanes
	lanes    []*datapath.RelayLane
	lease    *lease.RelaySession // nil if the target asks no questions
	draining bool                // lanes that have not started never do
	name     string              // the client's own; "" before it has configured its data path
	// unreleased is why the session has ended and is not released, as of the last attempt; nil as
	// long as it has not ended.
	unreleased error
}

func newSession(
	c *channelCommon, settings *ChannelConfig, connection comch.Connection,
) *session {
	id := c.relay.sessionID.Add(1)
	log := c.log.With(zap.Uint64("session", id))
	if peer := connection.Peer(); peer.Known {
		log = log.With(zap.Int("client_pid", peer.PID), zap.Uint32("client_uid", peer.UID))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{
		id: id, opened: time.Now(), channel: c, settings: settings, log: log,
		connection: connection, ctx: ctx, cancel: cancel, epoch: epoch.NewSession(cancel),
		dials: bucket.New(sessionDialInterval),
	}
}

// run serves the client until the session ends, and ends it on this side.
func (s *session) run() {
	s.log.Info("client connected")
	var reason error
	if s.client, reason = s.openConversation(); reason == nil {
		go s.watchDeadlines()
		go s.watchClient()
		reason = s.serve()
	}
	if s.serving.IsUnderWay() {
		s.abandon(reason)
		return
	}
	if reason != nil && s.ctx.Err() == nil {
		reason = fmt.Errorf("client: %w", reason)
	}
	s.cancel(reason)
	s.end(reason)
}

// serve serves the client. It fails with status.TimeOut if one of the requests waits for a device
// long after the session has ended.
func (s *session) serve() error {
	ctx, cancel := devicecall.After(s.ctx, s.channel.relay.ends.answer)
	defer cancel()
	return s.serving.Take(ctx, "carry out a request of the client",
		func() error { return s.client.Serve(s.ctx, s) })
}

// OpenVolume connects to the target and opens the volume there. The client may repeat it, because
// the target was down or to learn of a changed size. Once a connection exists, the session keeps
// it.
func (s *session) OpenVolume(
	ctx context.Context, _ *controlmsg.OpenVolume,
) (*controlmsg.OpenVolumeReply, error) {
	if err := s.checkClient(); err != nil {
		return nil, err
	}
	if s.target == nil {
		if err := s.connectTarget(ctx); err != nil {
			return nil, err
		}
	} else if err := s.target.OpenVolume(ctx); err != nil {
		return nil, s.volumeError(s.target.OpenError(err))
	}
	reply, limits := *s.target.Volume, &s.settings.Limits
	reply.Capabilities &= uint32(volume.KnownCapabilities) // the relay forwards nothing else
	// The next keep-alive brings a larger size that this replaces.
	s.volumeSize.Store(reply.Size)
	reply.MaxQueues = min(reply.MaxQueues, limits.MaxQueues)
	reply.MaxDepth = min(reply.MaxDepth, limits.MaxDepth)
	reply.MaxBufferSize = min(reply.MaxBufferSize, limits.MaxBufferSize)
	if err := s.choosePaths(ctx); err != nil {
		return nil, targets.AsTemporary(err)
	}
	if s.copier != nil {
		reply.MaxBufferSize = uint32(min(uint64(reply.MaxBufferSize),
			s.copier.Capabilities().MaxBufferSize))
	}
	reply.Transport, reply.RDMAPort = s.target.Transport(ctx), 0
	reply.Sole, reply.Confirmed = "", false
	s.announced = &reply
	return &reply, nil
}

// formerPause is when a client may try again whose former session has not been released in time.
const formerPause = time.Second

// ConfigureDataPath imports the client's memory, exports it again for RDMA, and forwards the
// request with that export in place of the client's.
func (s *session) ConfigureDataPath(
	ctx context.Context, m *controlmsg.ConfigureDataPath,
) (*controlmsg.ConfigureDataPathReply, error) {
	if err := s.checkLimits(m); err != nil {
		return nil, err
	}
	if m.Preempt != 0 && s.target.Dialect != nil {
		return nil, status.Errorf(status.NotSupported,
			"a target that speaks %v cannot end the sessions of others", s.target.Version)
	}
	if s.region != nil {
		return nil, status.Errorf(status.BadState,
			"the memory of a failed configuration is still registered: start a new session")
	}
	releasing, cancel := s.stepTimeout(ctx)
	defer cancel()
	err := s.channel.clients.Supersede(releasing, m.ClientInstance, m.Epoch, s.epoch)
	if errors.Is(err, status.TimeOut) {
		err = controlmsg.Postpone(formerPause, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.importMemory(ctx, m); err != nil {
		return nil, errors.Join(err, s.undoImport(ctx))
	}
	request := *m
	request.Export = controlmsg.Export{
		Access: s.access, Length: s.reachable,
		RDMA: &controlmsg.RDMAExport{
			Transport: s.target.Device.Capabilities().Transport,
			Key:       s.registered.RemoteKey(), Base: s.registered.Base(),
		},
	}
	if s.target.Dialect != nil {
		if err := s.target.ExportForDialect(&request, s.registered); err != nil {
			return nil, errors.Join(err, s.undoImport(ctx))
		}
		s.foreign = dialects.NewTargetTranslator(s.target.Version, s.registered.Base())
	}
	leased := s.beginLease()
	request.Session, request.Answer = leased.Number(), s.target.Lease.Load().AnswerNow()
	reply, err := targets.Call(ctx, s.target, &request)
	if err != nil {
		if s.target.Requester.Err() == nil { // the target has none of it
			leased.Confirm()
		}
		return nil, errors.Join(err, s.undoImport(ctx))
	}
	s.config = *m
	s.mu.Lock()
	s.name = printable.Line(m.Client, controlmsg.MaxClientLength)
	s.mu.Unlock()
	s.stage.note(dataPathConfigured)
	return reply, nil
}

// checkLimits compares a configuration with the limits announced to the client, and with those that
// the relay does not announce.
func (s *session) checkLimits(m *controlmsg.ConfigureDataPath) error {
	if err := s.announced.CheckLimits(m); err != nil {
		return err
	}
	limits := &s.settings.Limits
	if uint64(m.QueueCount)*uint64(m.Depth) > uint64(limits.MaxOutstanding) {
		return status.Errorf(status.TooBig,
			"%d queues of depth %d exceed the limit of %d outstanding requests "+
				"(limits.outstanding of the relay's channel)",
			m.QueueCount, m.Depth, limits.MaxOutstanding)
	}
	if m.Export.Length > limits.MaxExport {
		return status.Errorf(status.TooBig, "export of %d bytes exceeds the limit of %d "+
			"(limits.export of the relay's channel)",
			m.Export.Length, limits.MaxExport)
	}
	return nil
}

// StartStorage starts the data path, the target's side first.
func (s *session) StartStorage(ctx context.Context) error {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		return status.Errorf(status.Shutdown, "the session is being drained")
	}
	if _, err := targets.Call(ctx, s.target, &controlmsg.StartStorage{}); err != nil {
		return err
	}
	for queue, lane := range s.openLanes() {
		if err := lane.Start(ctx); err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
	}
	s.stage.note(lanesStarted)
	return nil
}

// Stop waits until the stop messages have drained the queues, if the data path was started, and
// stops the target.
func (s *session) Stop(ctx context.Context) error {
	if s.stage.now() == sessionStarted {
		draining, cancel := s.stepTimeout(ctx)
		defer cancel()
		for queue, lane := range s.openLanes() {
			select {
			case <-lane.Stopped():
			case <-draining.Done():
				return status.Errorf(status.TimeOut,
					"the stop message of queue %d has not returned",
					queue)
			}
		}
	}
	return s.stopTarget(ctx)
}

// stopTarget forwards Stop to the target, once. After it, the target does not treat the end of its
// RDMA connections as a failure.
func (s *session) stopTarget(ctx context.Context) error {
	if !s.stage.note(targetStops).isRunning() {
		return nil
	}
	_, err := targets.Call(ctx, s.target, &controlmsg.Stop{})
	return err
}

// DestroyObjects releases everything of the session, here and at the target. The client may request
// it at any time; IOs in flight then fail. A target that is lost has released its part.
func (s *session) DestroyObjects(ctx context.Context) (done bool, err error) {
	// From now on, the target may close the connection: it does after its reply.
	if s.stage.note(clientDestroys).isRunning() {
		_, err := targets.Call(ctx, s.target, &controlmsg.Stop{})
		if err != nil && s.target.Requester.Err() == nil {
			return false, err
		}
	}
	releasing, cancel := s.withinRequest(ctx)
	defer cancel()
	if _, err := s.takeSteps(releasing, status.Shutdown); err != nil {
		return false, err
	}
	if s.target != nil {
		_, err := targets.Call(ctx, s.target, &controlmsg.DestroyObjects{})
		if err != nil && s.target.Requester.Err() == nil {
			return false, err
		}
		if err == nil {
			s.currentLease().Confirm()
		}
	}
	return true, nil
}
