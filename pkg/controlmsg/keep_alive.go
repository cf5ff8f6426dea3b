package controlmsg

import (
	"context"
	"time"
)

// KeepAliveConfig says how an endpoint watches over its peer.
type KeepAliveConfig struct {
	// Interval is how often to send something. 0 turns the watch off; this
	// side then sends keep-alives only if the peer asks for them.
	Interval time.Duration
	// DeadAfter is how long the peer may be silent; 0 means five intervals.
	DeadAfter time.Duration
}

// DefaultKeepAlive is the watch over a peer behind a network.
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

// silenceLimitMs is what the peer is told about it.
func (c KeepAliveConfig) silenceLimitMs() uint32 { return uint32(c.DeadAfter.Milliseconds()) }

// interval is how often to send something to a peer that has announced its
// limit, 0 if never. A quarter of the limit leaves room for delays.
func (c KeepAliveConfig) interval(peerSilenceLimitMs uint32) time.Duration {
	asked := time.Duration(peerSilenceLimitMs) * time.Millisecond / 4
	if c.Interval == 0 || asked == 0 {
		return c.Interval + asked
	}
	return min(c.Interval, asked)
}

// silence decides when a peer has been silent for too long. It counts the
// time in which this process has been running: after a pause of its own it
// starts anew, because what the peer sent meanwhile is still to be read. An
// observation that is merely late is no pause, or else a busy machine would
// never give a peer up.
type silence struct {
	limit time.Duration // 0: for ever
	since time.Time
	last  time.Time // previous observation
	pause time.Duration
}

func newSilence(limit, interval time.Duration, now time.Time) silence {
	return silence{limit: limit, since: now, last: now, pause: max(2*interval, limit/2)}
}

// observe is called once in each interval. heard tells whether a message has
// come since the last call. It returns true if the peer is to be given up.
func (s *silence) observe(now time.Time, heard bool) bool {
	paused := now.Sub(s.last) > s.pause
	s.last = now
	if heard || paused {
		s.since = now
		return false
	}
	return s.limit > 0 && now.Sub(s.since) >= s.limit
}

// watch starts keeping the peer alive and under observation. It is called
// once, after the greeting.
func (l *link) watch(peerSilenceLimitMs uint32) {
	interval := l.config.KeepAlive.interval(peerSilenceLimitMs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if interval == 0 || l.err != nil {
		return
	}
	l.watchers.Go(func() { l.watchEvery(interval) })
}

func (l *link) watchEvery(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	quiet := newSilence(l.config.KeepAlive.DeadAfter, interval, time.Now())
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		if quiet.observe(time.Now(), l.heard.Swap(false)) {
			l.giveUp(time.Since(quiet.since))
			return
		}
		if l.sent.Swap(false) {
			continue
		}
		if l.send(context.Background(), &Envelope{Message: &KeepAlive{}}) != nil {
			return // the link has ended
		}
	}
}
