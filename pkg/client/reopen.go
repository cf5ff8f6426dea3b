package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// What Config.Reconnect means where it does not say so itself.
const (
	DefaultReconnectTotal        = time.Minute
	DefaultReconnectLongestPause = 2 * time.Second
)

// ErrReopening is why a queue takes no request while its volume has lost its
// session and is being reopened. It matches status.Again. The engine that the
// queue is attached to is woken when it takes requests again, or never will.
var ErrReopening = status.Errorf(status.Again, "the volume is being reopened")

// ErrAnotherVolume is why a volume cannot be reopened whose place another has
// taken. It matches status.NotFound.
var ErrAnotherVolume = status.Errorf(status.NotFound, "another volume is in its place")

// A volume is in one of three states, and keepOpen alone moves it:
//
//	serving    the session works
//	reopening  the session was lost; queues finish what was outstanding, once
//	           each, and take no requests
//	ended      Done is closed, Err says why
//
//	from       to         when
//	serving    reopening  the session ends and there is a policy
//	serving    ended      the session ends and there is none, or the relay has
//	                      broken the protocol, or the volume is closed
//	reopening  serving    an attempt succeeds: each queue goes over to the new
//	                      session when all it had outstanding has been failed
//	reopening  ended      the policy is exhausted, or an attempt fails for a
//	                      reason that stays, or the volume is closed

// keepOpen follows the sessions of the volume until there are no more.
func (v *Volume) keepOpen() {
	defer close(v.done)
	for {
		current := v.session.Load()
		opened := time.Now()
		current.awaitEnd(v.ctx)
		if v.ctx.Err() != nil {
			return
		}
		next, err := v.reopen(current, opened)
		if v.ctx.Err() != nil && next == nil {
			return
		}
		if err != nil {
			v.fail(err)
			return
		}
		v.switchTo(next)
	}
}

// reopen makes the session after the one that was lost.
func (v *Volume) reopen(lost *session, opened time.Time) (*session, error) {
	reason := lost.endError()
	if !v.reconnects() || lost.brokeProtocol() {
		return nil, reason
	}
	v.beginOutage()
	lost.close(reason)
	v.config.Logger.Warn("session lost", zap.String("volume", v.info.Name), zap.Error(reason))
	policy := *v.config.Reconnect
	schedule := policy.Begin(time.Now())
	if time.Since(opened) < policy.FirstPause && !v.sleep(policy.FirstPause) {
		return nil, reason // it was lost at once: the first attempt must not follow at once as well
	}
	for failure := reason; ; {
		pause, err := schedule.Next(time.Now())
		if err != nil {
			return nil, fmt.Errorf("volume %q was lost (%w) and not reopened, %w; at last: %w", v.info.Name, reason, err, failure)
		}
		if schedule.Attempt() > 1 {
			v.config.Logger.Warn("volume was not reopened", zap.String("volume", v.info.Name), zap.Error(failure),
				zap.Stringer("next", schedule), zap.Duration("next_in", pause))
		}
		if !v.sleep(pause) {
			return nil, reason
		}
		next, err := v.attempt(lost.number + 1)
		if err == nil {
			return next, nil
		}
		if failure = err; isPermanent(failure) {
			return nil, fmt.Errorf("volume %q was lost (%w) and cannot be reopened: %w", v.info.Name, reason, failure)
		}
	}
}

// sleep waits; false means that the volume is being closed.
func (v *Volume) sleep(pause time.Duration) bool {
	select {
	case <-v.ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// attempt tries once to open a session.
func (v *Volume) attempt(number uint64) (*session, error) {
	ctx, cancel := context.WithTimeout(v.ctx, v.config.ControlTimeout)
	defer cancel()
	connection, err := connect(ctx, &v.config)
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", v.config.ChannelName, v.config.Device, err)
	}
	return v.openSession(ctx, connection, number)
}

// isPermanent reports whether an attempt failed for a reason that the next will
// find as well.
func isPermanent(err error) bool {
	if errors.Is(err, ErrAnotherVolume) {
		return true
	}
	switch status.CodeOf(err) {
	case status.NotPermitted, status.NotSupported, status.InvalidValue, status.TooBig,
		status.UnsupportedVersion, status.Authentication, status.BadConfig:
		return true
	}
	return false
}

// checkSameVolume makes sure that what a new session offers is the volume that was
// opened.
func (v *Volume) checkSameVolume(s *session, reply *controlmsg.OpenVolumeReply) error {
	switch {
	case reply.UUID != v.info.UUID:
		return fmt.Errorf("%w: its UUID is %x, that of the volume was %x (what is in memory is lost when its target ends)",
			ErrAnotherVolume, reply.UUID, v.info.UUID)
	case reply.BlockSize != v.info.BlockSize || reply.Size < v.info.Size:
		return fmt.Errorf("%w: it has %d bytes in blocks of %d, the volume had %d in blocks of %d",
			ErrAnotherVolume, reply.Size, reply.BlockSize, v.info.Size, v.info.BlockSize)
	}
	s.info.Size, s.info.Queues, s.info.Depth, s.info.BufferSize = v.info.Size, v.info.Queues, v.info.Depth, v.info.BufferSize
	return v.checkLimits(reply)
}

// switchTo makes next the session of the volume. The queues follow by
// themselves.
func (v *Volume) switchTo(next *session) {
	v.session.Store(next)
	for i, q := range v.queues {
		q.setNext(next.pairs[i])
	}
	outage := v.endOutage()
	v.config.Logger.Info("volume reopened", zap.String("volume", v.info.Name), zap.Duration("outage", outage),
		zap.Uint64("session", next.number))
	v.setFailure(nil)
}

// fail is for a volume without any further session.
func (v *Volume) fail(reason error) {
	v.setFailure(reason)
	for _, q := range v.queues {
		q.wake()
	}
}

// setFailure wakes everybody who waits for a session.
func (v *Volume) setFailure(failure error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failure = failure
	close(v.changed)
	v.changed = make(chan struct{})
}

// awaitSession waits for a session after the one with the number given.
func (v *Volume) awaitSession(number uint64) error {
	for {
		v.mu.Lock()
		failure, changed := v.failure, v.changed
		v.mu.Unlock()
		switch {
		case v.ctx.Err() != nil:
			return status.Errorf(status.Shutdown, "the volume is being closed")
		case failure != nil:
			return failure
		case v.session.Load().number > number:
			return nil
		}
		select {
		case <-changed:
		case <-v.ctx.Done():
		}
	}
}
