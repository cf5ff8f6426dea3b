// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAScheduleWaitsForItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		policy := Policy{FirstPause: time.Second, LongestPause: time.Second,
			Total: Within(2500 * time.Millisecond), Random: func() float64 { return 0 }}
		s := policy.Begin(start)
		for _, want := range []time.Duration{0, 1000, 2000, 2500} {
			err := s.Wait(t.Context())
			if got := time.Since(start); err != nil || got != want*time.Millisecond {
				t.Errorf("attempt %d begins after %v, want %d ms: %v", s.Attempt(), got,
					int64(want), err)
			}
		}
		if err := s.Wait(t.Context()); !errors.Is(err, status.TimeOut) {
			t.Errorf("beyond the total: %v", err)
		}
	})
}

func TestTheFirstAttemptNeedsNoContextAndTheOthersEndWithIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := Policy{FirstPause: time.Hour}.Begin(time.Now())
	if err := s.Wait(ctx); err != nil {
		t.Errorf("the first attempt: %v", err)
	}
	if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the second attempt: %v", err)
	}
}
