package service

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultTeardownTimeout bounds the end of a daemon after its drain.
const DefaultTeardownTimeout = time.Minute

// teardown bounds the end of a daemon: one that is stuck tells where, and the
// process ends without it.
type teardown struct {
	// drain is how long requests in flight may take before; nil if there are
	// none.
	drain   atomic.Pointer[func() time.Duration]
	timeout time.Duration // 0 means the default
}

// BoundTeardown has the daemon given up that has not ended a time, from
// DefaultTeardownTimeout, after its requests in flight had time to run out:
// drain, asked at the end of the run's context, says how much.
func (e *Environment) BoundTeardown(drain func() time.Duration) {
	e.lifecycle.teardown.drain.Store(&drain)
}

// bound calls body, which is to return soon after the end of ctx.
func (t *teardown) bound(ctx context.Context, log *zap.Logger, body func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- body() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bound := t.longest()
	log.Info("ending", zap.NamedError("reason", context.Cause(ctx)), zap.Duration("at_most", bound))
	overdue := time.NewTimer(bound)
	defer overdue.Stop()
	select {
	case err := <-ended:
		return err
	case <-overdue.C:
	}
	// In the text and not as a field, so that it can be read.
	log.Error("the teardown is stuck, goroutines:\n" + stacks())
	return status.Errorf(status.TimeOut, "the teardown has not ended within %v: the process ends without it; the log says where it is stuck", bound)
}

func (t *teardown) longest() time.Duration {
	bound := t.timeout
	if bound == 0 {
		bound = DefaultTeardownTimeout
	}
	if drain := t.drain.Load(); drain != nil {
		bound += (*drain)()
	}
	return bound
}

// maxStacksBytes bounds what is logged of the stacks of all goroutines.
const maxStacksBytes = 16 << 20

// stacks is where every goroutine is.
func stacks() string {
	for size := 256 << 10; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, true); n < size || size >= maxStacksBytes {
			return string(text[:n])
		}
	}
}
