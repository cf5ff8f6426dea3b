package relay

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/retry"
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

// watchTarget ends the session when its control connection to the target ends, and when the channel
// moves to another target. From the end of the connection on, the session's release does not count
// on what the target could have said there.
func (s *session) watchTarget(target *targets.Connection) {
	defer func() {
		<-target.Requester.Done()
		target.Lease.Load().Disconnect()
	}()
	select {
	case <-target.Requester.Done():
		if !s.targetMayEnd.Load() {
			s.cancel(fmt.Errorf("target %v: %w", target.Address, target.Requester.Err()))
		}
	case <-target.Moved:
		s.cancel(status.Errorf(status.NotConnected, "the channel has moved from target %v to another "+
			"one", target.Address))
	case <-s.ctx.Done():
	}
}

// onLaneFailure returns the function that a lane calls on its worker's thread when it fails. The
// failure ends the session, unless the session is being destroyed: the target may then close its
// connections before the relay does.
func (s *session) onLaneFailure(queue int) func(error) {
	return func(err error) {
		if s.targetMayEnd.Load() {
			return
		}
		// Cancelling runs other code and must not delay the worker.
		go func() {
			s.log.Debug("queue failed", zap.Int("queue", queue), zap.Error(err))
			s.cancel(fmt.Errorf("queue %d: %w", queue, err))
		}()
	}
}

// targetShutdownTimeout bounds how long a session waits for the requests that a target carries out
// while it shuts down. Such a target normally ends the session itself.
const targetShutdownTimeout = 30 * time.Second

// farewellTimeout bounds how long it then waits for the target to say why it ends the session.
const farewellTimeout = time.Second

// onTargetShutdown ends the session when the target has completed the requests that it has not
// declined. A lane calls it on its worker's thread.
func (s *session) onTargetShutdown() {
	address := s.target.Address
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), targetShutdownTimeout)
		defer cancel()
		s.drain(ctx)
		select {
		case <-s.ctx.Done():
		case <-time.After(farewellTimeout):
			s.cancel(status.Errorf(status.Shutdown, "target %v is shutting down", address))
		}
	}()
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

// lastResponsesTimeout bounds how long a session waits for the responses that a target has sent
// before its farewell.
const lastResponsesTimeout = time.Second

// endTimeout bounds each attempt to release a session before the client is told of the end.
// retryPause is the pause after an attempt that has failed for another reason. answerTimeout is how
// long a device may take over a request of a session that has ended.
var (
	endTimeout    = 10 * time.Second
	retryPause    = time.Second
	answerTimeout = devicecall.Timeout
)

// end ends the session: it takes away the target's access to the client's memory, and only then
// fails the IOs that the target has not completed. If it cannot take away the access, those IOs
// never complete. The client then loses its connection and must not use the memory again, and the
// session is released later.
func (s *session) end(reason error) {
	if status.CodeOf(reason) == status.InUse && !isPreempted(reason) {
		// To the client that code would mean that another owner has its volume.
		reason = status.Errorf(status.ConnectionReset, "%w", reason)
	}
	s.endHolding()
	s.awaitLastResponses()
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
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
			"client's memory and epoch until then", zap.Error(err), zap.NamedError("reason", reason))
		s.channel.late.Go(func() { s.releaseLate(reason) })
	case reason != nil:
		s.channel.forget(s)
		s.log.Warn("session ended", zap.Error(reason),
			zap.Stringer("code", status.CodeOf(reason)))
	default:
		s.channel.forget(s)
		s.log.Info("session ended")
	}
}

// abandon ends a session one of whose requests waits for a device that does not answer. The session
// is released when the device has answered.
func (s *session) abandon(err error) {
	reason := context.Cause(s.ctx)
	s.endHolding()
	s.setUnreleased(err)
	s.client.Close(reason)
	s.connection.Abort()
	if target := s.reached.Load(); target != nil {
		target.Close(reason)
	}
	s.log.Error("session ended, but a device has not answered: keeping the client's memory and "+
		"epoch until then", zap.Error(err), zap.NamedError("reason", reason))
	s.channel.late.Go(func() {
		_ = s.serving.Await(s.channel.lateContext)
		if s.serving.IsUnderWay() {
			s.log.Error("session was never released", zap.Error(err))
			return
		}
		s.end(reason)
	})
}

// releaseLate releases a session that end could not release, as soon as that is possible.
func (s *session) releaseLate(reason error) {
	for ctx := s.channel.lateContext; ; {
		err := s.release(ctx, reason)
		if err == nil {
			s.channel.forget(s)
			s.log.Warn("session is released, late")
			return
		}
		s.setUnreleased(err)
		if !retry.Sleep(ctx, retryPause) {
			s.log.Error("session was never released", zap.Error(err))
			return
		}
	}
}

func (s *session) setUnreleased(reason error) {
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

// release takes the steps of the end in their order, each on all lanes. Then the client's next
// session may begin. If a step fails, release can be called again.
func (s *session) release(ctx context.Context, reason error) error {
	if err := s.revoke(ctx); err != nil {
		return err
	}
	if err := s.failRequests(ctx, reason); err != nil {
		return err
	}
	err := s.closeLanes(ctx)
	if err == nil {
		err = s.releaseMemory(ctx)
	}
	// What the session has used of the limits is free when the client learns that it has ended.
	s.client.Close(reason)
	if err == nil {
		s.channel.clients.Release(s.epoch)
	}
	return err
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

// deregister deregisters the client's memory, unless that has been done.
func (s *session) deregister(ctx context.Context) error {
	if s.registered == nil {
		return nil
	}
	err := s.deregistering.Take(ctx, "deregister", s.registered.Deregister)
	if err != nil {
		return fmt.Errorf("deregister the client's memory: %w", err)
	}
	s.registered = nil
	return nil
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
		s.endHolding()
		err = s.currentHolding().Await(ctx, s.channel.targets.AskForOwner)
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

// hold begins the session's life at the target.
func (s *session) hold() *lease.Holding {
	holding := s.target.Lease.Load().Begin(s.target.Place())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = holding
	return holding
}

func (s *session) currentHolding() *lease.Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holding
}

// endHolding lets nothing of the session reach the volume that the target has not seen yet. Any
// goroutine may call it.
func (s *session) endHolding() { s.currentHolding().End() }

// isAbandoned reports whether the session has ended, or its client had gone by a time. Any
// goroutine may call it.
func (s *session) isAbandoned(by time.Time) bool {
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

// closeLanes closes all lanes with their connections, consumers and producers. Those that it cannot
// close stay.
func (s *session) closeLanes(ctx context.Context) error {
	open, err := datapath.CloseAll(ctx, s.openLanes())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes = open
	return err
}

// releaseMemory releases the client's memory, but not as long as a device may still reach it. All
// lanes must be closed.
func (s *session) releaseMemory(ctx context.Context) error {
	if err := s.deregister(ctx); err != nil {
		return err
	}
	return s.freeing.Take(ctx, "free the session's memory", s.freeMemory)
}

// leastReleaseTimeout is how long a release within a request may take although the time of the
// request is over. The client still waits that long for the answer.
const leastReleaseTimeout = 100 * time.Millisecond

// withinRequest returns a context that bounds a release within a request of the client. The end of
// the session does not end it.
func withinRequest(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := endTimeout
	if due, limited := ctx.Deadline(); limited {
		timeout = min(timeout, max(time.Until(due), leastReleaseTimeout))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// abandonMemory is releaseMemory after a configuration that has failed, perhaps because its time is
// over.
func (s *session) abandonMemory(ctx context.Context) error {
	releasing, cancel := withinRequest(ctx)
	defer cancel()
	return s.releaseMemory(releasing)
}

// freeMemory frees what releaseMemory has deregistered.
func (s *session) freeMemory() error {
	if s.domain != nil {
		if err := s.domain.Close(); err != nil {
			return err
		}
		s.domain = nil
	}
	if s.bounce != nil {
		if err := s.bounce.release(); err != nil {
			return err
		}
		s.bounce = nil
	}
	var err error
	if s.region != nil {
		err = s.region.Close()
		s.region = nil
	}
	s.channel.exported.Add(-s.exported)
	s.exported = 0
	return err
}
