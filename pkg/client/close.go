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
// reported, and the volume is released all the same. Close does not flush.
// After Close or Abort it does nothing.
func (v *Volume) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.config.ControlTimeout)
	defer cancel()
	if v.released.Swap(true) {
		return nil
	}
	v.stopSynchronous()
	reason := v.Err()
	if reason == nil {
		reason = v.stop(ctx)
	}
	if reason != nil {
		v.abandon(reason)
		return fmt.Errorf("close volume %q: %w", v.info.Name, reason)
	}
	v.requester.Close(nil) // and with it the connection
	return v.release()
}

// stop takes the session down in the order that Comch demands.
func (v *Volume) stop(ctx context.Context) error {
	for i, queue := range v.queues {
		if err := queue.stop(ctx); err != nil {
			return fmt.Errorf("stop queue %d: %w", i, err)
		}
	}
	if _, err := v.requester.Call(ctx, &controlmsg.Stop{}); err != nil {
		return err
	}
	if err := v.closeQueues(); err != nil {
		return err
	}
	_, err := v.requester.Call(ctx, &controlmsg.DestroyObjects{})
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

func (q *Queue) close() error {
	err := q.consumer.Close()
	if q.producer != nil {
		err = errors.Join(err, q.producer.Close())
	}
	return err
}

// Abort ends the session at once, without stopping the queues: requests that
// are outstanding may or may not have been carried out. No queue may be in
// use.
func (v *Volume) Abort() {
	if v.released.Swap(true) {
		return
	}
	v.stopSynchronous()
	v.abandon(status.Errorf(status.ConnectionAborted, "the client has given the volume up"))
}

// abandon ends the session at once and tells the relay why, if it listens.
func (v *Volume) abandon(reason error) {
	v.requester.Close(reason)
	v.connection.Abort()
	if err := errors.Join(v.closeQueues(), v.release()); err != nil {
		v.config.Logger.Sugar().Warnf("release volume %q: %v", v.info.Name, err)
	}
}

func (v *Volume) release() error {
	close(v.closing)
	v.clockEnd.Wait()
	if v.region == nil {
		return nil
	}
	return v.region.Close()
}
