// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/bucket"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TestClientsCannotMakeTheRelayDialWithoutBound lets sessions dial as often as they can.
func TestClientsCannotMakeTheRelayDialWithoutBound(t *testing.T) {
	const sessions, maxSessions, attempts = 16, 8, 100
	synctest.Test(t, func(t *testing.T) {
		settings := &ChannelConfig{Limits: Limits{MaxSessions: maxSessions},
			SessionWait: retry.Within(0)}
		c := &channelCommon{dials: bucket.New(channelDialInterval)}
		opened := make([]*session, sessions)
		for i := range opened {
			opened[i] = &session{channel: c, settings: settings,
				dials: bucket.New(sessionDialInterval)}
		}
		dials := func(s *session, why string) (allowed int) {
			for range attempts {
				err := s.awaitDial(t.Context(), netip.AddrPort{})
				switch {
				case err == nil:
					allowed++
				case !errors.Is(err, status.Again) || !strings.Contains(err.Error(), why):
					t.Fatalf("rejected by %v, want %q", err, why)
				}
			}
			return allowed
		}
		const own = "the client has opened"
		if got := dials(opened[0], own); got != sessionDialBurst {
			t.Errorf("a session dials %d times at once, want %d", got, sessionDialBurst)
		}
		all := sessionDialBurst
		for _, s := range opened[1:] {
			all += dials(s, "too often")
		}
		if all != maxSessions {
			t.Errorf("all sessions dial %d times at once, want %d", all, maxSessions)
		}
		time.Sleep(channelDialInterval)
		if got := dials(&session{channel: c, settings: settings,
			dials: bucket.New(sessionDialInterval)}, ""); got != 1 {
			t.Errorf("after the interval of a channel, a new session dials %d times, want once", got)
		}
		time.Sleep(sessionDialInterval)
		if got := dials(opened[0], own); got != 1 {
			t.Errorf("after the interval of a session, it dials %d times, want once", got)
		}
	})
}

// TestASessionThatWaitsForATargetWaitsForItsTurnToDial has a channel whose burst is used up.
func TestASessionThatWaitsForATargetWaitsForItsTurnToDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &channelCommon{dials: bucket.New(channelDialInterval)}
		settings := &ChannelConfig{Limits: Limits{MaxSessions: 1}, SessionWait: retry.Forever()}
		start := time.Now()
		for i := range time.Duration(3) {
			s := &session{channel: c, settings: settings,
				dials: bucket.New(sessionDialInterval)}
			err := s.awaitDial(t.Context(), netip.AddrPort{})
			if waited := time.Since(start); err != nil || waited != i*channelDialInterval {
				t.Errorf("session %d dials after %v, %v", i, waited, err)
			}
		}
	})
}
