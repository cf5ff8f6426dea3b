// SPDX-License-Identifier: Apache-2.0

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
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// maxRequests bounds the RDMA connection requests in progress.
	maxRequests = 1024
	// maxAccepting bounds the RDMA connection requests in progress of one session. A relay connects
	// them one after another.
	maxAccepting = 8
	// acceptRetryPause is the pause after a failed accept: in a process without free descriptors,
	// each attempt fails at once.
	acceptRetryPause = 50 * time.Millisecond
)

// acceptControl accepts control connections until ctx ends. It never waits for a peer.
func (t *Target) acceptControl(ctx context.Context) error {
	for {
		stream, err := t.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = stream.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept control connections: %w", err)
		}
		if err != nil {
			t.log.Warn("cannot accept a control connection", zap.Error(err),
				zap.Int("aborted_pending_connections", t.admission.shed()))
			time.Sleep(acceptRetryPause)
			continue
		}
		p, evicted := t.admission.add(stream)
		if evicted != nil {
			t.log.Warn("too many silent control connections: aborted the oldest of its source",
				zap.Stringer("source", evicted.source))
		}
		t.running.Go(func() { t.serve(p) })
	}
}

// serve serves a control connection until it ends.
func (t *Target) serve(p *pendingConnection) {
	t.log.Debug("serving a control connection", zap.Stringer("source", p.source))
	defer t.log.Debug("no longer serving a control connection", zap.Stringer("source", p.source))
	defer p.cancel(nil)
	defer t.admission.remove(p)
	transport, err := t.newTransport(p)
	if err != nil {
		t.rejections.Log(t.log, zap.WarnLevel, "rejected a control connection",
			p.stream.RemoteAddr().String(), "connection", err)
		return
	}
	s := newSession(t, p, transport)
	if s == nil {
		return
	}
	if t.config.TLS != nil {
		if err := s.admit(); err != nil {
			s.relay.Close(err)
			return
		}
	}
	s.run()
}

// newTransport returns the transport of a control connection. With TLS, the relay has proved its
// identity.
func (t *Target) newTransport(p *pendingConnection) (controlmsg.Transport, error) {
	config := controlmsg.TCPConfig{UserTimeout: t.config.KeepAlive.DeadAfter}
	switch {
	case t.config.DetectProtocol:
		config.DetectFraming = dialects.DetectFraming
	case t.config.Protocol != dialects.None:
		config.Framing = t.config.Protocol
	}
	if t.config.TLS == nil {
		return controlmsg.NewTCPTransport(p.stream, config), nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, t.config.ControlTimeout)
	defer cancel()
	return controlmsg.NewTLSServer(ctx, p.stream, t.config.TLS.Server(*t.allowedNames.Load()),
		config)
}

// SetAllowedNames changes which relays the target accepts: those whose certificates have one of
// these names, or all if there are none. It ends the sessions of relays that it no longer accepts,
// also because their certificates have been revoked since. It has no effect without TLS.
func (t *Target) SetAllowedNames(names []mutualtls.Name) {
	t.allowedNames.Store(&names)
	for _, s := range t.admission.open() {
		if err := s.checkRelay(); err != nil {
			s.cancel(err)
		}
	}
}

// checkRelay fails if the target no longer accepts the relay.
func (s *session) checkRelay() error {
	t := s.target
	if t.config.TLS == nil {
		return nil
	}
	return t.config.TLS.CheckPeer(s.relayChains, *t.allowedNames.Load())
}

// acceptRDMA accepts RDMA connections that carry a valid token, and rejects others, until ctx ends.
// It fails if none can come any more.
func (t *Target) acceptRDMA(ctx context.Context) error {
	var accepting sync.WaitGroup
	defer accepting.Wait()
	busy := make(chan struct{}, maxRequests)
	for {
		request, err := t.rdma.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return status.Errorf(status.NotConnected, "accept RDMA connections: %w", err)
		}
		busy <- struct{}{}
		accepting.Go(func() { t.acceptRequest(request, busy) })
	}
}

// acceptRequest accepts or rejects one RDMA connection, or answers a probe, and then frees a place
// in busy.
func (t *Target) acceptRequest(request rdma.Request, busy <-chan struct{}) {
	defer func() { <-busy }()
	remote := request.Remote()
	t.log.Debug("accepting an RDMA connection", zap.Stringer("from", remote))
	defer t.log.Debug("no longer accepting an RDMA connection", zap.Stringer("from", remote))
	var record tokenRecord
	data, err := controlmsg.DecodeRDMAPrivateData(request.PrivateData())
	if err == nil && data.IsProbe() {
		if err := request.Reject([]byte(controlmsg.RDMAProbeAnswer)); err != nil {
			t.log.Debug("cannot answer a probe", zap.Stringer("from", remote), zap.Error(err))
		}
		return
	}
	if err == nil {
		record, err = t.tokens.claim(data.Token, remote.Addr().Unmap().WithZone(""), time.Now(),
			func(s *session) error { return s.checkProtection(request, data) })
	}
	if err != nil {
		t.rejections.Log(t.log, zap.WarnLevel, "rejected an RDMA connection", remote.String(),
			"RDMA connection", err, zap.Stringer("from", remote))
		if err := request.Reject(nil); err != nil {
			t.log.Debug("cannot reject an RDMA connection",
				zap.Stringer("from", remote), zap.Error(err))
		}
		return
	}
	// Bound to the session's context: the end of the session must not wait for a peer that stalls.
	s := record.session
	ctx, cancel := context.WithTimeout(s.ctx, t.config.ControlTimeout)
	defer cancel()
	if err := s.acceptConnection(ctx, request, record); err != nil {
		s.cancel(err)
	}
}

// checkProtection fails unless an RDMA connection is protected as the session's have to be.
func (s *session) checkProtection(
	request rdma.Request, data controlmsg.RDMAPrivateData,
) error {
	protected := rdma.Protected(request)
	protection, binding := protected.Protection(), protected.Binding()
	switch {
	case protection == rdma.ProtectedByMachine:
		return nil
	case s.binder != nil && protection == rdma.ProtectedByTLS:
		return s.binder.Check(data, binding)
	case s.binder == nil && protection == rdma.Unprotected:
		return nil
	case s.binder == nil:
		return status.Errorf(status.Authentication, "the connection uses TLS, its session does not")
	}
	return status.Errorf(status.Authentication, "the connection does not use TLS, its session does")
}

// acceptConnection passes an RDMA connection to the lane that it was announced for. It blocks until
// the relay has done its part, but holds no lock.
func (s *session) acceptConnection(
	ctx context.Context, request rdma.Request, record tokenRecord,
) error {
	lane, err := s.beginAccept(int(record.queue))
	if err != nil {
		return errors.Join(err, request.Reject(nil))
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.accepting--
		s.accepted.Done()
	}()
	return lane.Accept(ctx, request, record.role, s.outboundReads())
}

func (s *session) beginAccept(queue int) (*datapath.TargetLane, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || queue >= len(s.lanes) {
		return nil, status.Errorf(status.NotConnected, "the session has ended")
	}
	if s.accepting == maxAccepting {
		return nil, status.Errorf(status.Full, "the session is already accepting %d connections",
			maxAccepting)
	}
	s.accepting++
	s.accepted.Add(1)
	return s.lanes[queue], nil
}
