package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The defaults that Config.Reconnect applies where its policy sets no limit.
const (
	DefaultReconnectTotal        = time.Minute
	DefaultReconnectLongestPause = 2 * time.Second
)

// ErrReopening is returned by Queue.Submit while the volume has lost its session and is being
// reopened. It matches status.Again. The client wakes the engine that the queue is attached to once
// the queue accepts requests again, or never will.
var ErrReopening = status.Errorf(status.Again, "the volume is being reopened")

// ErrAnotherVolume means that a volume cannot be reopened because the relay now offers a different
// one. It matches status.NotFound.
var ErrAnotherVolume = status.Errorf(status.NotFound, "the relay offers a different volume")

// ErrPreempted means that another owner, or an administrator, has made the target end the volume's
// sessions (Config.Preempt). The volume is not reopened: see Config.Reconnect. It matches
// status.InUse.
var ErrPreempted = status.Errorf(status.InUse, "the volume has been given to another owner")

// A volume is in one of three states. Only keepOpen changes the state:
//
//	serving    the session works
//	reopening  the session was lost; queues report each outstanding request once,
//	           as failed, and accept no new ones
//	ended      Done is closed and Err returns the reason
//
//	from       to         when
//	serving    reopening  the session ends and there is a policy
//	serving    ended      the session ends and there is no policy, the relay violated
//	                      the protocol, another owner has preempted this one, or the
//	                      volume is closed
//	reopening  serving    an attempt succeeds; each queue switches to the new session
//	                      after it has reported everything outstanding
//	reopening  ended      the policy is exhausted, an attempt fails permanently, or the
//	                      volume is closed

// keepOpen watches one session after another until there are no more.
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

// reopen ends the lost session for good and, if there is a policy, opens a new one in its place.
func (v *Volume) reopen(lost *session, opened time.Time) (*session, error) {
	reason := lost.endError()
	preempted := lost.isPreempted()
	if preempted {
		reason = fmt.Errorf("%w: %w", ErrPreempted, reason)
	}
	again := v.canReconnect() && !lost.isProtocolBroken() && !preempted
	if again {
		v.beginOutage()
		v.config.Logger.Warn("session lost", zap.String("volume", v.info.Name), zap.Error(reason))
	}
	lost.close(reason)
	v.settle(lost)
	if !again {
		return nil, reason
	}
	policy := *v.config.Reconnect
	schedule := policy.Begin(time.Now())
	// The first attempt follows at once, unless the session was lost right after it opened.
	if time.Since(opened) < policy.FirstPause && !v.sleep(policy.FirstPause) {
		return nil, reason
	}
	for failure := reason; ; {
		pause, err := schedule.Next(time.Now())
		if err != nil {
			return nil, fmt.Errorf("volume %q was lost (%w) and not reopened, %w; last error: %w",
				v.info.Name, reason, err, failure)
		}
		if schedule.Attempt() > 1 {
			v.config.Logger.Warn("volume was not reopened", zap.String("volume", v.info.Name),
				zap.Error(failure),
				zap.Stringer("next", schedule), zap.Duration("next_in", pause))
		}
		if !v.sleep(pause) {
			return nil, reason
		}
		next, err := v.attempt(lost.number + 1)
		if err == nil {
			return next, nil
		}
		schedule.Postpone(controlmsg.RetryAfter(err))
		if failure = err; isPermanent(failure) {
			return nil, fmt.Errorf("volume %q was lost (%w) and cannot be reopened: %w",
				v.info.Name, reason, failure)
		}
	}
}

// Reopen ends the current session as if it had been lost for this reason, so that Config.Reconnect
// replaces it. Each request that is outstanding fails, and has no effect any more once the next
// session has begun. While the volume is being reopened, Reopen does nothing. It fails without
// Config.Reconnect.
func (v *Volume) Reopen(reason error) error {
	if !v.canReconnect() {
		return status.Errorf(status.NotSupported,
			"volume %q is not reopened after the end of a session", v.info.Name)
	}
	v.session.Load().fail(reason)
	return nil
}

// sleep waits for the pause. It returns false if the volume is closed meanwhile.
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
	if err := v.leaveQuarantine(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(v.config.ControlTimeout)
	ctx, cancel := context.WithDeadline(v.ctx, deadline)
	defer cancel()
	connection, err := connect(ctx, &v.config)
	if err != nil {
		return nil, err
	}
	return v.openSession(v.ctx, deadline, connection, number)
}

// isPermanent reports whether another attempt would fail for the same reason.
func isPermanent(err error) bool {
	if errors.Is(err, ErrAnotherVolume) {
		return true
	}
	// A relay that starts creates its directories before it lets other users into them.
	if errors.Is(err, os.ErrPermission) {
		return false
	}
	switch status.CodeOf(err) {
	case status.NotPermitted, status.NotSupported, status.InvalidValue, status.TooBig,
		status.UnsupportedVersion, status.Authentication, status.BadConfig:
		return true
	}
	return false
}

// checkSameVolume returns an error unless a new session offers the volume that Open opened.
func (v *Volume) checkSameVolume(s *session, reply *controlmsg.OpenVolumeReply) error {
	switch {
	case reply.UUID != v.info.UUID:
		return fmt.Errorf("%w: its UUID is %x, expected %x "+
			"(a volume in memory is lost when its target restarts)",
			ErrAnotherVolume, reply.UUID, v.info.UUID)
	case reply.BlockSize != v.info.BlockSize || reply.Size < v.size.Load():
		return fmt.Errorf("%w: it has %d bytes in blocks of %d, expected %d in blocks of %d",
			ErrAnotherVolume, reply.Size, reply.BlockSize, v.size.Load(), v.info.BlockSize)
	}
	v.grow(reply.Size)
	s.info.Queues = v.info.Queues
	s.info.Depth, s.info.BufferSize = v.info.Depth, v.info.BufferSize
	return v.checkLimits(reply)
}

// switchTo makes next the volume's session. Each queue switches on its own thread.
func (v *Volume) switchTo(next *session) {
	v.forgetChanges(v.session.Swap(next))
	for i, q := range v.queues {
		q.setNext(next.pairs[i])
	}
	if s := v.sync.Load(); s != nil {
		s.switchMemory()
	}
	outage := v.endOutage()
	v.config.Logger.Info("volume reopened", zap.String("volume", v.info.Name),
		zap.Duration("outage", outage),
		zap.Uint64("session", next.number))
	v.setFailure(nil)
}

// fail ends the volume: there will be no further session.
func (v *Volume) fail(reason error) {
	v.setFailure(reason)
	for _, q := range v.queues {
		q.wake()
	}
}

// setFailure sets the reason why there will be no further session, or nil if there is one, and
// wakes all callers of awaitSession.
func (v *Volume) setFailure(failure error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failure = failure
	close(v.changed)
	v.changed = make(chan struct{})
}

// awaitSession waits for a session later than the given number.
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
