package controlmsg

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// KeepAliveConfig configures how an endpoint detects a dead peer.
type KeepAliveConfig struct {
	// Interval is how often to send something. 0 turns detection off; this side then sends
	// keep-alives only if the peer asks for them.
	Interval time.Duration
	// DeadAfter is how long the peer may be silent; 0 means five intervals.
	DeadAfter time.Duration
}

// DefaultKeepAlive returns the configuration for a peer behind a network.
func DefaultKeepAlive() KeepAliveConfig {
	return KeepAliveConfig{Interval: time.Second, DeadAfter: 5 * time.Second}
}

func (c KeepAliveConfig) withDefaults() KeepAliveConfig {
	if c.Interval <= 0 {
		return KeepAliveConfig{}
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = 5 * c.Interval
	}
	c.DeadAfter = max(c.DeadAfter, minSilenceLimit, c.Interval)
	return c
}

// silenceLimitMs returns the limit to announce to the peer.
func (c KeepAliveConfig) silenceLimitMs() uint32 { return uint32(c.DeadAfter.Milliseconds()) }

// interval returns how often to send something to a peer that has announced its limit; 0 means
// never. A quarter of the limit leaves room for delays.
func (c KeepAliveConfig) interval(peerSilenceLimitMs uint32) time.Duration {
	requested := time.Duration(peerSilenceLimitMs) * time.Millisecond / 4
	if c.Interval == 0 || requested == 0 {
		return c.Interval + requested
	}
	return min(c.Interval, requested)
}

// startKeepAlive starts sending keep-alives and watching for the peer's. It is called once, after
// hello.
func (l *link) startKeepAlive(peerSilenceLimitMs uint32) {
	interval := l.config.KeepAlive.interval(peerSilenceLimitMs)
	if every := l.config.AnnounceEvery; every > 0 && (interval == 0 || every < interval) {
		interval = every
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if interval == 0 || l.err != nil {
		return
	}
	l.watchers.Go(func() { l.keepAlive(interval) })
}

func (l *link) keepAlive(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	silence := newSilence(l.config.KeepAlive.DeadAfter, interval, time.Now())
	var end <-chan time.Time // of the peer's life, if it comes before the next tick
	for {
		isTick := false
		select {
		case <-l.done:
			return
		case <-ticker.C:
			isTick = true
		case <-end:
		}
		rest, limited := silence.observe(time.Now(), l.begun.Add(time.Duration(l.heard.Load())))
		if limited && rest <= 0 {
			l.mu.Lock()
			l.abort = true // the peer would read the farewell only if it came back to life
			l.mu.Unlock()
			l.fail(status.Errorf(status.TimeOut, "the peer %s has been silent for %v",
				l.transport.RemoteName(), time.Since(silence.since).Round(time.Millisecond)))
			return
		}
		end = nil
		if limited && rest < interval {
			end = time.After(rest)
		}
		if !isTick || l.sent.Swap(false) && l.config.AnnounceEvery == 0 {
			continue
		}
		if l.sendKeepAlive() != nil {
			return // the link has ended
		}
	}
}

// silence decides when a peer has been silent for too long. It counts only time in which this
// process was running: after a pause of its own it starts over, because messages that arrived
// during the pause have yet to be read. A late observation alone is not a pause; otherwise a busy
// machine would never declare a peer dead.
type silence struct {
	limit time.Duration // 0: forever
	since time.Time
	last  time.Time // previous observation
	pause time.Duration
}

func newSilence(limit, interval time.Duration, now time.Time) silence {
	return silence{limit: limit, since: now, last: now, pause: max(2*interval, limit/2)}
}

// observe returns how much longer the peer may be silent, if that is limited; nothing is left if it
// is dead. It is called at least once per interval; heard is when the last message has arrived.
func (s *silence) observe(now, heard time.Time) (rest time.Duration, limited bool) {
	if now.Sub(s.last) > s.pause {
		s.since = now
	} else if heard.After(s.since) {
		s.since = heard
	}
	s.last = now
	return s.limit - now.Sub(s.since), s.limit > 0
}
