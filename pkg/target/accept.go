package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxHandshakes bounds the TLS handshakes under way. Nothing is known yet of
// whoever is behind them, so they wait outside of the places for sessions.
const maxHandshakes = 256

// acceptRetryPause is the pause after a failed accept: a process that is out
// of descriptors fails at once, again and again.
const acceptRetryPause = 50 * time.Millisecond

// acceptControl takes control connections until ctx ends. It returns when all
// of them are sessions, or closed.
func (t *Target) acceptControl(ctx context.Context) error {
	var admitting sync.WaitGroup
	defer admitting.Wait()
	places := make(chan struct{}, maxHandshakes)
	for {
		connection, err := t.listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = connection.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept control connections: %w", err)
		}
		if err != nil {
			t.log.Warn("accept control connection", zap.Error(err))
			time.Sleep(acceptRetryPause)
			continue
		}
		if t.config.TLS == nil {
			t.startSession(connection, controlmsg.NewTCPTransport(connection, controlmsg.TCPConfig{}))
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			_ = connection.Close()
			return nil
		}
		admitting.Go(func() {
			defer func() { <-places }()
			t.admit(ctx, connection)
		})
	}
}

// admit starts a session if the relay can prove who it is.
func (t *Target) admit(ctx context.Context, connection *net.TCPConn) {
	ctx, cancel := context.WithTimeout(ctx, t.config.ControlTimeout)
	defer cancel()
	transport, err := controlmsg.NewTLSServer(ctx, connection, t.config.TLS.Server(t.config.TLSAllowedNames), controlmsg.TCPConfig{})
	if err != nil {
		t.log.Warn("refused a control connection", zap.Error(err))
		return
	}
	t.startSession(connection, transport)
}

func (t *Target) startSession(connection *net.TCPConn, transport controlmsg.Transport) {
	s := newSession(t, connection, transport)
	t.mu.Lock()
	full := len(t.sessions) >= t.config.MaxSessions
	if !full {
		t.sessions[s] = struct{}{}
	}
	t.mu.Unlock()
	t.running.Go(func() {
		if full {
			s.refuse()
			return
		}
		t.sessionsTotal.Add(1)
		s.run()
		t.mu.Lock()
		delete(t.sessions, s)
		t.mu.Unlock()
	})
}

// maxRequests bounds the RDMA connection requests that are being dealt with at
// a time.
const maxRequests = 1024

// acceptRDMA takes RDMA connections until ctx ends. A connection without a
// good token is refused.
func (t *Target) acceptRDMA(ctx context.Context) {
	var accepting sync.WaitGroup
	defer accepting.Wait()
	places := make(chan struct{}, maxRequests)
	for {
		request, err := t.rdma.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, status.Shutdown) {
				t.log.Error("accept RDMA connections", zap.Error(err))
			}
			return
		}
		places <- struct{}{}
		accepting.Go(func() {
			defer func() { <-places }()
			t.acceptRequest(request)
		})
	}
}

func (t *Target) acceptRequest(request rdma.Request) {
	remote := request.Remote()
	data, err := controlmsg.DecodeRDMAPrivateData(request.PrivateData())
	if err == nil {
		var record tokenRecord
		if record, err = t.tokens.claim(data.Token, remote.Addr().Unmap(), time.Now()); err == nil {
			// Bound to the session: its end must not wait for a peer that
			// does not go on.
			ctx, cancel := context.WithTimeout(record.session.ctx, t.config.ControlTimeout)
			defer cancel()
			if err = record.session.acceptConnection(ctx, request, record); err != nil {
				record.session.cancel(err)
			}
			return
		}
	}
	t.log.Warn("refused an RDMA connection", zap.Stringer("from", remote), zap.Error(err))
	if err := request.Reject(nil); err != nil {
		t.log.Debug("reject an RDMA connection", zap.Stringer("from", remote), zap.Error(err))
	}
}

// maxAccepting bounds the connections of one session that are being accepted
// at a time. A relay makes them one after another.
const maxAccepting = 8

// acceptConnection gives an RDMA connection to the lane that it was announced
// for. The wait for the relay's part in it holds up nobody else.
func (s *session) acceptConnection(ctx context.Context, request rdma.Request, record tokenRecord) error {
	lane, err := s.beginAccept(int(record.queue))
	if err != nil {
		return errors.Join(err, request.Reject(nil))
	}
	defer s.endAccept()
	return lane.Accept(ctx, request, record.role, s.outboundReads())
}

func (s *session) beginAccept(queue int) (*datapath.TargetLane, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || queue >= len(s.lanes) {
		return nil, status.Errorf(status.NotConnected, "the session has ended")
	}
	if s.accepting == maxAccepting {
		return nil, status.Errorf(status.Full, "%d connections of the session are being made already", maxAccepting)
	}
	s.accepting++
	s.accepted.Add(1)
	return s.lanes[queue], nil
}

func (s *session) endAccept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting--
	s.accepted.Done()
}
