// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

func TestAShortageOfDescriptorsNamesWhatFits(t *testing.T) {
	const workers, allowed = 2, 20_000
	relay := DefaultRelay()
	relay.Channels = []Channel{DefaultChannel()}
	relay.Channels[0].Limits.Sessions = 1024
	target := DefaultTarget()
	checkShortage(t, relay, workers, allowed)
	checkShortage(t, target, workers, allowed)

	// A session with one queue has ten descriptors in the emulated Comch, of three eighths of all.
	if s := FindShortage(relay, workers, allowed); s.SmallSessions != allowed*3/8/10-1 {
		t.Errorf("%d sessions with one queue fit", s.SmallSessions)
	}
	relay.Comch.Provider = "doca" // does not divide them
	if s := FindShortage(relay, workers, allowed); s.SmallSessions <= allowed*3/8/10 {
		t.Errorf("with doca, %d sessions with one queue fit", s.SmallSessions)
	}
}

func checkShortage[C Configuration](t *testing.T, c C, workers int, allowed uint64) {
	t.Helper()
	s := FindShortage(c, workers, allowed)
	if s == nil || FindShortage(c, workers, uint64(s.LimitNOFILE)) != nil {
		t.Fatalf("the shortage is %+v, or stays with what it says to set", s)
	}
	most, _ := c.sessions()
	for queues, sessions := range map[int]int{s.Queues: s.Sessions, 1: s.SmallSessions} {
		if sessions == 0 || uint64(c.descriptorsFor(workers, sessions, queues)) > allowed ||
			sessions < most && uint64(c.descriptorsFor(workers, sessions+1, queues)) <= allowed {
			t.Errorf("%d is not the number of sessions with %d queues that fit", sessions, queues)
		}
	}
	if text := s.String() + s.Remedy("UNIT"); !strings.Contains(text, "RLIMIT_NOFILE is 20000") ||
		!strings.Contains(text, "systemctl edit UNIT, with [Service] LimitNOFILE=") {
		t.Errorf("the shortage reads %q", text)
	}
}
