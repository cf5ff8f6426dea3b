// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// watchClient ends the session when the connection to the client ends, even while one of its
// requests is in progress.
func (s *session) watchClient() {
	s.log.Debug("watching the client")
	defer s.log.Debug("no longer watching the client")
	select {
	case <-s.client.Done():
		s.cancel(fmt.Errorf("client: %w", s.client.Err()))
	case <-s.ctx.Done():
	}
}

// lastResponsesTimeout bounds how long a session waits for the responses that a target has sent
// before its farewell.
const lastResponsesTimeout = time.Second

// end ends the session: it takes away the target's access to the client's memory, and only then
// fails the IOs that the target has not completed. If it cannot take away the access, those IOs
// never complete. The client then loses its connection and must not use the memory again, and the
// session is released later. docs/dev/architecture.md draws the steps, and says who takes them
// ("When the target dies").
func (s *session) end(reason error) {
	s.stage.note(sessionEnds)
	if status.CodeOf(reason) == status.InUse && !isPreempted(reason) {
		// To the client that code would mean that another owner has its volume.
		reason = status.Errorf(status.ConnectionReset, "%w", reason)
	}
	s.endLease()
	s.awaitLastResponses()
	ctx, cancel := context.WithTimeout(context.Background(), s.channel.relay.ends.attempt)
	defer cancel()
	err := s.release(ctx, reason)
	s.setUnreleased(err)
	if s.target != nil {
		s.target.Close(reason)
	}
	s.connection.Abort()
	switch {
	case err != nil:
		s.log.Error("session ended, but could not be released: trying again, and keeping the "+
			"client's memory until then", zap.Error(err), zap.NamedError("reason", reason))
		s.channel.late.Go(func() { s.releaseLate(reason) })
	case reason != nil:
		s.forget()
		s.log.Warn("session ended", zap.Error(reason),
			zap.Stringer("code", status.CodeOf(reason)))
	default:
		s.forget()
		s.log.Info("session ended")
	}
}

// abandon ends a session one of whose requests waits for a device that does not answer. The session
// is released when the device has answered.
func (s *session) abandon(err error) {
	s.stage.note(sessionEnds)
	reason := context.Cause(s.ctx)
	s.endLease()
	s.setUnreleased(err)
	s.client.Close(reason)
	s.connection.Abort()
	if target := s.reached.Load(); target != nil {
		target.Close(reason)
	}
	s.log.Error("session ended, but a device has not answered: keeping the client's memory and "+
		"epoch until then", zap.Error(err), zap.NamedError("reason", reason))
	s.channel.late.Go(func() { s.endLate(err, reason) })
}

// endLate ends an abandoned session when the device has answered.
func (s *session) endLate(err, reason error) {
	s.log.Debug("waiting for the device")
	defer s.log.Debug("no longer waiting for the device")
	_ = s.serving.Await(s.channel.lateContext)
	if s.serving.IsUnderWay() {
		s.log.Error("session was never released, and keeps its client's memory until the relay "+
			"ends", zap.Error(err))
		return
	}
	s.end(reason)
}

// releaseLate releases a session that end could not release, as soon as that is possible.
func (s *session) releaseLate(reason error) {
	s.log.Debug("releasing the session late")
	defer s.log.Debug("no longer releasing the session")
	for ctx := s.channel.lateContext; ; {
		err := s.release(ctx, reason)
		if err == nil {
			s.forget()
			s.log.Warn("session is released, late")
			return
		}
		s.setUnreleased(err)
		if !retry.Sleep(ctx, s.channel.relay.ends.pause) {
			s.log.Error("session was never released, and keeps its client's memory until the "+
				"relay ends", zap.Error(err))
			return
		}
	}
}

// forget makes the channel forget the session, which has been released.
func (s *session) forget() {
	s.stage.note(releaseSucceeds)
	s.channel.forget(s.id)
}

// setUnreleased records why the session cannot be released yet; nil means that it is.
func (s *session) setUnreleased(reason error) {
	if reason != nil {
		s.stage.note(releaseFails)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreleased = reason
}

// awaitLastResponses waits for the responses that a target has sent before it announced its end.
// The announcement may have overtaken them: it uses another connection.
func (s *session) awaitLastResponses() {
	if s.target == nil || !errors.Is(s.target.Requester.Err(), status.Shutdown) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastResponsesTimeout)
	defer cancel()
	datapath.DrainAll(ctx, s.openLanes())
}

// release takes the steps of the end, and tells the client. Then the client's next session may
// begin. If a step fails, release can be called again.
func (s *session) release(ctx context.Context, reason error) error {
	answered, err := s.takeSteps(ctx, reason)
	if answered {
		s.client.Close(reason)
	}
	if err == nil {
		s.channel.clients.Release(s.epoch)
	}
	return err
}

// takeSteps takes the steps of the end in their order, each on all lanes: no IO is answered before
// the target has lost its access, and what the session has used of the limits is free before the
// client learns of the end. answered means that every IO has an outcome, even if a later step has
// failed. After an error, takeSteps can be called again.
func (s *session) takeSteps(ctx context.Context, reason error) (answered bool, err error) {
	if err := s.revoke(ctx); err != nil {
		return false, err
	}
	if err := s.failRequests(ctx, reason); err != nil {
		return false, err
	}
	if err := s.closeLanes(ctx); err != nil {
		return true, err
	}
	return true, s.releaseMemory(ctx)
}

// revoke closes all RDMA connections and deregisters the client's memory. Afterwards neither the
// target nor a device of the relay touches it.
func (s *session) revoke(ctx context.Context) error {
	err := datapath.OnAll(s.openLanes(),
		func(lane *datapath.RelayLane) error { return lane.Revoke(ctx) })
	if err != nil {
		return fmt.Errorf("revoke the target's access: %w", err)
	}
	return s.deregister(ctx) // which waits for a worker that uses the memory: none does any more
}

// failRequests fails every IO that the target has not responded to, and every later one. The
// target's access must have been revoked. Changes fail only when they can take effect no more.
func (s *session) failRequests(ctx context.Context, reason error) error {
	code := endCode(reason)
	var changes atomic.Int64
	err := datapath.OnAll(s.openLanes(), func(lane *datapath.RelayLane) error {
		n, err := lane.FailReads(ctx, code)
		changes.Add(int64(n))
		return err
	})
	if err == nil && changes.Load() > 0 {
		s.endLease()
		err = s.currentLease().Await(ctx, s.channel.targets.AskForOwner)
	}
	if err == nil {
		err = datapath.OnAll(s.openLanes(),
			func(lane *datapath.RelayLane) error { return lane.FailRequests(ctx, code) })
	}
	if err != nil {
		return fmt.Errorf("complete the IOs in flight: %w", err)
	}
	return nil
}

// beginLease begins the session's life at the target.
func (s *session) beginLease() *lease.RelaySession {
	leased := s.target.Lease.Load().Begin(s.target.Place(s.channel.id.String()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = leased
	return leased
}

func (s *session) currentLease() *lease.RelaySession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// endLease lets nothing of the session reach the volume that the target has not seen yet. Any
// goroutine may call it.
func (s *session) endLease() { s.currentLease().End() }

// isDisconnected reports whether the session has ended, or its client had gone by a time. Any
// goroutine may call it.
func (s *session) isDisconnected(by time.Time) bool {
	return s.ctx.Err() != nil || comch.HasEnded(s.connection, by)
}

// endCode returns the code with which IOs fail when a session ends. Clients see one of four,
// whatever the reason.
func endCode(reason error) status.Code {
	switch code := status.CodeOf(reason); {
	case code == status.TimeOut, code == status.Shutdown, isPreempted(reason):
		return code
	}
	return status.ConnectionReset
}

// isPreempted reports whether a session ends because the target has given its volume to another
// owner.
func isPreempted(reason error) bool {
	farewell, ok := errors.AsType[*controlmsg.Error](reason)
	return ok && farewell.Code == status.InUse
}
