package relay

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// How often sessions may make the relay connect to a target: a session a few times in a row, all
// sessions of a channel together as often as each of them connects once. Every connection that ends
// occupies a port for a minute, so that clients could otherwise use up the ports that lead to the
// target.
const (
	sessionDialBurst    = 4
	sessionDialInterval = time.Second
	channelDialInterval = 10 * time.Millisecond
)

// pace bounds how often something happens: up to a burst at once, and once per interval on average.
// Its methods may be called concurrently.
type pace struct {
	interval time.Duration

	mu   sync.Mutex
	full time.Time // when a whole burst is possible again
}

// reserve reserves one occurrence, and returns how long to wait for it. If that is longer than
// most, it reserves nothing and returns false.
func (p *pace) reserve(now time.Time, burst int, most time.Duration) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := p.full
	if full.Before(now) {
		full = now
	}
	wait := max(0, full.Sub(now)-time.Duration(burst-1)*p.interval)
	if wait > most {
		return wait, false
	}
	p.full = full.Add(p.interval)
	return wait, true
}

// cancel returns a reservation that was not used.
func (p *pace) cancel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = p.full.Add(-p.interval)
}

// awaitDial waits until the session may connect to the target: its own pace must allow that at
// once, the channel's within the time that the session waits for a target.
func (s *session) awaitDial(ctx context.Context, target netip.AddrPort) error {
	if wait, ok := s.dials.reserve(time.Now(), sessionDialBurst, 0); !ok {
		return status.Errorf(status.Again,
			"the client has opened the volume too often: the relay connects to target %v for it "+
				"again in %v", target, wait.Round(time.Millisecond))
	}
	most, limited := s.settings.SessionWait.Duration()
	if !limited {
		most = math.MaxInt64
	}
	wait, ok := s.channel.dials.reserve(time.Now(), s.settings.Limits.MaxSessions, most)
	if !ok {
		return status.Errorf(status.Again,
			"the clients of channel %v make the relay connect to target %v too often: try again "+
				"in %v", s.channel.id, target, wait.Round(time.Millisecond))
	}
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		s.channel.dials.cancel()
		return context.Cause(ctx)
	}
}
