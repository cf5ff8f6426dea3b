package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// watchClient ends the session when the connection to the client ends, even while one of its
// requests is in progress.
func (s *session) watchClient() {
	select {
	case <-s.client.Done():
		s.cancel(fmt.Errorf("client: %w", s.client.Err()))
	case <-s.ctx.Done():
	}
}

// watchTarget ends the session when its control connection to the target ends.
func (s *session) watchTarget(target *targetConnection) {
	select {
	case <-target.requester.Done():
		if !target.expendable.Load() {
			s.cancel(fmt.Errorf("target %v: %w", s.settings.Target, target.requester.Err()))
		}
	case <-s.ctx.Done():
	}
}

// onLaneFailure returns the function that a lane calls on its worker's thread when it fails. The
// failure ends the session, unless the session is being destroyed: the target may then close its
// connections before the relay does.
func (s *session) onLaneFailure(queue int) func(error) {
	target := s.target
	return func(err error) {
		if target.expendable.Load() {
			return
		}
		// Cancelling runs other code and must not delay the worker.
		go func() {
			s.log.Debug("queue failed", zap.Int("queue", queue), zap.Error(err))
			s.cancel(fmt.Errorf("queue %d: %w", queue, err))
		}()
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
// ends.
func (s *session) drain(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	datapath.DrainAll(ctx, s.openLanes())
}

func (s *session) inFlight() int {
	n := 0
	for _, lane := range s.openLanes() {
		n += lane.InFlight()
	}
	return n
}

// endTimeout bounds the release of a session.
const endTimeout = 10 * time.Second

// end releases the session: it first takes away the target's access to the client's memory, and
// only then fails the IOs that the target has not completed.
func (s *session) end(reason error) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	s.revoke(ctx)
	s.failInFlight(ctx, reason)
	err := s.closeLanes()
	s.client.Close(reason)
	if s.target != nil {
		s.target.requester.Close(reason)
	}
	err = errors.Join(err, s.releaseMemory())
	s.connection.Abort()
	if err != nil {
		s.log.Error("session was not released completely", zap.Error(err))
	}
	if reason == nil {
		s.log.Info("session ended")
		return
	}
	s.log.Warn("session ended", zap.Error(reason), zap.Stringer("code", status.CodeOf(reason)))
}

// revoke closes all RDMA connections and deregisters the client's memory. Afterwards neither the
// target nor a device of the relay touches it.
func (s *session) revoke(ctx context.Context) {
	for _, lane := range s.openLanes() {
		if err := lane.Revoke(ctx); err != nil {
			s.log.Error("cannot revoke the target's access", zap.Error(err))
		}
	}
	if s.registered == nil {
		return
	}
	if err := s.registered.Deregister(); err != nil {
		s.log.Error("cannot deregister the client's memory", zap.Error(err))
	}
	s.registered = nil
}

// failInFlight fails every IO that the target has not responded to, and every later one. Clients
// see one of three codes, whatever the reason.
func (s *session) failInFlight(ctx context.Context, reason error) {
	code := status.CodeOf(reason)
	if code != status.TimeOut && code != status.Shutdown {
		code = status.ConnectionReset
	}
	for _, lane := range s.openLanes() {
		if err := lane.Reject(ctx, code); err != nil {
			s.log.Error("cannot complete the IOs in flight", zap.Error(err))
		}
	}
}

// closeLanes closes all lanes with their connections, consumers and producers.
func (s *session) closeLanes() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	s.mu.Lock()
	lanes := s.lanes
	s.lanes = nil
	s.mu.Unlock()
	_, err := datapath.CloseAll(ctx, lanes)
	return err
}

// releaseMemory releases the client's memory. All lanes must be closed.
func (s *session) releaseMemory() error {
	var errs []error
	if s.registered != nil {
		errs = append(errs, s.registered.Deregister())
		s.registered = nil
	}
	if s.domain != nil {
		errs = append(errs, s.domain.Close())
		s.domain = nil
	}
	if s.region != nil {
		errs = append(errs, s.region.Close())
		s.region = nil
	}
	s.channel.exported.Add(-s.exported)
	s.exported = 0
	return errors.Join(errs...)
}
