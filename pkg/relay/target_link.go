package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// LinkState is the state of a channel's standing connection to one of its targets.
type LinkState uint8

const (
	// LinkConnecting means that an attempt to connect is under way.
	LinkConnecting LinkState = iota
	// LinkReady means that new sessions can be served.
	LinkReady
	// LinkWaiting means that the target is down and the next attempt is scheduled.
	LinkWaiting
	// LinkGivenUp means that all attempts have failed and none is scheduled.
	LinkGivenUp
	// LinkStandBy means that the target waits to take the volume over from another one, and that
	// the next attempt is scheduled.
	LinkStandBy
)

// String returns the name in logs, metrics and status.
func (s LinkState) String() string {
	switch s {
	case LinkConnecting:
		return "connecting"
	case LinkReady:
		return "ready"
	case LinkWaiting:
		return "waiting"
	case LinkGivenUp:
		return "given-up"
	case LinkStandBy:
		return "stand-by"
	}
	return "invalid"
}

// LinkStatus describes a channel's standing connection to one of its targets.
type LinkStatus struct {
	State LinkState
	// Since is when the link entered State.
	Since time.Time
	// Attempt is the number of the latest attempt since the target was last found to be down, or of
	// the next one while the link is waiting. 0 means that none was necessary. Attempts on behalf
	// of a waiting session do not count. Attempts is how many there may be.
	Attempt  int
	Attempts retry.Count
	// NextTry is when the next attempt begins; zero unless waiting or stand-by.
	NextTry time.Time
	// LastError is why the target was last found to be down; nil while it is ready.
	LastError error
	// Connects and Losses count how often the connection was established and lost. Failures counts
	// failed attempts, and FailuresByCode those with each code; it is never changed, but replaced.
	Connects       uint64
	Losses         uint64
	Failures       uint64
	FailuresByCode map[status.Code]uint64
	// Postponed counts attempts that the target has answered by a time to try again. They are no
	// failures.
	Postponed uint64
	// Volume is the target's description of the volume, and TargetSoftware its name and version, as
	// of the last time it was ready; zero if it never was.
	Volume         controlmsg.OpenVolumeReply
	TargetSoftware string
	// tried is set by the first outcome of an attempt.
	tried bool
	// vacant reports whether nobody can have listened at the address at the last attempt.
	vacant bool
	// stoodBy is set when the target was a stand-by when it last answered.
	stoodBy bool
	// doubtful is set when another target takes the volume over while this one is ready, until it
	// answers that it is a stand-by.
	doubtful bool
}

// firstDelay spreads the first attempts of all relays that have lost a target at the same time. It
// is shorter than what a client notices beside the loss itself.
const firstDelay = 50 * time.Millisecond

// targetLink keeps a control connection to a target in addition to those of the sessions, so that
// the relay knows before any client asks whether it can serve new sessions.
type targetLink struct {
	targets *targets
	channel *channel
	address netip.AddrPort
	log     *zap.Logger
	wanted  chan struct{} // has an element when a session waits for a target
	changed chan struct{} // has an element when the channel's settings have changed
	asked   chan struct{} // has an element when sessions wait to know who owns the volume

	checking devicecall.Step // of the device that leads to the target
	// stop ends run with a reason; nil until run. targets.mu guards it.
	stop context.CancelCauseFunc
	// process is the target's process, as of the latest connection; 0 if it is not known.
	// targets.mu guards it.
	process uint64
	// leases is how long the target's leases last, as of the latest connection; 0 if it asks no
	// questions or is not known. targets.mu guards it.
	leases time.Duration

	mu     sync.Mutex // guards what follows
	status LinkStatus
	moved  chan struct{} // closed when the channel moves to another target
}

func newTargetLink(t *targets, address netip.AddrPort) *targetLink {
	return &targetLink{
		targets: t, channel: t.channel, address: address,
		log:    t.channel.log.With(zap.Stringer("target", address)),
		wanted: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		asked:  make(chan struct{}, 1),
		status: LinkStatus{Since: time.Now()}, moved: make(chan struct{}),
	}
}

func (l *targetLink) snapshot() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// untilMove returns a channel that is closed when the relay's channel moves to another target.
func (l *targetLink) untilMove() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// endSessions ends the sessions at the target.
func (l *targetLink) endSessions() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.moved)
	l.moved = make(chan struct{})
}

// setState changes the status, and with it perhaps the choice of a target.
func (l *targetLink) setState(state LinkState, change func(*LinkStatus)) {
	l.mu.Lock()
	s := &l.status
	s.State, s.Since, s.NextTry = state, time.Now(), time.Time{}
	change(s)
	l.mu.Unlock()
	l.targets.changed()
}

// count changes only counters of the status, for which no session waits.
func (l *targetLink) count(change func(*LinkStatus)) {
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
func (l *targetLink) run(ctx context.Context) {
	for ctx.Err() == nil {
		if l.channel.settings.Load().TargetProtocol == ProtocolNative {
			l.keepConnected(ctx)
		} else {
			l.assumeReady(ctx)
		}
	}
}

// assumeReady leaves the target to the sessions, until the settings change or ctx ends: targets of
// the DOCA applications accept one connection in their life.
func (l *targetLink) assumeReady(ctx context.Context) {
	l.setState(LinkReady, func(s *LinkStatus) { s.tried, s.LastError = true, nil })
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
func (l *targetLink) keepConnected(ctx context.Context) {
	var schedule *retry.Schedule // nil once a connection has lasted
	target, err := l.connect(ctx)
	for {
		settings := l.channel.settings.Load()
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
		if lasted || l.channel.settings.Load() != settings {
			schedule = nil
		}
	}
}

// connect makes one attempt.
func (l *targetLink) connect(ctx context.Context) (*targetConnection, error) {
	l.setState(LinkConnecting, func(*LinkStatus) {})
	settings := l.channel.settings.Load()
	t, err := l.channel.openTarget(ctx, l, settings, l.log, l.resized)
	if err == nil {
		if err = l.checkDevices(ctx, settings, t); err != nil {
			t.close(err)
		}
	}
	if err != nil {
		l.count(func(s *LinkStatus) {
			s.tried = true
			s.vacant = errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errNoRoute)
			switch {
			case isStandBy(err):
			case isPostponed(err):
				s.Postponed++
			default:
				s.fail(status.CodeOf(err))
			}
		})
		return nil, err
	}
	if l.snapshot().stoodBy {
		l.targets.tookOver(l)
	}
	l.setState(LinkReady, func(s *LinkStatus) {
		s.stoodBy = false
		s.Connects++
		s.tried, s.vacant = true, false
		s.Attempt, s.LastError = 0, nil
		s.Volume, s.TargetSoftware = *t.volume, t.software
	})
	l.log.Info("target is ready", zap.String("volume", t.volume.Volume),
		zap.Uint64("size_bytes", t.volume.Size), zap.Uint32("block_size_bytes", t.volume.BlockSize),
		zap.String("target_software", t.software))
	return t, nil
}

// checkDevices fails if the RDMA device that leads to the target cannot reach the memory of
// clients. The channel has checked the devices that it knew when it was opened.
func (l *targetLink) checkDevices(ctx context.Context, settings *ChannelConfig,
	t *targetConnection) error {
	ctx, cancel := context.WithTimeout(ctx, settings.ControlTimeout)
	defer cancel()
	return asPassing(l.checking.Take(ctx, "check the devices", func() error {
		_, err := l.channel.memoryPaths(settings, t.device)
		return err
	}))
}

// fail counts a failed attempt. A target may send any code, so those without a name count together.
func (s *LinkStatus) fail(code status.Code) {
	if !code.Known() {
		code = status.Unknown
	}
	all := maps.Clone(s.FailuresByCode)
	if all == nil {
		all = make(map[status.Code]uint64)
	}
	all[code]++
	s.Failures, s.FailuresByCode = s.Failures+1, all
}

// resized records the size of the volume, in bytes.
func (l *targetLink) resized(bytes uint64) {
	l.count(func(s *LinkStatus) { s.Volume.Size = bytes })
}

// reconnect makes attempts as the schedule says, after the target was found to be down because of
// reason. It returns nil if ctx ends, or if the settings change. A stand-by is as it should be:
// it is asked at long intervals, for ever, and what it answers is no failed attempt. Nor is the
// answer of a target that says when to try again.
func (l *targetLink) reconnect(
	ctx context.Context, schedule *retry.Schedule, reason error,
) *targetConnection {
	policy := l.channel.settings.Load().Reconnect
	for wasStandBy := false; ctx.Err() == nil; {
		var pause time.Duration
		switch {
		case isStandBy(reason):
			pause = schedule.Rest(time.Now())
		case isPostponed(reason):
			pause = schedule.Defer(time.Now(), controlmsg.RetryAfter(reason))
		default:
			var err error
			if pause, err = schedule.Next(time.Now()); err != nil {
				l.giveUp(ctx, schedule, reason)
				return nil
			}
		}
		due := time.Now().Add(pause)
		l.setWaiting(schedule, reason, due)
		switch {
		case isStandBy(reason):
			if !wasStandBy {
				l.log.Info("target is a stand-by", zap.Error(reason))
			}
		case isPostponed(reason):
			l.log.Warn("target asks to try again later", zap.Error(reason),
				zap.Duration("next_in", pause))
		default:
			level := zap.WarnLevel
			if l.targets.canSpare(l) {
				level = zap.DebugLevel
			}
			l.log.Log(level, "target is not available", zap.Error(reason),
				zap.Int("attempt", schedule.Attempt()), zap.Stringer("of", policy.Attempts),
				zap.Duration("next_in", pause))
		}
		wasStandBy = isStandBy(reason)
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
func (l *targetLink) setWaiting(schedule *retry.Schedule, reason error, due time.Time) {
	state := LinkWaiting
	if isStandBy(reason) {
		state = LinkStandBy
	}
	l.setState(state, func(s *LinkStatus) {
		s.Attempt, s.Attempts = schedule.Attempt(), l.channel.settings.Load().Reconnect.Attempts
		s.LastError, s.NextTry = reason, due
		if state == LinkStandBy {
			s.stoodBy, s.doubtful = true, false
		}
	})
}

// attempt connects at the time due, and before that whenever a session wants the target. It returns
// nil, nil if ctx ends or the settings change.
func (l *targetLink) attempt(
	ctx context.Context, due time.Time, schedule *retry.Schedule, reason error,
) (*targetConnection, error) {
	policy := l.channel.settings.Load().Reconnect
	for {
		rest, least := time.Until(due), policy.FirstPause
		if isPostponed(reason) {
			least = rest // no session shortens what the target has asked for
		}
		end := l.wait(ctx, rest, least)
		if end == settingsChanged || ctx.Err() != nil {
			return nil, nil
		}
		target, err := l.connect(ctx)
		if target != nil || end == attemptDue || isPostponed(err) {
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
func (l *targetLink) wait(ctx context.Context, length, least time.Duration) waitEnd {
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
func (l *targetLink) giveUp(ctx context.Context, schedule *retry.Schedule, reason error) {
	settings := l.channel.settings.Load()
	l.setState(LinkGivenUp, func(s *LinkStatus) {
		s.Attempt, s.Attempts, s.LastError = schedule.Attempt(), settings.Reconnect.Attempts, reason
	})
	l.log.Error("gave up on the target: reload the configuration to try again",
		zap.Int("attempts", schedule.Attempt()), zap.Error(reason))
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

// awaitLoss waits until the connection is lost and returns why. It returns nil if ctx ends, or if
// the settings name another volume, RDMA address, or protocol.
func (l *targetLink) awaitLoss(ctx context.Context, t *targetConnection) error {
	for {
		select {
		case <-t.requester.Done():
			t.close(nil)
			l.count(func(s *LinkStatus) { s.Losses++ })
			return t.requester.Err()
		case <-t.deviceGone: // no session can be served until it is back
			reason := status.Errorf(status.NotConnected, "the RDMA device at %v has been removed, or "+
				"has failed", t.source)
			t.close(reason)
			l.count(func(s *LinkStatus) { s.Losses++ })
			return reason
		case <-ctx.Done():
			reason := errShuttingDown
			if context.Cause(ctx) == errTargetRemoved {
				reason = errTargetRemoved
			}
			t.close(reason)
			return nil
		case <-l.changed:
			now := l.channel.settings.Load()
			if now.Volume != t.name || now.RDMAAddress != t.rdmaAddress ||
				now.TargetProtocol != ProtocolNative {
				t.close(nil)
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
func (l *targetLink) confirmOwner(ctx context.Context, t *targetConnection) {
	if !l.channel.relay.lessee.Awaits(l.channel.id.String(), t.process) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.channel.settings.Load().ControlTimeout)
	defer cancel()
	if err := t.openVolume(ctx, l.channel.relay); err != nil {
		l.log.Debug("cannot confirm who owns the volume", zap.Error(err))
	}
}

// noVolume returns the error for clients whose channel's volume the target does not have. The names
// of the volumes that it has are for the relay's operator only: they are in its log and status.
func (l *targetLink) noVolume() error {
	return status.Errorf(status.NotFound, "target %v has no volume %q, which this channel of the "+
		"relay is configured for: the relay's log and status list the volumes that it has",
		l.address, l.channel.settings.Load().Volume)
}

// unavailable returns an error that says why the target cannot be used now.
func (l *targetLink) unavailable(s *LinkStatus) error {
	target := l.address
	var text string
	switch s.State {
	case LinkStandBy:
		return status.Errorf(status.NotConnected, "target %v is a stand-by: the volume is served by "+
			"another one, or will be soon", target)
	case LinkGivenUp:
		text = fmt.Sprintf("gave up on target %v after %d attempts: "+
			"reload the relay's configuration to try again", target, s.Attempt)
	case LinkWaiting:
		if isPostponed(s.LastError) {
			next := time.Until(s.NextTry)
			return controlmsg.Postpone(max(next, time.Millisecond), "target %v admits no session now, "+
				"and is asked again in %v", target, next.Round(time.Millisecond))
		}
		text = fmt.Sprintf("target %v is down: attempt %d of %v follows in %v",
			target, s.Attempt, s.Attempts,
			max(0, time.Until(s.NextTry)).Round(time.Millisecond))
	default:
		text = fmt.Sprintf("still connecting to target %v", target)
	}
	if isNoVolume(s.LastError) {
		return l.noVolume()
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
