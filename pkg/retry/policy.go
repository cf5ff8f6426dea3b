// SPDX-License-Identifier: Apache-2.0

// Package retry decides when to try again after a failure: how often, for how long in total, and
// with which pauses.
package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Policy describes how to retry. The zero value uses the defaults for everything.
type Policy struct {
	// Attempts limits the number of attempts; unset means infinite.
	Attempts Count
	// Total limits how long after the failure an attempt may start; unset means infinite.
	Total Bound
	// FirstPause is the pause after the first failed attempt. It doubles after each further one, up
	// to LongestPause. 0 means the default.
	FirstPause   time.Duration
	LongestPause time.Duration
	// FirstDelay makes the first attempt follow after a random part of it; 0 means at once.
	FirstDelay time.Duration
	// Random returns a number in [0, 1) that decides by how much pauses differ from their length.
	// Goroutines may call it concurrently. nil means math/rand/v2.Float64.
	Random func() float64
}

// Defaults of Policy.
const (
	DefaultFirstPause   = 100 * time.Millisecond
	DefaultLongestPause = 5 * time.Second
)

// WithDefaults returns p with defaults for what is not set.
func (p Policy) WithDefaults() Policy {
	p.Attempts, p.Total = p.Attempts.Or(AnyNumber()), p.Total.Or(Forever())
	if p.FirstPause <= 0 {
		p.FirstPause = DefaultFirstPause
	}
	if p.LongestPause <= 0 {
		p.LongestPause = DefaultLongestPause
	}
	p.LongestPause = max(p.LongestPause, p.FirstPause)
	if p.Random == nil {
		p.Random = rand.Float64
	}
	return p
}

// shorten returns a pause shortened by up to a quarter, at random, so that many who fail at once do
// not try again at once. Random must be set, as in the result of WithDefaults.
func (p Policy) shorten(pause time.Duration) time.Duration {
	return pause - time.Duration(float64(pause)*p.Random()/4)
}

// lengthen returns a pause that a peer has asked for, lengthened by up to a quarter, at random,
// because others may have been told the same. Random must be set, as in the result of WithDefaults.
func (p Policy) lengthen(told time.Duration) time.Duration {
	pause := max(told, p.FirstPause)
	return pause + time.Duration(float64(pause)*p.Random()/4)
}

// Schedule applies a policy to one failure. Only one goroutine may use it.
type Schedule struct {
	policy Policy
	begun  time.Time
	done   uint32
	pause  time.Duration // after the next attempt
	told   time.Duration // by the peer, for the next attempt
}

// Begin starts a schedule for a failure at the given time.
func (p Policy) Begin(now time.Time) *Schedule {
	p = p.WithDefaults()
	return &Schedule{policy: p, begun: now, pause: p.FirstPause}
}

// Wait allows one more attempt, as Next does, and waits until its time. It fails if ctx ends first.
func (s *Schedule) Wait(ctx context.Context) error {
	pause, err := s.Next(time.Now())
	if err == nil && pause > 0 && !Sleep(ctx, pause) {
		err = status.ContextError(ctx)
	}
	return err
}

// Attempt returns how many attempts Next has allowed.
func (s *Schedule) Attempt() int { return int(s.done) }

// NextPause returns how long Next makes callers wait at most if the latest attempt has failed.
func (s *Schedule) NextPause() time.Duration { return s.pause }

// String returns "attempt 3 of 8", or "attempt 3" if there is no limit.
func (s *Schedule) String() string {
	if s.policy.Attempts.state == finite {
		return fmt.Sprintf("attempt %d of %v", s.done, s.policy.Attempts)
	}
	return fmt.Sprintf("attempt %d", s.done)
}

// Postpone makes the next pause at least as long as the peer has asked for. It is lengthened at
// random by up to a quarter.
func (s *Schedule) Postpone(told time.Duration) { s.told = told }

// Defer begins the schedule anew, because a peer that asks for a pause has not failed, and returns
// how long to wait: at least as long as the peer has asked for, and at least the policy's first
// pause, lengthened at random by up to a quarter.
func (s *Schedule) Defer(now time.Time, told time.Duration) (pause time.Duration) {
	s.restart(now)
	return s.policy.lengthen(told)
}

// Rest begins the schedule anew, because a peer that has nothing to do for the caller has not
// failed either, and returns how long to wait before it is asked again: the policy's longest pause,
// shortened at random by up to a quarter.
func (s *Schedule) Rest(now time.Time) (pause time.Duration) {
	s.restart(now)
	return s.policy.shorten(s.policy.LongestPause)
}

// restart begins the schedule anew. The pause before it has spread the peers' first attempts.
func (s *Schedule) restart(now time.Time) {
	s.policy.FirstDelay = 0
	*s = *s.policy.Begin(now)
}

// Next allows one more attempt and returns how long to wait before it. The first attempt follows
// within the policy's FirstDelay. Next shortens pauses at random by up to a quarter, so that
// clients that lost the same peer do not all return at the same time. It cuts the last pause so
// that the attempt starts within the policy's total. Next fails with status.TimeOut when the policy
// allows no further attempt.
func (s *Schedule) Next(now time.Time) (pause time.Duration, err error) {
	if !s.policy.Attempts.canFollow(s.done) {
		return 0, status.Errorf(status.TimeOut,
			"gave up after %d attempts (limit %v)", s.done, s.policy.Attempts)
	}
	if s.done > 0 {
		pause = s.policy.shorten(s.pause)
	} else if s.policy.FirstDelay > 0 {
		pause = time.Duration(float64(s.policy.FirstDelay) * s.policy.Random())
	}
	if s.told > pause {
		pause = s.policy.lengthen(s.told)
	}
	s.told = 0
	if limit, ok := s.policy.Total.Duration(); ok {
		rest := limit - now.Sub(s.begun)
		if rest <= 0 {
			return 0, status.Errorf(status.TimeOut,
				"gave up after %d attempts in %v", s.done, limit)
		}
		pause = min(pause, rest)
	}
	if s.done > 0 {
		s.pause += min(s.pause, s.policy.LongestPause-s.pause) // doubled, without overflow
	}
	s.done++
	return pause, nil
}

// Sleep waits for a pause. It returns false if ctx ends first.
func Sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// minRepeats is how often a request is repeated at least, however long that takes.
const minRepeats = 16

// Repeats counts how often a request has been lost together with its session. The zero value is a
// request that has not.
type Repeats struct {
	losses int
	since  time.Time // the first loss
}

// Allow counts a loss, and reports whether to repeat the request. The request may be what ends its
// sessions, so Allow refuses in the end: after the 17th loss in a row, unless it follows the first
// within total, which bounds the wait for one session.
func (r *Repeats) Allow(now time.Time, total Bound) bool {
	if r.losses == 0 {
		r.since = now
	}
	r.losses++
	limit, ok := total.Duration()
	return r.losses <= minRepeats || !ok || now.Sub(r.since) <= limit
}
