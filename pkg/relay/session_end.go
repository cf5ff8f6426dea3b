package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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

// endTimeout bounds the release of a session.
const endTimeout = 10 * time.Second

// end releases the session. Nothing is answered that the target has not
// answered before the target can no longer reach the client's memory.
func (s *session) end(reason error) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	s.revoke(ctx)
	s.refuse(ctx, reason)
	err := s.closeLanes()
	s.client.Close(reason)
	if s.target != nil {
		s.target.requester.Close(reason)
	}
	err = errors.Join(err, s.releaseMemory())
	s.connection.Abort()
	s.logEnd(reason, err)
}

func (s *session) logEnd(reason, failure error) {
	if failure != nil {
		s.log.Error("session was not released completely", zap.Error(failure))
	}
	if reason == nil {
		s.log.Info("session ended")
		return
	}
	s.log.Warn("session ended", zap.Error(reason), zap.Stringer("code", status.CodeOf(reason)))
}

// revoke closes all RDMA connections and invalidates the key of the client's
// memory.
func (s *session) revoke(ctx context.Context) {
	for _, lane := range s.lanes.snapshot() {
		if err := lane.Revoke(ctx); err != nil {
			s.log.Error("revoke the target's access", zap.Error(err))
		}
	}
	if s.registered == nil {
		return
	}
	if err := s.registered.Deregister(); err != nil {
		s.log.Error("revoke the key of the client's memory", zap.Error(err))
	}
	s.registered = nil
}

// refuse answers what is still in flight.
func (s *session) refuse(ctx context.Context, reason error) {
	code := refusalCode(reason)
	for _, lane := range s.lanes.snapshot() {
		if err := lane.Reject(ctx, code); err != nil {
			s.log.Error("answer the requests in flight", zap.Error(err))
		}
	}
}

// refusalCode is the code for IOs that the end of a session leaves without an
// answer of the target.
func refusalCode(reason error) status.Code {
	switch code := status.CodeOf(reason); code {
	case status.TimeOut, status.Shutdown:
		return code
	}
	return status.ConnectionReset
}

// closeLanes closes all lanes with their connections, consumers and
// producers.
func (s *session) closeLanes() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	var errs []error
	for queue, lane := range s.lanes.takeAll() {
		if err := lane.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", queue, err))
		}
	}
	return errors.Join(errs...)
}

// releaseMemory forgets the client's memory. The lanes must be closed.
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
