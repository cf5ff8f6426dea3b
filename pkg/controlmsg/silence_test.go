// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"testing"
	"time"
)

func TestSilence(t *testing.T) {
	type observation struct {
		at, heard time.Duration
		dead      bool
	}
	const second = time.Second
	cases := []struct {
		name         string
		limit        time.Duration
		interval     time.Duration
		observations []observation
	}{
		{"shorter than the limit is tolerated", 3 * second, second,
			[]observation{{1 * second, 0, false}, {2 * second, 0, false},
				{3 * second, 3 * second, false}, {5 * second, 0, false}}},
		{"as long as the limit is the end", 3 * second, second,
			[]observation{{1 * second, 0, false}, {2 * second, 0, false},
				{3 * second, 0, true}}},
		{"without limit is tolerated", 0, second,
			[]observation{{1 * second, 0, false}, {2 * second, 0, false},
				{3 * second, 0, false}, {4 * second, 0, false}}},
		{"during a pause of our own does not count", 3 * second, second,
			[]observation{{1 * second, 0, false}, {60 * second, 0, false},
				{61 * second, 0, false}, {62 * second, 62 * second, false}}},
		{"after a pause of our own counts from its end", 3 * second, second,
			[]observation{{60 * second, 0, false}, {61 * second, 0, false},
				{62 * second, 0, false}, {63 * second, 0, true}}},
		{"observed a little late counts", 3 * second, second,
			[]observation{{1900 * time.Millisecond, 0, false}, {3500 * time.Millisecond, 0, true}}},
		{"counts from the message, not from when it was observed", 3 * second, second,
			[]observation{{1 * second, 100 * time.Millisecond, false},
				{2 * second, 100 * time.Millisecond, false},
				{3 * second, 100 * time.Millisecond, false},
				{3100 * time.Millisecond, 100 * time.Millisecond, true}}},
		{"observed often but late counts", 3 * second, 10 * time.Millisecond,
			[]observation{{1 * second, 0, false}, {2 * second, 0, false},
				{3 * second, 0, true}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			s := newSilence(c.limit, c.interval, start)
			for _, o := range c.observations {
				rest, limited := s.observe(start.Add(o.at), start.Add(o.heard))
				if dead := limited && rest <= 0; dead != o.dead {
					t.Errorf("after %v: dead = %t, want %t", o.at, dead, o.dead)
				}
			}
		})
	}
}

func TestKeepAlivesMeetTheLimitsOfBothSides(t *testing.T) {
	on := KeepAliveConfig{Interval: time.Second, DeadAfter: 5 * time.Second}
	cases := []struct {
		name   string
		config KeepAliveConfig
		peerMs uint32
		want   time.Duration
	}{
		{"neither side asks", KeepAliveConfig{}, 0, 0},
		{"only this side watches", on, 0, time.Second},
		{"only the peer watches", KeepAliveConfig{}, 2000, 500 * time.Millisecond},
		{"the peer is less patient", on, 400, 100 * time.Millisecond},
		{"the peer is more patient", on, 60000, time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.config.interval(c.peerMs); got != c.want {
				t.Errorf("interval %v, want %v", got, c.want)
			}
		})
	}
}
