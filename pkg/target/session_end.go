// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// watchRelay ends the session when the connection to the relay ends, even while one of its requests
// is in progress.
func (s *session) watchRelay() {
	s.log.Debug("watching the relay")
	defer s.log.Debug("no longer watching the relay")
	select {
	case <-s.relay.Done():
		s.cancel(fmt.Errorf("relay: %w", s.relay.Err()))
	case <-s.ctx.Done():
	}
}

// watchOwnership ends the session when this target loses the volume. Nothing is drained: what is in
// flight fails.
func (s *session) watchOwnership(o *volume.Ownership, changed <-chan struct{}) {
	s.log.Debug("watching whether this target owns the volume")
	defer s.log.Debug("no longer watching whether this target owns the volume")
	select {
	case <-changed:
		standBy, _ := o.State()
		if standBy == nil { // lost, and owned again
			standBy = status.Errorf(status.NoLock, "another target has owned the volume meanwhile")
		}
		s.cancel(standBy)
	case <-s.ctx.Done():
	}
}

// onLaneFailure returns the function that a lane calls on its worker's thread when it fails. After
// Stop it ignores failures, because the relay then closes its connections.
func (s *session) onLaneFailure(queue int) func(error) {
	return func(err error) {
		// Cancelling runs other code and must not delay the worker.
		go s.endForLane(queue, err)
	}
}

func (s *session) endForLane(queue int, err error) {
	s.log.Debug("queue failed", zap.Int("queue", queue), zap.Error(err))
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if !stopped {
		s.cancel(fmt.Errorf("queue %d: %w", queue, err))
	}
}

// drain rejects new requests and waits for those in flight, until ctx or the session ends. It
// returns how many were still in flight then.
func (s *session) drain(ctx context.Context) (unfinished int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	return datapath.DrainAll(ctx, s.openLanes())
}

// drainAndEnd drains the session until ctx ends, and ends it with status.Shutdown.
func (s *session) drainAndEnd(ctx context.Context, reason string) {
	s.log.Debug("draining the session")
	defer s.log.Debug("no longer draining the session")
	if n := s.drain(ctx); n > 0 {
		reason = fmt.Sprintf("%s: %d requests have not completed", reason, n)
	}
	s.cancel(status.Errorf(status.Shutdown, "%s", reason))
}

// closePause is how long the end of the RDMA connections waits for the relay to close, so that it
// learns of the reason first. Others wait for the session's release, so it is short.
const closePause = 100 * time.Millisecond

// end sends the relay the reason, before closing its RDMA connections, and releases the session.
// Others who want the volume wait for the release, so it does not wait for the relay to close.
func (s *session) end(reason error) {
	hasLanes := len(s.openLanes()) > 0
	if s.opening != nil {
		s.opening.Stop()
	}
	s.lease.End()
	s.relay.Leave(reason)
	closed := make(chan struct{})
	go s.closeRelay(reason, closed)
	select {
	case <-closed:
	case <-time.After(closePause):
	}
	if s.tenancy != nil {
		s.tenancy.Disconnect()
	}
	if err := s.release(); err != nil {
		s.log.Error("session was not released completely: it uses memory until the target ends",
			zap.Error(err))
	}
	<-closed
	// A relay that leaves because it was rejected has a line in the log already, unless that was no
	// failure.
	if reason == nil || !s.admitted || controlmsg.HasLeftAfterRejection(reason) {
		s.log.Debug("session ended", zap.Error(reason))
		return
	}
	const message = "session ended"
	if !hasLanes { // the relay has not got to IO, and may try again for ever
		s.target.rejections.Log(s.log, zap.InfoLevel, message, s.peer, message, reason)
		return
	}
	s.log.Info(message, zap.Error(reason))
}

// closeRelay closes the connection to the relay, and then closed.
func (s *session) closeRelay(reason error, closed chan<- struct{}) {
	s.log.Debug("closing the connection to the relay")
	defer s.log.Debug("no longer closing the connection to the relay")
	defer close(closed)
	s.relay.Close(reason)
}

// abandon ends a session one of whose requests waits for a device that does not answer. The session
// is released when the device has answered, which Run does not wait for.
func (s *session) abandon(err error) {
	reason := context.Cause(s.ctx)
	s.relay.Leave(reason)
	s.log.Error("session ended, but a device has not answered: keeping what the session uses until "+
		"then", zap.Error(err), zap.NamedError("reason", reason))
	go s.endLate(reason)
}

// endLate ends an abandoned session when the device has answered.
func (s *session) endLate(reason error) {
	s.log.Debug("waiting for the device")
	defer s.log.Debug("no longer waiting for the device")
	_ = s.serving.Await(context.Background())
	s.end(reason)
	s.target.admission.release(s)
}

// release closes the lanes, waits for their volume IO, and frees everything. Later calls return the
// result of the first.
func (s *session) release() error {
	s.releaseOnce.Do(func() {
		s.target.tokens.forget(s)
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.accepted.Wait()
		ctx, cancel := s.withinRelease()
		defer cancel()
		if s.releaseErr = s.detach(ctx); s.releaseErr != nil {
			s.target.running.Go(s.releaseLate)
			return
		}
		s.releaseVolume()
		s.releaseErr = s.releaseMemory()
	})
	return s.releaseErr
}

// hasEnded reports whether the session has ended or is being released.
func (s *session) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || s.ctx.Err() != nil
}

// withinRelease returns a context that bounds a release.
func (s *session) withinRelease() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.target.releaseTimeout)
}

// detach ends what the lanes do for the relay. It fails for lanes with volume IO in flight, and for
// those with a worker that is stuck.
func (s *session) detach(ctx context.Context) error {
	return datapath.OnAll(s.openLanes(),
		func(lane *datapath.TargetLane) error { return lane.Detach(ctx) })
}

// releaseLate finishes the release when the volume IO that has exceeded the release timeout has
// ended. Only then can the client's next session begin, and only then may the workers, the device,
// and the volume be closed, so Run waits for it. A lane whose worker was stuck is revoked here.
func (s *session) releaseLate() {
	s.log.Debug("releasing the session late")
	defer s.log.Debug("no longer releasing the session")
	if err := s.detach(context.Background()); err != nil { // the worker has stopped
		s.log.Error("session was never released: it uses memory, and its volume, until the target "+
			"ends", zap.Error(err))
		return
	}
	s.releaseVolume()
	if err := s.releaseMemory(); err != nil {
		s.log.Error("session was not released completely, even late: it uses memory until the "+
			"target ends", zap.Error(err))
	}
}

// releaseVolume lets others open the volume, and the client's next session begin. The lanes must be
// closed.
func (s *session) releaseVolume() {
	s.target.offers.leave(s)
	s.target.clients.Release(s.epoch)
	s.lease.Close()
}

// releaseMemory frees what the detached lanes used. What a device does not let go of in time counts
// until it does.
func (s *session) releaseMemory() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.target.answerTimeout)
	defer cancel()
	return s.freeing.Take(ctx, "free the session's memory", s.free)
}

func (s *session) free() error {
	_, err := datapath.CloseAll(context.Background(), s.openLanes())
	s.mu.Lock()
	s.lanes = nil
	s.mu.Unlock()
	errs := []error{err}
	if s.volumeMemory != nil {
		errs = append(errs, s.volumeMemory.Deregister())
		s.volumeMemory = nil
	}
	if s.imported != nil {
		errs = append(errs, s.imported.Close())
		s.imported = nil
	}
	if s.domain != nil {
		errs = append(errs, s.domain.Close())
		s.domain = nil
	}
	s.target.memory.Add(-s.memory)
	s.memory = 0
	return errors.Join(errs...)
}
