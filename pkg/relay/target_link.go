package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// LinkConnecting means that an attempt is under way.
	LinkConnecting LinkState = iota
	// LinkReady means that new sessions can be served.
	LinkReady
	// LinkWaiting means that the target is down and will be tried again.
	LinkWaiting
	// LinkGivenUp means that all attempts have failed.
	LinkGivenUp
)

// LinkState is how a channel stands with its target.
type LinkState uint8

// String returns the word for logs, metrics and status.
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
	}
	return "invalid"
}

// LinkStatus describes a channel's standing connection to its target.
type LinkStatus struct {
	State LinkState
	// Since is when State was entered.
	Since time.Time
	// Attempt, of Attempts, is the latest one since the target was last found
	// to be down or, while waiting, the next one; 0 means that none was
	// necessary. Attempts on behalf of a session that waits are not counted.
	Attempt  int
	Attempts retry.Count
	// NextTry is when the next attempt begins; zero unless waiting.
	NextTry time.Time
	// LastError is why the target was last found to be down; nil while it is
	// ready.
	LastError error
	// Connects and Losses count how often the connection was made and lost,
	// Failures the attempts that failed.
	Connects uint64
	Losses   uint64
	Failures uint64
	// Volume is what the target said of the volume, and TargetSoftware what
	// it runs, when it was last ready; zero if never.
	Volume         controlmsg.OpenVolumeReply
	TargetSoftware string
}

// targetLink keeps one control connection to the target besides those of the
// sessions: it tells whether new sessions can be served, before any client
// asks.
type targetLink struct {
	channel *channel
	wanted  chan struct{} // a session waits for the target
	changed chan struct{} // the channel's settings have changed

	mu     sync.Mutex // guards what follows
	status LinkStatus
	moved  chan struct{} // closed at the next change of status
}

func newTargetLink(c *channel) *targetLink {
	return &targetLink{
		channel: c, wanted: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		status: LinkStatus{Since: time.Now()}, moved: make(chan struct{}),
	}
}

// snapshot returns the status, and a channel that is closed when it changes.
func (l *targetLink) snapshot() (LinkStatus, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status, l.moved
}

// enter changes the status and tells those who wait for it.
func (l *targetLink) enter(state LinkState, change func(*LinkStatus)) {
	l.mu.Lock()
	s := &l.status
	s.State, s.Since, s.NextTry = state, time.Now(), time.Time{}
	change(s)
	close(l.moved)
	l.moved = make(chan struct{})
	l.mu.Unlock()
	l.channel.relay.tellReadiness()
}

// run keeps the connection until ctx ends.
func (l *targetLink) run(ctx context.Context) {
	for ctx.Err() == nil {
		target, err := l.connect(ctx)
		if err != nil {
			target = l.recover(ctx, err)
		}
		for target != nil {
			if err := l.awaitEnd(ctx, target); err != nil {
				target = l.recover(ctx, err)
				continue
			}
			target = nil
		}
	}
}

// connect makes one attempt.
func (l *targetLink) connect(ctx context.Context) (*targetConnection, error) {
	l.enter(LinkConnecting, func(*LinkStatus) {})
	target, err := l.channel.openTarget(ctx, l.channel.settings.Load())
	if err != nil {
		l.count(func(s *LinkStatus) { s.Failures++ })
		return nil, err
	}
	l.connected(target)
	return target, nil
}

// recover connects again as the policy says. It returns nil if ctx ends, or
// if the settings have changed, and with them perhaps the target.
func (l *targetLink) recover(ctx context.Context, reason error) *targetConnection {
	policy := l.channel.settings.Load().Reconnect
	schedule := policy.Begin(time.Now())
	for ctx.Err() == nil {
		length, err := schedule.Next(time.Now())
		if err != nil {
			l.giveUp(ctx, schedule, reason)
			return nil
		}
		due := time.Now().Add(length)
		l.channel.log.Warn("target is not available", zap.Stringer("target", l.channel.settings.Load().Target), zap.Error(reason),
			zap.Int("attempt", schedule.Attempt()), zap.Stringer("of", policy.Attempts), zap.Duration("next_in", length))
		target, failure := l.tryUntil(ctx, due, schedule, reason)
		if target != nil || failure == nil {
			return target
		}
		reason = failure
	}
	return nil
}

// tryUntil connects when an attempt is due, or before that if a session wants
// the target. It returns neither a target nor a failure if ctx ends or the
// settings have changed.
func (l *targetLink) tryUntil(ctx context.Context, due time.Time, schedule *retry.Schedule, reason error) (*targetConnection, error) {
	policy := l.channel.settings.Load().Reconnect
	for {
		l.enter(LinkWaiting, func(s *LinkStatus) {
			s.Attempt, s.Attempts, s.LastError, s.NextTry = schedule.Attempt(), policy.Attempts, reason, due
		})
		end := l.sleep(ctx, time.Until(due), policy.FirstPause)
		if end == sleptChanged || ctx.Err() != nil {
			return nil, nil
		}
		target, err := l.connect(ctx)
		if target != nil || end == sleptWhole {
			return target, err
		}
		reason = err
	}
}

// giveUp waits until the settings change.
func (l *targetLink) giveUp(ctx context.Context, schedule *retry.Schedule, reason error) {
	settings := l.channel.settings.Load()
	l.channel.log.Error("target is given up: reload the configuration to try again", zap.Stringer("target", settings.Target),
		zap.Int("attempts", schedule.Attempt()), zap.Error(reason))
	l.enter(LinkGivenUp, func(s *LinkStatus) {
		s.Attempt, s.Attempts, s.LastError = schedule.Attempt(), settings.Reconnect.Attempts, reason
	})
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

func (l *targetLink) connected(t *targetConnection) {
	l.channel.log.Info("target is ready", zap.Stringer("target", t.address), zap.String("volume", t.volume.Volume),
		zap.Uint64("size_bytes", t.volume.Size), zap.Uint32("block_size_bytes", t.volume.BlockSize),
		zap.String("target_software", t.software))
	l.enter(LinkReady, func(s *LinkStatus) {
		s.Connects++
		s.Attempt, s.LastError = 0, nil
		s.Volume, s.TargetSoftware = *t.volume, t.software
	})
}

// awaitEnd waits for the end of the connection and says why it ended. It
// returns nil if ctx ends, or if the settings name another target or volume.
func (l *targetLink) awaitEnd(ctx context.Context, t *targetConnection) error {
	for {
		select {
		case <-t.requester.Done():
			err := endOf(t.requester.Err())
			t.requester.Close(nil)
			l.count(func(s *LinkStatus) { s.Losses++ })
			return err
		case <-ctx.Done():
			t.requester.Close(errShuttingDown)
			return nil
		case <-l.changed:
			if now := l.channel.settings.Load(); now.Target != t.address || now.Volume != t.name {
				t.requester.Close(nil)
				return nil
			}
		}
	}
}

// count changes counters only.
func (l *targetLink) count(change func(*LinkStatus)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.status)
}

// sleep waits for length. A session that wants the target shortens it to
// least, other settings end it.
func (l *targetLink) sleep(ctx context.Context, length, least time.Duration) sleepEnd {
	whole := time.NewTimer(length)
	defer whole.Stop()
	shorter := time.NewTimer(min(least, length))
	defer shorter.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return sleptWhole
		case <-whole.C:
			return sleptWhole
		case <-l.changed:
			return sleptChanged
		case <-l.wanted:
			due = shorter.C
		case <-due:
			return sleptShorter
		}
	}
}

// await waits until the target is ready, at most for bound, and says why it
// is not otherwise.
func (l *targetLink) await(ctx context.Context, bound retry.Bound) error {
	var expired <-chan time.Time
	limit, limited := bound.Duration()
	if limited {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		s, moved := l.snapshot()
		if s.State == LinkReady {
			return nil
		}
		if s.State == LinkGivenUp || limited && limit == 0 {
			return l.unavailable(&s)
		}
		signal(l.wanted)
		select {
		case <-moved:
		case <-expired:
			s, _ = l.snapshot()
			return l.unavailable(&s)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unavailable says that, and why, the target cannot be used now.
func (l *targetLink) unavailable(s *LinkStatus) error {
	target := l.channel.settings.Load().Target
	switch {
	case s.State == LinkGivenUp:
		return downError(s.LastError, "target %v was given up after %d attempts: reload the relay's configuration to try again", target, s.Attempt)
	case s.State == LinkWaiting:
		return downError(s.LastError, "target %v is down: attempt %d of %v follows in %v", target, s.Attempt, s.Attempts,
			max(0, time.Until(s.NextTry)).Round(time.Millisecond))
	}
	return downError(s.LastError, "target %v is being connected to", target)
}

// How a pause ended.
type sleepEnd uint8

const (
	sleptWhole sleepEnd = iota
	sleptShorter
	sleptChanged
)

// signal notifies on a channel that has room for one.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default: // it is there already
	}
}

// downError gives an error text about a target that is down, caused by cause,
// the code NotConnected, unless the target itself has refused with a code
// that tells more.
func downError(cause error, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if cause == nil {
		return status.Errorf(status.NotConnected, "%s", text)
	}
	switch status.CodeOf(cause) {
	case status.ConnectionReset, status.ConnectionAborted, status.TimeOut, status.Shutdown, status.OperatingSystem, status.Unknown:
		return status.Errorf(status.NotConnected, "%s: %w", text, cause)
	}
	return fmt.Errorf("%s: %w", text, cause)
}
