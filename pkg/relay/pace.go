package relay

import (
	"context"
	"math"
	"net/netip"
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
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		s.channel.dials.Cancel()
		return context.Cause(ctx)
	}
}
