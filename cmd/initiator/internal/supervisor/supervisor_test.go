// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spin runs until the supervisor drains.
func spin(s *Supervisor, draining Stage) func(*progress.Engine) error {
	return func(engine *progress.Engine) error {
		for s.Stage() < draining {
			engine.Idle(engine.Progress())
		}
		return nil
	}
}

func TestStagesFollowEachOtherInTheirTime(t *testing.T) {
	s := New(0, time.Millisecond, time.Millisecond, time.Millisecond)
	var seen []Stage
	body := func(engine *progress.Engine) error {
		for s.Stage() <= 2 {
			if now := s.Stage(); len(seen) == 0 || seen[len(seen)-1] != now {
				seen = append(seen, now)
			}
			engine.Idle(engine.Progress())
		}
		return nil
	}
	if err := s.Threads().Go(affinity.AnyCPU, progress.Policy{Mode: progress.Event},
		body); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(context.Background(), func() {}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] <= seen[i-1] {
			t.Errorf("stages were %v", seen)
		}
	}
	if s.Stage() != 3 || s.Interrupted() {
		t.Errorf("the run ended in stage %d, interrupted: %v", s.Stage(), s.Interrupted())
	}
}

func TestTheEndOfTheContextInterruptsARunThatSleeps(t *testing.T) {
	s := New(0, 0, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	if err := s.Threads().Go(affinity.AnyCPU, progress.Policy{Mode: progress.Event},
		spin(s, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.Wait(ctx, func() {}); err != nil || !s.Interrupted() {
		t.Errorf("error %v, interrupted %v", err, s.Interrupted())
	}
}

func TestAFailedThreadEndsTheOthers(t *testing.T) {
	s := New(0, 0, time.Minute)
	if err := s.Threads().Go(affinity.AnyCPU, progress.Policy{}, spin(s, 1)); err != nil {
		t.Fatal(err)
	}
	failing := func(*progress.Engine) error { return status.IOFailed }
	if err := s.Threads().Go(affinity.AnyCPU, progress.Policy{}, failing); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(context.Background(), func() {}); !errors.Is(err, status.IOFailed) ||
		s.Interrupted() {
		t.Errorf("error %v, interrupted %v", err, s.Interrupted())
	}
}

func TestAThreadIsPinnedWhereItWasAskedFor(t *testing.T) {
	allowed, err := affinity.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	var threads Threads
	if err := threads.Go(allowed[len(allowed)-1], progress.Policy{},
		func(*progress.Engine) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := threads.Go(4095, progress.Policy{},
		func(*progress.Engine) error { panic("must not run") }); err != nil {
		t.Fatal(err)
	}
	if err := threads.Wait(); err == nil || !strings.Contains(err.Error(), "4095") {
		t.Errorf("error is %v", err)
	}
}
