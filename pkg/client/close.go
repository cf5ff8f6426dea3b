package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Close stops every queue, waits until nothing is under way any more, ends
// the session and releases the data memory. No queue may be in use. It is
// bounded by ControlTimeout and ctx; what could not be done in order is
// reported, and the volume is released all the same. Close does not flush,
// but fails with ErrWritesLost if no flush has told of lost writes before.
// After Close or Abort it does nothing.
func (v *Volume) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.config.ControlTimeout)
	defer cancel()
	if v.released.Swap(true) {
		return nil
	}
	v.endBackground()
	reason := v.endReason()
	if reason == nil {
		reason = v.stop(ctx)
	}
	if reason != nil {
		v.abandon(reason)
		return fmt.Errorf("close volume %q: %w", v.info.Name, reason)
	}
	v.session.Load().leave(nil)
	if err := errors.Join(v.release(), v.writes.unreported()); err != nil {
		return fmt.Errorf("close volume %q: %w", v.info.Name, err)
	}
	return nil
}

// endBackground ends everything that goes on by itself. No session follows
// the current one any more.
func (v *Volume) endBackground() {
	v.cancel()
	v.stopSynchronous()
	v.background.Wait()
}

// endReason is why there is no session, nil if there is one.
func (v *Volume) endReason() error {
	v.mu.Lock()
	failure := v.failure
	v.mu.Unlock()
	if failure != nil {
		return failure
	}
	return v.session.Load().Err()
}

// stop takes the session down in the order that Comch demands.
func (v *Volume) stop(ctx context.Context) error {
	for i, queue := range v.queues {
		if err := queue.stop(ctx); err != nil {
			return fmt.Errorf("stop queue %d: %w", i, err)
		}
	}
	requester := v.session.Load().requester
	if _, err := requester.Call(ctx, &controlmsg.Stop{}); err != nil {
		return err
	}
	if err := v.closeQueues(); err != nil {
		return err
	}
	_, err := requester.Call(ctx, &controlmsg.DestroyObjects{})
	return err
}

func (v *Volume) closeQueues() error {
	var errs []error
	for i, queue := range v.queues {
		if err := queue.close(); err != nil {
			errs = append(errs, fmt.Errorf("close queue %d: %w", i, err))
		}
	}
	v.queues = v.queues[:0]
	return errors.Join(errs...)
}

// Abort ends the session at once, without stopping the queues: requests that
// are outstanding may or may not have been carried out. No queue may be in
// use.
func (v *Volume) Abort() {
	if v.released.Swap(true) {
		return
	}
	v.endBackground()
	v.abandon(status.Errorf(status.ConnectionAborted, "the client has given the volume up"))
}

// abandon ends the session at once and tells the relay why, if it listens.
func (v *Volume) abandon(reason error) {
	v.session.Load().leave(reason)
	if err := errors.Join(v.closeQueues(), v.release()); err != nil {
		v.config.Logger.Sugar().Warnf("release volume %q: %v", v.info.Name, err)
	}
}

// release gives back what is left when there is no session any more.
func (v *Volume) release() error {
	v.cancel()
	region := v.region
	if region == nil {
		return nil
	}
	v.region = nil
	return region.Close()
}
