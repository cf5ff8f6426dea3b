package relay

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
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

// watchClient ends the session when the client goes, also in the middle of a
// request of its.
func (s *session) watchClient() {
	select {
	case <-s.client.Done():
		s.cancel(fmt.Errorf("client: %w", endOf(s.client.Err())))
	case <-s.ctx.Done():
	}
}

// watchTarget ends the session when its control connection to the target
// ends.
func (s *session) watchTarget(target *targetConnection) {
	requester := target.requester
	select {
	case <-requester.Done():
		if target.expendable.Load() {
			return
		}
		s.cancel(fmt.Errorf("target %v: %w", s.settings.Target, endOf(requester.Err())))
	case <-s.ctx.Done():
	}
}

// endOf makes sure that an end has a reason.
func endOf(err error) error {
	if err == nil {
		return status.Errorf(status.ConnectionReset, "connection has ended")
	}
	return err
}

// deadlineChecks is how many times within an IO timeout the lanes look for
// IOs that take longer.
const deadlineChecks = 8

// watchDeadlines has the lanes look for IOs that take too long.
func (s *session) watchDeadlines() {
	timeout := s.settings.IOTimeout
	if timeout < 0 {
		return
	}
	ticker := time.NewTicker(max(timeout/deadlineChecks, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		for _, lane := range s.lanes.snapshot() {
			if lane.InFlight() > 0 {
				lane.CheckDeadline(timeout)
			}
		}
	}
}

func (s *session) inFlight() int {
	n := 0
	for _, lane := range s.lanes.snapshot() {
		n += lane.InFlight()
	}
	return n
}

// drainPoll is how often a drain looks whether IOs are still in flight.
const drainPoll = 2 * time.Millisecond

// drain takes no more IOs from the client and waits for those in flight.
func (s *session) drain(ctx context.Context) {
	for _, lane := range s.lanes.snapshot() {
		if err := lane.Drain(ctx); err != nil {
			return
		}
	}
	for s.inFlight() > 0 && ctx.Err() == nil && s.ctx.Err() == nil {
		time.Sleep(drainPoll)
	}
}

// laneFailed is told by a lane, on its worker's thread, that it cannot go on.
func (s *session) laneFailed(queue int) func(error) {
	return func(err error) {
		// Cancelling wakes waiters and must not hold up the worker.
		go func() {
			s.log.Debug("queue cannot go on", zap.Int("queue", queue), zap.Error(err))
			s.cancel(fmt.Errorf("queue %d: %w", queue, err))
		}()
	}
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
