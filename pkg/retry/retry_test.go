// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"encoding"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestZeroUnsetAndInfiniteAreDistinctLimits(t *testing.T) {
	var count Count
	var bound Bound
	if count.IsSet() || bound.IsSet() || count.String() != "" || bound.String() != "" {
		t.Error("the zero values are set")
	}
	if got := count.Or(Times(3)); got != Times(3) {
		t.Errorf("an unset count or 3 is %v", got)
	}
	if got := Times(0).Or(Times(3)); got != Times(0) {
		t.Errorf("0 or 3 is %v", got)
	}
	if got := Within(0).Or(Forever()); got != Within(0) {
		t.Errorf("0s or infinite is %v", got)
	}
	if got := AnyNumber().Or(Times(3)); got != AnyNumber() {
		t.Errorf("infinite or 3 is %v", got)
	}
	if got := Forever().Or(Within(3)); got != Forever() {
		t.Errorf("infinite or 3ns is %v", got)
	}
	if got := bound.Or(Forever()); got != Forever() {
		t.Errorf("an unset bound or infinite is %v", got)
	}
	if _, ok := Forever().Duration(); ok {
		t.Error("infinite has a duration")
	}
}

func TestSumsOfBoundsDoNotOverflow(t *testing.T) {
	for _, c := range []struct {
		bound Bound
		d     time.Duration
		want  Bound
	}{
		{Within(0), 0, Within(0)},
		{Within(time.Second), time.Minute, Within(61 * time.Second)},
		{Within(math.MaxInt64 - 1), 1, Within(math.MaxInt64)},
		{Within(math.MaxInt64), 1, Forever()},
		{Within(1), math.MaxInt64, Forever()},
		{Within(math.MaxInt64), math.MaxInt64, Forever()},
		{Forever(), math.MaxInt64, Forever()},
		{Bound{}, time.Second, Bound{}},
	} {
		if got := c.bound.Plus(c.d); got != c.want {
			t.Errorf("%v plus %v is %v, want %v", c.bound, c.d, got, c.want)
		}
	}
}

func TestAContextEndsWithItsBound(t *testing.T) {
	for _, c := range []struct {
		bound Bound
		ended bool
	}{
		{Within(0), true}, {Within(time.Hour), false}, {Within(math.MaxInt64), false},
		{Forever(), false}, {Bound{}, false},
	} {
		ctx, cancel := c.bound.Context(t.Context())
		if ended := ctx.Err() != nil; ended != c.ended {
			t.Errorf("a context bounded by %v has ended: %v", c.bound, ended)
		}
		cancel()
		if ctx.Err() == nil {
			t.Errorf("a context bounded by %v cannot be cancelled", c.bound)
		}
	}
}

func TestThePausesOfALongScheduleDoNotOverflow(t *testing.T) {
	now := time.Now()
	s := Policy{FirstPause: math.MaxInt64 / 2, LongestPause: math.MaxInt64,
		Random: func() float64 { return 0 }}.Begin(now)
	for i, want := range []time.Duration{0, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64,
		math.MaxInt64} {
		if pause, err := s.Next(now); err != nil || pause != want {
			t.Errorf("pause %d is %v, want %v: %v", i, pause, want, err)
		}
	}
}

func TestPrintedLimitsParseToThemselves(t *testing.T) {
	for _, c := range []Count{Times(0), Times(7), Times(math.MaxUint32), AnyNumber()} {
		var read Count
		if err := read.Set(c.String()); err != nil || read != c {
			t.Errorf("%v parses as %v: %v", c, read, err)
		}
	}
	for _, b := range []Bound{Within(0), Within(1500 * time.Millisecond),
		Within(math.MaxInt64), Forever()} {
		var read Bound
		if err := read.Set(b.String()); err != nil || read != b {
			t.Errorf("%v parses as %v: %v", b, read, err)
		}
	}
}

func TestInvalidLimitsAreRejectedWithTheAllowedValues(t *testing.T) {
	for _, limit := range []encoding.TextUnmarshaler{&Count{}, &Bound{}} {
		for _, text := range []string{"", "-1", "many", "-3s", "1e99", "endless"} {
			err := limit.UnmarshalText([]byte(text))
			if err == nil || !strings.Contains(err.Error(), infinite) {
				t.Errorf("%q for %T: %v", text, limit, err)
			}
		}
	}
}

func TestAPolicyWithNoAttemptsOrNoTimeFailsAtOnce(t *testing.T) {
	now := time.Now()
	for _, p := range []Policy{{Attempts: Times(0)}, {Total: Within(0)}} {
		if _, err := p.Begin(now).Next(now); !errors.Is(err, status.TimeOut) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestAScheduleKeepsToItsPolicy(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		p := Policy{
			FirstPause: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t,
				"first pause")),
			LongestPause: time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t,
				"longest pause")),
		}
		attempts := rapid.Uint32Range(0, 20).Draw(t, "attempts")
		total := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "total"))
		if rapid.Bool().Draw(t, "counted") {
			p.Attempts = Times(attempts)
		}
		if bounded := rapid.Bool().Draw(t, "bounded"); bounded || !p.Attempts.IsSet() {
			p.Total = Within(total)
		}
		start := time.Unix(0, 0)
		now := start
		s := p.Begin(start)
		effective := p.WithDefaults()
		for made := 0; ; made++ {
			pause, err := s.Next(now)
			if err != nil {
				late := p.Total.IsSet() && now.Sub(start) >= total
				if often := p.Attempts.IsSet() && made == int(attempts); !late && !often {
					t.Fatalf("stopped after %d attempts and %v: %v", made, now.Sub(start), err)
				}
				return
			}
			now = now.Add(pause)
			if p.Total.IsSet() && now.Sub(start) > total {
				t.Fatalf("attempt %d begins after %v, the bound is %v", made+1, now.Sub(start),
					total)
			}
			switch {
			case made == 0 && pause != 0:
				t.Fatalf("the first attempt waits %v", pause)
			case pause > effective.LongestPause:
				t.Fatalf("pause %v is longer than %v", pause, effective.LongestPause)
			case s.Attempt() != made+1:
				t.Fatalf("attempt %d is counted as %d", made+1, s.Attempt())
			}
			now = now.Add(time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t,
				"duration of the attempt")))
		}
	})
}

func TestPausesDoubleUpToTheLongest(t *testing.T) {
	s := Policy{FirstPause: time.Second, LongestPause: 5 * time.Second,
		Random: func() float64 { return 0 }}.Begin(time.Unix(0, 0))
	for i, want := range []time.Duration{0, 1, 2, 4, 5, 5} {
		if got, err := s.Next(time.Unix(0, 0)); err != nil || got != want*time.Second {
			t.Errorf("pause %d is %v, want %v s: %v", i, got, want, err)
		}
	}
}

func TestTheFirstAttemptFollowsWithinTheFirstDelay(t *testing.T) {
	now := time.Unix(0, 0)
	for _, random := range []float64{0, 0.5, 0.99} {
		s := Policy{FirstDelay: time.Second, Random: func() float64 { return random }}.Begin(now)
		want := time.Duration(random * float64(time.Second))
		if got, err := s.Next(now); err != nil || got != want {
			t.Errorf("with %v, the first attempt follows after %v, want %v: %v", random, got, want,
				err)
		}
	}
}

func TestAPostponedAttemptWaitsAsLongAsThePeerAsks(t *testing.T) {
	now := time.Unix(0, 0)
	s := Policy{FirstPause: time.Second, LongestPause: time.Second, Total: Within(10 * time.Second),
		Random: func() float64 { return 0.5 }}.Begin(now)
	for i, c := range []struct{ told, want time.Duration }{
		{0, 0}, {4 * time.Second, 4500 * time.Millisecond}, {0, 875 * time.Millisecond},
		{100 * time.Millisecond, 875 * time.Millisecond},
		{900 * time.Millisecond, 1125 * time.Millisecond}, {time.Minute, 10 * time.Second},
	} {
		s.Postpone(c.told)
		if got, err := s.Next(now); err != nil || got != c.want {
			t.Errorf("attempt %d waits %v, want %v: %v", i+1, got, c.want, err)
		}
	}
}

func TestAPeerThatAsksForAPauseOrHasNothingToDoHasNotFailed(t *testing.T) {
	begin := func() *Schedule {
		s := Policy{Attempts: Times(2), Total: Within(time.Minute), FirstPause: time.Second,
			LongestPause: 8 * time.Second, FirstDelay: time.Second,
			Random: func() float64 { return 0.5 }}.Begin(time.Unix(0, 0))
		for range 2 {
			if _, err := s.Next(time.Unix(0, 0)); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	later := time.Unix(3600, 0)
	for name, c := range map[string]struct {
		answer func(*Schedule) time.Duration
		want   time.Duration
	}{
		"a pause": {func(s *Schedule) time.Duration { return s.Defer(later, 4*time.Second) },
			4500 * time.Millisecond},
		"a pause shorter than the first": {
			func(s *Schedule) time.Duration { return s.Defer(later, time.Millisecond) },
			1125 * time.Millisecond},
		"nothing to do": {func(s *Schedule) time.Duration { return s.Rest(later) }, 7 * time.Second},
	} {
		s := begin()
		if got := c.answer(s); got != c.want || s.Attempt() != 0 {
			t.Errorf("%s: wait %v, want %v, after %d attempts", name, got, c.want, s.Attempt())
		}
		for i, want := range []time.Duration{0, 875 * time.Millisecond} {
			if got, err := s.Next(later); err != nil || got != want {
				t.Errorf("%s: pause %d afterwards is %v, want %v: %v", name, i, got, want, err)
			}
		}
	}
}

func TestASleepEndsWithItsPauseOrItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if !Sleep(ctx, time.Nanosecond) {
		t.Error("a sleep does not last for its pause")
	}
	cancel()
	if Sleep(ctx, time.Hour) {
		t.Error("a sleep goes on after its context")
	}
}

func TestThePolicysRandomNumbersDecideThePauses(t *testing.T) {
	numbers := []float64{0, 0.5, 0.75}
	drawn := 0
	p := Policy{FirstPause: time.Second, LongestPause: time.Second, Random: func() float64 {
		drawn++
		return numbers[drawn-1]
	}}
	s := p.Begin(time.Unix(0, 0))
	for i, want := range []time.Duration{0, 1000, 875, 812} {
		got, err := s.Next(time.Unix(0, 0))
		if err != nil || got.Truncate(time.Millisecond) != want*time.Millisecond {
			t.Errorf("pause %d is %v, want %v ms: %v", i, got, int64(want), err)
		}
	}
}

// Neither many losses within the time for one session nor a few that take longer end a request.
func TestARequestFailsAfterManyLossesThatTakeLongerThanAnOutageMay(t *testing.T) {
	for _, c := range []struct {
		name  string
		total Bound
		every time.Duration
		want  int // repetitions; 1000 means that there is no end
	}{
		{"in quick succession", Within(time.Minute), time.Second / 10, 601},
		{"slowly", Within(time.Minute), 50 * time.Second, 16},
		{"without waiting", Within(0), time.Millisecond, 16},
		{"without a limit", Forever(), time.Hour, 1000},
	} {
		var r Repeats
		got := 0
		for now := time.Unix(0, 0); got < 1000 && r.Allow(now, c.total); now = now.Add(c.every) {
			got++
		}
		if got != c.want {
			t.Errorf("%s: repeated %d times, want %d", c.name, got, c.want)
		}
	}
}
