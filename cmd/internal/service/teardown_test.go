package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
	drain := func() time.Duration { return 5 * time.Millisecond }
	b := teardown{timeout: 5 * time.Millisecond}
	b.drain.Store(&drain)
	err := b.bound(ctx, zap.New(core), func() error { return stuckInItsTeardown(release) })
	if !errors.Is(err, status.TimeOut) || !strings.Contains(err.Error(), "10ms") {
		t.Errorf("the teardown ended with %v", err)
	}
	if entries := logs.FilterLevelExact(zap.ErrorLevel).All(); len(entries) != 1 ||
		!strings.Contains(entries[0].Message, "stuckInItsTeardown") {
		t.Errorf("the log has %d errors, which do not say where it is stuck", len(entries))
	}
}

func TestATeardownThatEndsIsNotDisturbed(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var b teardown
	for _, want := range []error{nil, status.IOFailed} {
		if err := b.bound(ctx, zap.New(core),
			func() error { cancel(); return want }); !errors.Is(err, want) {
			t.Errorf("the teardown ended with %v, want %v", err, want)
		}
	}
	if logs.Len() > 0 {
		t.Errorf("the log has %v", logs.All())
	}
}
