// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ErrReopening is returned by Queue.Submit while the volume has lost its session and is being
// reopened. It matches status.Again. The client wakes the engine that the queue is attached to once
// the queue accepts requests again, or never will.
var ErrReopening = status.Errorf(status.Again, "the volume is being reopened")

// ErrPreempted means that another owner, or an administrator, has made the target end the volume's
// sessions (Config.Preempt). The volume is not reopened: see Config.Reconnect. It matches
// status.InUse.
var ErrPreempted = status.Errorf(status.InUse, "the volume has been given to another owner")

// sessionKeeper opens the sessions of a volume, one after another, and moves the volume through its
// life.
type sessionKeeper struct {
	terms      *terms
	life       *life
	memories   *memories
	background *background
	// handOver is called with a session that has become the current one.
	handOver func(next *session)
	// onFailure is called when there will be no further session.
	onFailure func()
}

// open opens the first session on a connection.
func (k *sessionKeeper) open(
	ctx context.Context, deadline time.Time, connection comch.Connection,
) error {
	first, err := openSession(ctx, deadline, k.terms, k.memories, connection, 1)
	if err != nil {
		return err
	}
	if least := first.memory.untilHarmless(); k.terms.config.ReleaseTimeout < least {
		k.terms.logger().Info("buffers stay in the relay's hands for longer than configured if it "+
			"is silent: its targets' leases last longer",
			zap.Duration("release_timeout", k.terms.config.ReleaseTimeout),
			zap.Duration("at_least", least))
	}
	k.switchTo(first)
	return nil
}

// keepOpen watches one session after another until there are no more.
func (k *sessionKeeper) keepOpen() {
	for {
		current := k.life.session.Load()
		opened := time.Now()
		current.awaitEnd(k.background.ctx)
		if k.background.ctx.Err() != nil {
			return
		}
		next, err := k.reopen(current, opened)
		if k.background.ctx.Err() != nil && next == nil {
			return
		}
		if err != nil {
			k.life.fail(err)
			k.onFailure()
			return
		}
		k.switchTo(next)
	}
}

// switchTo makes next the volume's session. Each queue switches on its own thread.
func (k *sessionKeeper) switchTo(next *session) {
	former := k.life.session.Swap(next)
	if former != nil {
		k.memories.forgetChanges(&former.memory)
	}
	k.handOver(next)
	if former != nil {
		k.terms.logger().Info("volume reopened", zap.Duration("outage", k.life.outage()),
			zap.Uint64("session", next.id.number))
	}
	k.life.serve()
}

// reopen ends the lost session for good and, if there is a policy, opens a new one in its place.
func (k *sessionKeeper) reopen(lost *session, opened time.Time) (*session, error) {
	reason := lost.endError()
	preempted := lost.isPreempted()
	if preempted {
		reason = fmt.Errorf("%w: %w", ErrPreempted, reason)
	}
	again := k.life.canReconnect && !lost.isProtocolBroken() && !preempted
	if again {
		k.life.lose()
		k.terms.logger().Warn("session lost", zap.Error(reason))
	}
	lost.close(reason)
	k.memories.settle(&lost.memory, lost.farewell() != nil)
	if !again {
		return nil, reason
	}
	policy := *k.terms.config.Reconnect
	schedule := policy.Begin(time.Now())
	// The first attempt follows at once, unless the session was lost right after it opened.
	if time.Since(opened) < policy.FirstPause && !k.background.sleep(policy.FirstPause) {
		return nil, reason
	}
	for failure := reason; ; {
		pause, err := schedule.Next(time.Now())
		if err != nil {
			return nil, fmt.Errorf("volume %q was lost (%w) and not reopened, %w; last error: %w",
				k.terms.info.Name, reason, err, failure)
		}
		if schedule.Attempt() > 1 {
			k.terms.logger().Warn("volume was not reopened", zap.Error(failure),
				zap.Stringer("next", schedule), zap.Duration("next_in", pause))
		}
		if !k.background.sleep(pause) {
			return nil, reason
		}
		next, err := k.attempt(lost.id.number + 1)
		if err == nil {
			return next, nil
		}
		schedule.Postpone(controlmsg.RetryAfter(err))
		if failure = err; isPermanent(failure) {
			return nil, fmt.Errorf("volume %q was lost (%w) and cannot be reopened: %w",
				k.terms.info.Name, reason, failure)
		}
	}
}

// attempt tries once to open a session.
func (k *sessionKeeper) attempt(number uint64) (*session, error) {
	if err := k.memories.leaveQuarantine(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(k.terms.config.ControlTimeout)
	ctx, cancel := context.WithDeadline(k.background.ctx, deadline)
	defer cancel()
	connection, err := connect(ctx, &k.terms.config)
	if err != nil {
		return nil, err
	}
	return openSession(k.background.ctx, deadline, k.terms, k.memories, connection, number)
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

// connectWithRetry connects, waiting until a relay offers the channel.
func connectWithRetry(ctx context.Context, config *Config) (comch.Connection, error) {
	var missing error
	for schedule := connecting.Begin(time.Now()); schedule.Wait(ctx) == nil; {
		connection, err := connect(ctx, config)
		if missing != nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, missing // the time was up within an attempt
		}
		if err == nil || !errors.Is(err, status.NotFound) {
			return connection, err
		}
		missing = err
	}
	return nil, missing
}

// connecting says when Open connects again while no relay offers the channel: without end.
var connecting = retry.Policy{FirstPause: 50 * time.Millisecond,
	LongestPause: 50 * time.Millisecond, Random: func() float64 { return 0 }}

func connect(ctx context.Context, config *Config) (comch.Connection, error) {
	connection, err := config.Provider.Connect(ctx,
		comch.ClientConfig{Device: config.Device, Name: config.ChannelName})
	if err != nil {
		return nil, fmt.Errorf("connect to channel %q on device %q: %w", config.ChannelName,
			config.Device, err)
	}
	return connection, nil
}
