// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// firstDelay spreads the first attempts of all relays that have lost a target at the same time. It
// is shorter than what a client notices beside the loss itself.
const firstDelay = 50 * time.Millisecond

// Link keeps a control connection to a target in addition to those of the sessions, so that the
// relay knows before any client asks whether it can serve new sessions.
type Link struct {
	linkConfig
	Address netip.AddrPort
	log     *zap.Logger
	wanted  chan struct{} // has an element when a session waits for a target
	changed chan struct{} // has an element when the channel's settings have changed
	asked   chan struct{} // has an element when sessions wait to know who owns the volume

	checking devicecall.Step // of the device that leads to the target
	probing  devicecall.Step // of the data path to the target

	mu     sync.Mutex // guards what follows
	status LinkStatus
	moved  chan struct{} // closed when the channel moves to another target
}

// linkConfig is what a link gets from the set that it belongs to.
type linkConfig struct {
	*Config
	settings *atomic.Pointer[Settings]
	// onChange is called when the state has changed, onTakeOver when the target was a stand-by and
	// has become ready.
	onChange   func()
	onTakeOver func()
	// accept returns an error unless the connection's target can serve the channel in place of the
	// others.
	accept func(*Connection) error
	// canIgnore reports whether the target is not missed.
	canIgnore func() bool
}

func newLink(config linkConfig, address netip.AddrPort) *Link {
	return &Link{
		linkConfig: config, Address: address,
		log:    config.Logger.With(zap.Stringer("target", address)),
		wanted: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		asked:  make(chan struct{}, 1),
		status: LinkStatus{State: LinkConnecting, Since: time.Now().UTC()},
		moved:  make(chan struct{}),
	}
}

func (l *Link) snapshot() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// untilMove returns a Go channel that is closed when the relay's channel moves to another target.
func (l *Link) untilMove() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// announceMove lets the sessions at the target know that the relay's channel has moved: they end.
func (l *Link) announceMove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.moved)
	l.moved = make(chan struct{})
}

// setState changes the status, and with it perhaps the choice of a target.
func (l *Link) setState(state LinkState, change func(*LinkStatus)) {
	l.mu.Lock()
	s := &l.status
	s.State, s.Since, s.NextAttempt = state, time.Now().UTC(), nil
	change(s)
	l.mu.Unlock()
	l.onChange()
}

// count changes only counters of the status, for which no session waits.
func (l *Link) count(change func(*LinkStatus)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.status)
}

// signal adds an element to a channel with room for one, unless it is full.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// run keeps the target connected until ctx ends.
func (l *Link) run(ctx context.Context) {
	l.log.Debug("keeping a connection to the target")
	defer l.log.Debug("no longer keeping a connection to the target")
	defer l.Outages.ended(l)
	for ctx.Err() == nil {
		if l.settings.Load().Dialect == dialects.None {
			l.keepConnected(ctx)
		} else {
			l.assumeReady(ctx)
		}
	}
}

// assumeReady leaves the target to the sessions, until the settings change or ctx ends: targets of
// the DOCA applications accept one connection in their life.
func (l *Link) assumeReady(ctx context.Context) {
	l.setState(LinkReady, func(s *LinkStatus) { s.LastError = nil })
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

// keepConnected connects to the target, and again after each loss. It returns if ctx ends, and when
// changed settings are a reason to start over.
//
// A connection that lasts shorter than the pause that a failed attempt would have caused counts as
// one: it continues the schedule. Otherwise a target that disconnects at once would be connected to
// without a pause, forever.
func (l *Link) keepConnected(ctx context.Context) {
	var schedule *retry.Schedule // nil once a connection has lasted
	target, err := l.connect(ctx)
	for {
		settings := l.settings.Load()
		if target == nil {
			if schedule == nil {
				policy := settings.Reconnect
				policy.FirstDelay = min(policy.FirstPause/2, firstDelay)
				schedule = policy.Begin(time.Now())
			}
			if target = l.reconnect(ctx, schedule, err); target == nil {
				return
			}
		}
		begun := time.Now()
		if err = l.awaitLoss(ctx, target); err == nil {
			return
		}
		target = nil
		lasted := schedule != nil && time.Since(begun) >= schedule.NextPause()
		if lasted || l.settings.Load() != settings {
			schedule = nil
		}
	}
}

// connect makes one attempt.
func (l *Link) connect(ctx context.Context) (*Connection, error) {
	l.setState(LinkConnecting, func(*LinkStatus) {})
	settings := l.settings.Load()
	t, err := l.open(ctx, settings, l.log, l.resized)
	if err == nil {
		if err = l.checkDevices(ctx, settings, t); err == nil {
			err = l.probe(ctx, t)
		}
		if err != nil {
			t.Close(err)
		}
	}
	if err != nil {
		if !IsStandBy(err) && !IsPostponed(err) {
			l.count(func(s *LinkStatus) { s.countFailure(status.CodeOf(err)) })
		}
		return nil, err
	}
	l.becomeReady(t)
	return t, nil
}

// becomeReady records that the target can serve sessions.
func (l *Link) becomeReady(t *Connection) {
	if l.snapshot().role == standsBy {
		l.onTakeOver()
	}
	l.setState(LinkReady, func(s *LinkStatus) {
		s.role = nextRole[isReady][s.role]
		s.Connects++
		s.Attempt, s.LastError = 0, nil
		s.Volume, s.TargetSoftware = *t.Volume, t.software
	})
	l.Outages.ended(l)
	if l.DataSecurity != controlmsg.DataSecurityOff && !t.securesData {
		l.log.Warn("data is not encrypted on its way to the target, because security.data " +
			"(--data-security) is off there")
	}
	l.log.Info("target is ready", zap.String("volume", t.Volume.Volume),
		zap.Uint64("size_bytes", t.Volume.Size), zap.Uint32("block_size_bytes", t.Volume.BlockSize),
		zap.String("target_software", t.software))
}

// open connects to the target, and opens the volume there: see connect. The caller may be a
// session.
func (l *Link) open(
	ctx context.Context, settings *Settings, log *zap.Logger, onSize func(bytes uint64),
) (*Connection, error) {
	moved := l.untilMove()
	t, err := connect(ctx, l.Config, l.Address, settings, log, onSize)
	if err == nil {
		t.Moved = moved
		if err = l.accept(t); err != nil {
			t.Close(err)
			err = t.OpenError(err)
		}
	}
	if err != nil {
		if IsPostponed(err) {
			l.count(func(s *LinkStatus) { s.Postponed++ })
		}
		return nil, err
	}
	return t, nil
}

// checkDevices fails if the RDMA device that leads to the target cannot reach the memory of
// clients. The channel has checked the devices that it knew when it was opened.
func (l *Link) checkDevices(ctx context.Context, settings *Settings,
	t *Connection) error {
	return l.useDevice(ctx, &l.checking, "check the devices",
		func(context.Context) error { return settings.CheckDevice(t.Device) })
}

// useDevice carries out a step, within the time of a step of a handshake. What that makes on the
// device has to be gone before the relay closes the device, so that useDevice waits for the step
// for a while after ctx has ended.
func (l *Link) useDevice(
	ctx context.Context, step *devicecall.Step, what string, carryOut func(context.Context) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, l.settings.Load().ControlTimeout)
	defer cancel()
	waiting, stop := devicecall.After(ctx, devicecall.Timeout)
	defer stop()
	return AsTemporary(step.Take(waiting, what, func() error { return carryOut(ctx) }))
}

// resized records the size of the volume, in bytes.
func (l *Link) resized(bytes uint64) {
	l.count(func(s *LinkStatus) { s.Volume.Size = bytes })
}

// reconnect makes attempts as the schedule says, after the target was found to be down because of
// reason. It returns nil if ctx ends, or if the settings change. A stand-by is as it should be:
// it is asked at long intervals, for ever, and what it answers is no failed attempt. Nor is the
// answer of a target that says when to try again.
func (l *Link) reconnect(
	ctx context.Context, schedule *retry.Schedule, reason error,
) *Connection {
	policy := l.settings.Load().Reconnect
	for wasStandBy := false; ctx.Err() == nil; {
		var due time.Time
		switch {
		case IsStandBy(reason):
			due = time.Now().Add(schedule.Rest(time.Now()))
			l.setWaiting(schedule, reason, due)
			if !wasStandBy {
				l.Outages.ended(l)
				l.log.Info("target is a stand-by", zap.Error(reason))
			}
		case IsPostponed(reason):
			pause := schedule.Defer(time.Now(), controlmsg.RetryAfter(reason))
			due = time.Now().Add(pause)
			l.setWaiting(schedule, reason, due)
			l.Outages.failed(l, "target asks to try again later", reason,
				zap.Duration("next_in", pause))
		default:
			pause, err := schedule.Next(time.Now())
			if err != nil {
				l.giveUp(ctx, schedule, reason)
				return nil
			}
			due = time.Now().Add(pause)
			l.setWaiting(schedule, reason, due)
			l.log.Debug("attempt to connect to the target failed", zap.Error(reason),
				zap.Int("attempt", schedule.Attempt()), zap.Duration("next_in", pause))
			if !l.canIgnore() {
				l.Outages.failed(l, "target is not available", reason,
					zap.Stringer("attempts_at_most", policy.Attempts))
			}
		}
		wasStandBy = IsStandBy(reason)
		target, failure := l.attempt(ctx, due, schedule, reason)
		if target != nil || failure == nil {
			return target
		}
		reason = failure
	}
	return nil
}

// setWaiting records that the next attempt is due at a time, and why the target is down. The log
// says so afterwards: whoever has read it finds the same in the status.
func (l *Link) setWaiting(schedule *retry.Schedule, reason error, due time.Time) {
	state := LinkWaiting
	if IsStandBy(reason) {
		state = LinkStandBy
	}
	l.setState(state, func(s *LinkStatus) {
		s.Attempt, s.Attempts = schedule.Attempt(), l.settings.Load().Reconnect.Attempts
		s.LastError, s.NextAttempt = reason, new(due.UTC())
		if state == LinkStandBy {
			s.role = nextRole[answersStandBy][s.role]
		}
	})
}

// attempt connects at the time due, and before that whenever a session wants the target. It returns
// nil, nil if ctx ends or the settings change.
func (l *Link) attempt(
	ctx context.Context, due time.Time, schedule *retry.Schedule, reason error,
) (*Connection, error) {
	policy := l.settings.Load().Reconnect
	for {
		rest, least := time.Until(due), policy.FirstPause
		if IsPostponed(reason) {
			least = rest // no session shortens what the target has asked for
		}
		end := l.wait(ctx, rest, least)
		if end == settingsChanged || ctx.Err() != nil {
			return nil, nil
		}
		target, err := l.connect(ctx)
		if target != nil || end == attemptDue || IsPostponed(err) {
			return target, err
		}
		reason = err
		l.setWaiting(schedule, reason, due)
	}
}

// waitEnd is why a wait for the next attempt ended.
type waitEnd uint8

const (
	attemptDue waitEnd = iota
	sessionWaits
	settingsChanged
)

// wait waits for the next attempt, for the length of a pause. It ends earlier when the settings
// change and, but not before least, when a session wants the target.
func (l *Link) wait(ctx context.Context, length, least time.Duration) waitEnd {
	due := time.NewTimer(length)
	defer due.Stop()
	earliest := time.NewTimer(min(least, length))
	defer earliest.Stop()
	var early <-chan time.Time // earliest.C once a session wants the target
	for {
		select {
		case <-ctx.Done():
			return attemptDue
		case <-due.C:
			return attemptDue
		case <-l.changed:
			return settingsChanged
		case <-l.wanted:
			early = earliest.C
		case <-early:
			return sessionWaits
		}
	}
}

// giveUp waits until the settings change or ctx ends.
func (l *Link) giveUp(ctx context.Context, schedule *retry.Schedule, reason error) {
	settings := l.settings.Load()
	l.setState(LinkGivenUp, func(s *LinkStatus) {
		s.Attempt, s.Attempts, s.LastError = schedule.Attempt(), settings.Reconnect.Attempts, reason
	})
	l.Outages.ended(l)
	l.log.Error("gave up on the target: reload the configuration to try again",
		zap.Int("attempts", schedule.Attempt()), zap.Error(reason))
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

// awaitLoss waits until the connection is lost, or the relay no longer accepts the target, and
// returns why. It returns nil if ctx ends, or if
// the settings name another volume, RDMA address, or protocol.
func (l *Link) awaitLoss(ctx context.Context, t *Connection) error {
	watching, stop := context.WithCancel(ctx)
	pathLost := make(chan error, 1)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		if err := l.watchPath(watching, t); err != nil {
			pathLost <- err
		}
	})
	defer func() {
		stop()
		watcher.Wait()
	}()
	lose := func(reason error) error {
		t.Close(reason)
		l.count(func(s *LinkStatus) { s.Losses++ })
		return reason
	}
	for {
		select {
		case reason := <-pathLost:
			return lose(reason)
		case <-t.Requester.Done():
			t.Close(nil)
			l.count(func(s *LinkStatus) { s.Losses++ })
			return t.Requester.Err()
		case <-t.deviceGone: // no session can be served until it is back
			return lose(status.Errorf(status.NotConnected, "the RDMA device at %v has been removed, "+
				"or has failed", t.Source))
		case <-ctx.Done():
			t.Close(context.Cause(ctx))
			return nil
		case <-l.changed:
			if err := t.CheckPeer(); err != nil {
				return lose(err)
			}
			now := l.settings.Load()
			if now.Volume != t.name || now.RDMAAddress != t.rdmaAddress ||
				now.Dialect != dialects.None {
				t.Close(nil)
				return nil
			}
		case <-l.asked:
			l.confirmOwner(ctx, t)
		}
	}
}

// confirmOwner asks the target whether it owns the volume, if sessions at other processes wait for
// that. They ask again if the target does not know. A target that has lost the volume ends the
// connection.
func (l *Link) confirmOwner(ctx context.Context, t *Connection) {
	if !l.Lessee.Awaits(l.Channel, t.process) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.settings.Load().ControlTimeout)
	defer cancel()
	if err := t.OpenVolume(ctx); err != nil {
		l.log.Debug("cannot confirm who owns the volume", zap.Error(err))
	}
}

// isRejection reports whether err is a target's answer that it does not serve this relay.
func isRejection(err error) bool {
	answer, answered := errors.AsType[*controlmsg.Error](err)
	return answered && slices.Contains([]status.Code{status.BadConfig, status.NotPermitted,
		status.Authentication}, answer.Code)
}

// unavailable returns an error that says why the target cannot be used now.
func (l *Link) unavailable(s *LinkStatus) error {
	target := l.Address
	var text string
	switch s.State {
	case LinkStandBy:
		return status.Errorf(status.NotConnected, "target %v is a stand-by: the volume is served by "+
			"another one, or will be soon", target)
	case LinkGivenUp:
		text = fmt.Sprintf("gave up on target %v after %d attempts: "+
			"reload the relay's configuration to try again", target, s.Attempt)
	case LinkWaiting:
		if IsPostponed(s.LastError) {
			next := s.untilNextAttempt()
			return controlmsg.Postpone(max(next, time.Millisecond), "target %v admits no session now, "+
				"and is asked again in %v", target, next.Round(time.Millisecond))
		}
		state := "is down"
		if isRejection(s.LastError) {
			state = "rejects this relay"
		}
		text = fmt.Sprintf("target %v %s: attempt %d of %v follows in %v",
			target, state, s.Attempt, s.Attempts,
			max(0, s.untilNextAttempt()).Round(time.Millisecond))
	default:
		text = fmt.Sprintf("still connecting to target %v", target)
	}
	if missing, is := errors.AsType[*noVolumeError](s.LastError); is {
		return missing.forClient()
	}
	if s.LastError == nil {
		return status.Errorf(status.NotConnected, "%s", text)
	}
	// A rejection by the target itself has a code that says more than NotConnected; the loss of its
	// connection, and a device that the relay lacks, do not.
	switch status.CodeOf(s.LastError) {
	case status.NotFound, status.ConnectionReset, status.ConnectionAborted, status.TimeOut,
		status.Shutdown, status.OperatingSystem, status.Unknown:
		return status.Errorf(status.NotConnected, "%s: %w", text, s.LastError)
	}
	return fmt.Errorf("%s: %w", text, s.LastError)
}
