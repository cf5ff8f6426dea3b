package target

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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

// drainPoll is how often a drain looks whether requests are still in flight.
const drainPoll = 2 * time.Millisecond

// drain refuses new requests and waits for those in flight.
func (s *session) drain(ctx context.Context) {
	lanes := s.currentLanes()
	for _, lane := range lanes {
		if err := lane.Drain(ctx); err != nil {
			return
		}
	}
	for _, lane := range lanes {
		for lane.InFlight() > 0 && ctx.Err() == nil && s.ctx.Err() == nil {
			time.Sleep(drainPoll)
		}
	}
}

// releaseTimeout bounds the release of a session. Volume IO may take long on
// a sick disk, and nothing of the session may be freed under it.
const releaseTimeout = time.Minute

// end tells the relay why the session ends, first of all so that it learns
// the reason before its connections break, and releases it.
func (s *session) end(reason error) {
	s.relay.Close(reason)
	if err := s.release(); err != nil {
		s.log.Error("session was not released completely", zap.Error(err))
	}
	if reason == nil {
		s.log.Debug("session ended")
		return
	}
	s.log.Info("session ended", zap.Error(reason))
}

// release closes the lanes, waits for their volume IO, and frees everything.
// Called again it returns what it did the first time.
func (s *session) release() error {
	s.releaseOnce.Do(func() { s.releaseErr = s.releaseAll() })
	return s.releaseErr
}

func (s *session) releaseAll() error {
	s.target.tokens.forget(s)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.accepted.Wait()
	stuck, err := s.closeLanes()
	if len(stuck) > 0 {
		go s.releaseLate(stuck)
		return err
	}
	s.target.clients.leave(s.config.ClientInstance, s)
	return errors.Join(err, s.releaseMemory())
}

// closeLanes closes all lanes and returns those that could not be: volume IO
// is still under way for them.
func (s *session) closeLanes() (stuck []*datapath.TargetLane, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	s.mu.Lock()
	lanes := s.lanes
	s.lanes = nil
	s.mu.Unlock()
	var errs []error
	for queue, lane := range lanes {
		if err := lane.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", queue, err))
			stuck = append(stuck, lane)
		}
	}
	return stuck, errors.Join(errs...)
}

// releaseLate finishes the release when volume IO that has outlived it ends
// after all. Only then the client's next session may begin.
func (s *session) releaseLate(stuck []*datapath.TargetLane) {
	var errs []error
	for _, lane := range stuck {
		<-lane.Quiesced()
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		errs = append(errs, lane.Close(ctx))
		cancel()
	}
	s.target.clients.leave(s.config.ClientInstance, s)
	if err := errors.Join(append(errs, s.releaseMemory())...); err != nil {
		s.log.Error("late release of a session", zap.Error(err))
	}
}

func (s *session) releaseMemory() error {
	var errs []error
	if s.volumeMemory != nil {
		errs = append(errs, s.volumeMemory.Deregister())
		s.volumeMemory = nil
	}
	if s.domain != nil {
		errs = append(errs, s.domain.Close())
		s.domain = nil
	}
	s.target.staging.Add(-s.staging)
	s.staging = 0
	return errors.Join(errs...)
}
