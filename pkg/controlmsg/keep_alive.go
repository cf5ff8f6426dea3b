// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/lease"
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
	l.heartbeat = &heartbeat{interval: interval, always: l.config.AnnounceEvery > 0,
		limit: l.config.KeepAlive.DeadAfter, empty: make(chan struct{}),
		ended: make(chan struct{})}
	l.heartbeat.add(l)
}

// Peers lets conversations between the same two processes share their keep-alives. With hundreds of
// them, one keep-alive each per second would keep both processes busy with nothing else to do.
//
// A conversation is known by the instance that the relay's first answer to a question of the target
// names. Both sides share from then on: the relay when it has sent that answer, the target when it
// has received it. Peers must configure KeepAlive alike for all conversations of an instance.
type Peers struct {
	mu         sync.Mutex
	heartbeats map[lease.Instance]*heartbeat
}

// NewPeers returns what the EndpointConfigs of one process share.
func NewPeers() *Peers { return &Peers{heartbeats: make(map[lease.Instance]*heartbeat)} }

// join makes a link share the keep-alives of an instance, unless it does already.
func (p *Peers) join(l *link, instance lease.Instance) {
	if p == nil || instance == (lease.Instance{}) || l.shares.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l.mu.Lock()
	alone, err := l.heartbeat, l.err
	l.mu.Unlock()
	if err != nil || alone == nil || l.shares.Swap(true) {
		return
	}
	shared := p.heartbeats[instance]
	if shared == nil {
		p.heartbeats[instance] = alone
		return
	}
	alone.remove(l)
	l.mu.Lock()
	l.heartbeat = shared
	l.mu.Unlock()
	shared.add(l)
}

// leave ends the keep-alives of a link that has ended.
func (p *Peers) leave(l *link) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	l.mu.Lock()
	h := l.heartbeat
	l.mu.Unlock()
	if h == nil || !h.remove(l) || p == nil {
		return
	}
	maps.DeleteFunc(p.heartbeats,
		func(_ lease.Instance, shared *heartbeat) bool { return shared == h })
}

// heartbeat sends the keep-alives of one or more links to the same process, and ends them all when
// none of them has brought anything for too long. A goroutine runs it while it has links.
type heartbeat struct {
	interval, limit time.Duration
	always          bool // send, whatever else has been sent
	empty, ended    chan struct{}

	mu    sync.Mutex // guards what follows
	links []*link
	turn  int // of the link that sends next
}

func (h *heartbeat) add(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links = append(h.links, l)
	if len(h.links) == 1 {
		go h.run()
	}
}

// remove reports whether the link was the last one. Then the goroutine has exited.
func (h *heartbeat) remove(l *link) bool {
	h.mu.Lock()
	h.links = slices.DeleteFunc(h.links, func(other *link) bool { return other == l })
	isLast := len(h.links) == 0
	h.mu.Unlock()
	if isLast {
		close(h.empty)
		<-h.ended
	}
	return isLast
}

func (h *heartbeat) run() {
	defer close(h.ended)
	ticker := time.NewTicker(h.interval)
	defer ticker.Stop()
	silence := newSilence(h.limit, h.interval, time.Now())
	var end <-chan time.Time // of the peer's life, if it comes before the next tick
	for {
		isTick := false
		select {
		case <-h.empty:
			return
		case <-ticker.C:
			isTick = true
		case <-end:
		}
		rest, limited := silence.observe(time.Now(), h.heard())
		if limited && rest <= 0 {
			h.declareDead(time.Since(silence.since))
			continue // links that have joined meanwhile live on
		}
		end = nil
		if limited && rest < h.interval {
			end = time.After(rest)
		}
		if isTick {
			for _, l := range h.due() {
				l.announce()
			}
		}
	}
}

// heard returns when the last message has arrived.
func (h *heartbeat) heard() (last time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if latest := h.latestLocked(); latest != nil {
		last = latest.lastHeard()
	}
	return last
}

// latestLocked returns the link that has brought the last message, nil if there are no links.
func (h *heartbeat) latestLocked() (latest *link) {
	for _, l := range h.links {
		if latest == nil || l.lastHeard().After(latest.lastHeard()) {
			latest = l
		}
	}
	return latest
}

// due returns the links to send on now: the one that has brought the last message, and another one
// in turn, so that the heartbeat outlives the paths of some of its links.
func (h *heartbeat) due() []*link {
	h.mu.Lock()
	defer h.mu.Unlock()
	sent := false
	for _, l := range h.links {
		sent = l.sent.Swap(false) || sent
	}
	latest := h.latestLocked()
	if latest == nil || sent && !h.always {
		return nil
	}
	h.turn = (h.turn + 1) % len(h.links)
	if next := h.links[h.turn]; next != latest {
		return []*link{latest, next}
	}
	return []*link{latest}
}

// declareDead ends all links.
func (h *heartbeat) declareDead(silent time.Duration) {
	h.mu.Lock()
	links := slices.Clone(h.links)
	h.mu.Unlock()
	for _, l := range links {
		l.mu.Lock()
		l.abort = true // the peer would read the farewell only if it came back to life
		l.mu.Unlock()
		l.fail(status.Errorf(status.TimeOut, "the peer %s has been silent for %v, longer than "+
			"keep-alive allows: is it stopped, or the network down?", l.transport.RemoteName(),
			silent.Round(time.Millisecond)))
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
