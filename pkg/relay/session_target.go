// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// volumeError returns the error for the client in place of one of the target's.
func (s *session) volumeError(err error) error {
	if errors.Is(err, status.NotFound) {
		s.log.Warn("cannot open the volume", zap.Error(err))
	}
	return targets.ForClient(err)
}

// connectTarget waits for a target that is ready, connects to it, and opens the volume. If it turns
// out to be a stand-by, the volume has just moved: connectTarget waits for the next target. If it
// says when to try again, connectTarget does, within the time that the session waits.
func (s *session) connectTarget(ctx context.Context) error {
	waiting, cancel := s.settings.SessionWait.Context(ctx)
	defer cancel()
	schedule := s.settings.Reconnect.Begin(time.Now())
	for {
		link, changed, err := s.channel.targets.Await(ctx, s.settings.SessionWait)
		if err != nil {
			return err
		}
		if err := s.awaitDial(ctx, link.Address); err != nil {
			return err
		}
		target, err := s.channel.targets.Connect(ctx, link, s.settings.targetSettings(), s.log,
			s.grow)
		if err == nil {
			if err := s.checkLease(target); err != nil {
				target.Close(err)
				return err
			}
			s.use(target)
			return nil
		}
		pause := sessionDialInterval
		switch {
		case errors.Is(err, targets.ErrMoved):
			continue
		case targets.IsPostponed(err):
			pause, changed = schedule.Defer(time.Now(), controlmsg.RetryAfter(err)), nil
			s.log.Info("target asks to try again later", zap.Error(err),
				zap.Duration("next_in", pause))
			if due, limited := waiting.Deadline(); limited && time.Until(due) < pause {
				return err
			}
		case !targets.IsStandBy(err):
			return s.volumeError(err)
		}
		select {
		case <-changed:
		case <-time.After(pause):
		case <-waiting.Done():
			return s.volumeError(err)
		}
	}
}

// use makes a connection the session's, which keeps it to its end.
func (s *session) use(target *targets.Connection) {
	s.target = target
	s.reached.Store(target)
	s.stage.note(volumeOpened)
	go s.watchTarget(target)
}

// checkLease returns an error if the client would not wait for the end of the target's leases: it
// has asked before the relay knew them. Its next session learns of them.
func (s *session) checkLease(target *targets.Connection) error {
	_, native := s.client.(*controlmsg.Responder)
	if !native || target.LeaseLength <= s.longestLease {
		return nil
	}
	return status.Errorf(status.NotConnected, "the leases of target %v last for %v, and the client has "+
		"been told %v: it has to connect again", target.Address, target.LeaseLength, s.longestLease)
}

// How often sessions may make the relay connect to a target: a session a few times in a row, all
// sessions of a channel together as often as each of them connects once. Every connection that ends
// occupies a port for a minute, so that clients could otherwise use up the ports that lead to the
// target.
const (
	sessionDialBurst    = 4
	sessionDialInterval = time.Second
	channelDialInterval = 10 * time.Millisecond
)

// awaitDial waits until the session may connect to the target: its own pace must allow that at
// once, the channel's within the time that the session waits for a target.
func (s *session) awaitDial(ctx context.Context, target netip.AddrPort) error {
	if wait, ok := s.dials.Reserve(time.Now(), sessionDialBurst, 0); !ok {
		return status.Errorf(status.Again,
			"the client has opened the volume too often: the relay connects to target %v for it "+
				"again in %v", target, wait.Round(time.Millisecond))
	}
	most, limited := s.settings.SessionWait.Duration()
	if !limited {
		most = math.MaxInt64
	}
	if due, limited := ctx.Deadline(); limited {
		most = min(most, time.Until(due))
	}
	wait, ok := s.channel.dials.Reserve(time.Now(), s.settings.Limits.MaxSessions, most)
	if !ok {
		return status.Errorf(status.Again,
			"the clients of channel %v make the relay connect to target %v too often: try again "+
				"in %v", s.channel.id, target, wait.Round(time.Millisecond))
	}
	if wait > 0 && !retry.Sleep(ctx, wait) {
		s.channel.dials.Cancel()
		return context.Cause(ctx)
	}
	return nil
}

// watchTarget ends the session when its control connection to the target ends, and when the channel
// moves to another target. From the end of the connection on, the session's release does not count
// on what the target could have said there.
func (s *session) watchTarget(target *targets.Connection) {
	s.log.Debug("watching the target", zap.Stringer("target", target.Address))
	defer s.log.Debug("no longer watching the target", zap.Stringer("target", target.Address))
	defer func() {
		<-target.Requester.Done()
		target.Lease.Load().Disconnect()
	}()
	select {
	case <-target.Requester.Done():
		if s.stage.now().needsTarget() {
			s.cancel(fmt.Errorf("target %v: %w", target.Address, target.Requester.Err()))
		}
	case <-target.Moved:
		s.cancel(status.Errorf(status.NotConnected, "the channel has moved from target %v to another "+
			"one", target.Address))
	case <-s.ctx.Done():
	}
}
