package target

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

var errShuttingDown = status.Errorf(status.Shutdown, "the target is shutting down (drain)")

// session is one control connection of a relay, with the lanes of its queues.
type session struct {
	target *Target
	log    *zap.Logger
	relay  *controlmsg.Responder
	local  *net.TCPAddr

	// ctx ends with the session; its cause is why.
	ctx    context.Context
	cancel context.CancelCauseFunc

	volume       volume.Volume
	config       controlmsg.ConfigureDataPath
	staging      int64
	domain       rdma.ProtectionDomain
	volumeMemory rdma.MemoryRegion

	mu        sync.Mutex // guards what follows, shared with the RDMA acceptor
	lanes     []*datapath.TargetLane
	stopped   bool // the relay has stopped all queues: connections may end
	closed    bool // no more connections
	accepting int  // connections that are being accepted
	accepted  sync.WaitGroup

	releaseOnce sync.Once
	releaseErr  error
}

// newSession makes a session on the transport of a connection.
func newSession(t *Target, connection *net.TCPConn, transport controlmsg.Transport) *session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{
		target: t, ctx: ctx, cancel: cancel, local: connection.LocalAddr().(*net.TCPAddr),
		log: t.log.With(zap.Uint64("session", t.sessionID.Add(1)), zap.String("relay", transport.RemoteName())),
		relay: controlmsg.NewResponder(transport, controlmsg.EndpointConfig{
			Codec: controlmsg.NewProtobufCodec(), Role: controlmsg.RoleTarget, Timeout: t.config.ControlTimeout,
			KeepAlive: t.config.KeepAlive, Software: t.config.Software, Logger: t.log,
		}),
	}
}

// refuse ends a session that is one too many.
func (s *session) refuse() {
	s.relay.Close(status.Errorf(status.Full, "the target has its maximum of %d sessions", s.target.config.MaxSessions))
	s.cancel(nil)
}

// run serves the relay until the session ends, and releases it.
func (s *session) run() {
	s.log.Debug("relay connected")
	go s.watchRelay()
	reason := s.serve()
	s.cancel(reason)
	s.end(reason)
}

// watchRelay ends the session when the relay goes, also in the middle of a
// request of its.
func (s *session) watchRelay() {
	select {
	case <-s.relay.Done():
		err := s.relay.Err()
		if err == nil {
			err = status.ConnectionReset
		}
		s.cancel(fmt.Errorf("relay: %w", err))
	case <-s.ctx.Done():
	}
}

// serve answers the relay's requests. It returns nil after an orderly end.
func (s *session) serve() error {
	for {
		request, err := s.relay.Next(s.ctx)
		if cause := context.Cause(s.ctx); cause != nil {
			return cause
		}
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		reply, err := s.handle(request.Message)
		if cause := context.Cause(s.ctx); cause != nil {
			err = cause
		}
		if err != nil {
			s.log.Warn("request failed", zap.Stringer("request", request.Message.Kind()), zap.Error(err))
			err = s.relay.Fail(s.answering(), request.Correlation, err)
		} else {
			err = s.relay.Reply(s.answering(), request.Correlation, reply)
		}
		if err != nil {
			return fmt.Errorf("answer %v: %w", request.Message.Kind(), err)
		}
		if request.Message.Kind() == controlmsg.KindDestroyObjects {
			return nil
		}
	}
}

// answering is the context for answers: also one that tells why the session
// ends must go out. The endpoint bounds it.
func (s *session) answering() context.Context { return context.WithoutCancel(s.ctx) }

// handle carries out one request of the relay. The responder has checked that
// it comes in order.
func (s *session) handle(message controlmsg.Message) (controlmsg.Message, error) {
	switch m := message.(type) {
	case *controlmsg.OpenVolume:
		return s.openVolume(m)
	case *controlmsg.ConfigureDataPath:
		return s.configure(m)
	case *controlmsg.CreateRDMAConnection:
		return s.announce(m)
	case *controlmsg.StartDataPathConnections:
		return s.startConnections(m)
	case *controlmsg.StartStorage:
		return s.startStorage()
	case *controlmsg.Stop:
		return s.stop()
	case *controlmsg.DestroyObjects:
		return &controlmsg.DestroyObjectsReply{}, s.release()
	}
	return nil, status.Errorf(status.Unexpected, "request %v is not for a target", message.Kind())
}

// laneFailed is told by a lane, on its worker's thread, that it cannot go on.
// After stop, that the relay closes its connections is the regular end.
func (s *session) laneFailed(queue int) func(error) {
	return func(err error) {
		go func() {
			s.mu.Lock()
			stopped := s.stopped
			s.mu.Unlock()
			if !stopped {
				s.cancel(fmt.Errorf("queue %d: %w", queue, err))
			}
		}()
	}
}
