// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeService is drained when its channel is closed.
type fakeService struct {
	timeout retry.Bound
	drained chan struct{}
}

func (s fakeService) DrainTimeout() retry.Bound { return s.timeout }

func (s fakeService) Drained() <-chan struct{} { return s.drained }

// atMost returns the duration that the log announces for the end.
func atMost(logs *observer.ObservedLogs) any {
	return logs.FilterMessage("ending").All()[0].ContextMap()["at_most"]
}

// stuckInItsTeardown is a function whose name the test finds in the stacks.
func stuckInItsTeardown(release chan struct{}) error {
	<-release
	return nil
}

func TestAStuckTeardownIsGivenUpAndItsStacksAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	release := make(chan struct{})
	defer close(release)
	b := teardown{timeout: 5 * time.Millisecond}
	b.service.Store(new(Drainable(fakeService{timeout: retry.Within(3 * time.Millisecond)})))
	err := b.bound(ctx, zap.New(core), func() error { return stuckInItsTeardown(release) },
		func() {})
	if !errors.Is(err, status.TimeOut) || !strings.Contains(err.Error(), "5ms") {
		t.Errorf("the teardown ended with %v", err)
	}
	if text := atMost(logs); text != "8ms" {
		t.Errorf("the end is announced for %q", text)
	}
	if entries := logs.FilterLevelExact(zap.ErrorLevel).All(); len(entries) != 1 ||
		!strings.Contains(entries[0].Message, "stuckInItsTeardown") {
		t.Errorf("the log has %d errors, which do not say where it is stuck", len(entries))
	}
}

func TestADrainMayTakeAsLongAsConfigured(t *testing.T) {
	for name, drain := range map[string]retry.Bound{
		"infinite": retry.Forever(), "largest": retry.Within(math.MaxInt64),
		"a year": retry.Within(365 * 24 * time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.InfoLevel)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				s := fakeService{timeout: drain, drained: make(chan struct{})}
				var b teardown
				b.service.Store(new(Drainable(s)))
				const drainTime, flushTime = 90 * 24 * time.Hour, defaultTeardownTimeout / 2
				err := b.bound(ctx, zap.New(core), func() error {
					time.Sleep(drainTime)
					close(s.drained)
					time.Sleep(flushTime)
					return nil
				}, func() {})
				if err != nil || logs.FilterLevelExact(zap.ErrorLevel).Len() > 0 {
					t.Errorf("the end announced for %v was cut short: %v", atMost(logs), err)
				}
			})
		})
	}
}

func TestATeardownThatIsStuckAfterAnInfiniteDrainIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := fakeService{timeout: retry.Forever(), drained: make(chan struct{})}
		var b teardown
		b.service.Store(new(Drainable(s)))
		release := make(chan struct{})
		defer close(release)
		err := b.bound(ctx, zap.NewNop(), func() error {
			close(s.drained)
			return stuckInItsTeardown(release)
		}, func() {})
		if !errors.Is(err, status.TimeOut) {
			t.Errorf("the teardown ended with %v", err)
		}
	})
}

func TestATeardownThatEndsIsNotDisturbed(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var b teardown
	for _, want := range []error{nil, status.IOFailed} {
		if err := b.bound(ctx, zap.New(core),
			func() error { cancel(); return want }, func() {}); !errors.Is(err, want) {
			t.Errorf("the teardown ended with %v, want %v", err, want)
		}
	}
	if logs.Len() > 0 {
		t.Errorf("the log has %v", logs.All())
	}
}

// TestABlockedReloadDoesNotKeepTheDaemonFromEnding blocks while the daemon applies what it has
// read, as a resize does on a file system that does not respond.
func TestABlockedReloadDoesNotKeepTheDaemonFromEnding(t *testing.T) {
	for name, failure := range map[string]error{"SIGTERM": nil, "failure": status.IOFailed} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Setenv("NOTIFY_SOCKET", "")
				core, logs := observer.New(zap.InfoLevel)
				l := newLifecycle(zap.New(core), make(chan os.Signal, 1))
				applying, release := make(chan struct{}), make(chan struct{})
				l.reloader.reads = []ReadFunc{func() (func() error, error) {
					return func() error {
						close(applying)
						return stuckInItsTeardown(release)
					}, nil
				}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var told time.Time
				err := l.call(ctx, func() error {
					if err := l.started(nil); err != nil {
						return err
					}
					l.reloader.hangups <- syscall.SIGHUP
					<-applying
					if told = time.Now(); failure == nil {
						cancel()
					}
					return failure
				})
				if took := time.Since(told); took != defaultTeardownTimeout ||
					!errors.Is(err, status.TimeOut) || !errors.Is(err, cmp.Or(failure, err)) {
					t.Errorf("the daemon ended after %v with %v", took, err)
				}
				if stuck := logs.FilterLevelExact(zap.ErrorLevel).All(); len(stuck) != 1 ||
					!strings.Contains(stuck[0].Message, "stuckInItsTeardown") {
					t.Errorf("the log has %d errors, which do not say where it is stuck", len(stuck))
				}
				close(release)
				synctest.Wait()
			})
		})
	}
}

func TestADaemonThatIsToldToEndWhileItStartsHasNotFailed(t *testing.T) {
	told, cancel := context.WithCancel(context.Background())
	cancel()
	canceled := fmt.Errorf("listen: %w", context.Canceled)
	broken := fmt.Errorf("flush: %w", status.IOFailed)
	for _, c := range []struct {
		ctx       context.Context
		err, want error
	}{
		{told, nil, nil},
		{told, context.Canceled, nil},
		{told, &program.Interrupted{Signal: syscall.SIGTERM}, nil},
		{told, errors.Join(canceled, fmt.Errorf("start: %w", canceled)), nil},
		{told, errors.Join(canceled, broken), status.IOFailed},
		{told, fmt.Errorf("%w: %w", broken, canceled), status.IOFailed},
		{told, status.IOFailed, status.IOFailed},
		{context.Background(), canceled, context.Canceled},
	} {
		if got := outcomeOf(c.ctx, c.err); !errors.Is(got, c.want) {
			t.Errorf("the outcome of %q is %v, want %v", c.err, got, c.want)
		}
	}
}
