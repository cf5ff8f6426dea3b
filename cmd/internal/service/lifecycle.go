// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// lifecycle connects a daemon with its service manager: readiness, reload, watchdog, and the end.
type lifecycle struct {
	log      *zap.Logger
	notifier *systemd.Notifier
	reloader *reloader
	teardown teardown

	serving    context.Context // ends when the daemon is told to end
	background context.Context // of goroutines beside the service
	end        context.CancelFunc
	running    sync.WaitGroup
	reloading  sync.WaitGroup // the reloader, which blocks while what it applies does
}

func newLifecycle(log *zap.Logger, hangups chan os.Signal) *lifecycle {
	notifier := systemd.NewNotifier(log)
	l := &lifecycle{log: log, notifier: notifier, reloader: newReloader(log, notifier, hangups)}
	l.background, l.end = context.WithCancel(context.Background())
	return l
}

// call calls body, and reports the end of ctx to the manager.
func (l *lifecycle) call(ctx context.Context, body func() error) error {
	serving, stop := context.WithCancel(ctx)
	l.serving = serving
	defer l.running.Wait()
	defer l.end()
	l.running.Go(func() {
		select {
		case <-ctx.Done():
			l.notifier.Stopping(l.background, stopExtension)
		case <-l.background.Done():
		}
	})
	return l.teardown.bound(ctx, l.log, body, func() {
		stop()
		l.reloading.Wait()
	})
}

// started reports to the manager that the service runs. From then on SIGHUP reloads. If the manager
// has a watchdog, started also starts reporting that the workers make progress.
func (l *lifecycle) started(workers func() []*datapath.Worker) error {
	timeout, err := systemd.WatchdogTimeout()
	if err != nil {
		return err
	}
	l.notifier.Ready()
	l.reloading.Go(func() { l.reloader.run(l.serving) })
	if timeout == 0 {
		return nil
	}
	watched := func() []systemd.Worker {
		var all []systemd.Worker
		for _, worker := range workers() {
			all = append(all, worker)
		}
		return all
	}
	l.running.Go(func() { l.notifier.FeedWatchdog(l.background, timeout, watched) })
	return nil
}

// Started reports to the service manager that the daemon serves. From then on, its watchdog watches
// the workers that workers returns at each check. Call it once, when the daemon listens.
func (e *Environment) Started(workers func() []*datapath.Worker) error {
	if err := e.Register(securityInfo(e.status.security)); err != nil {
		return err
	}
	if e.TLS != nil {
		if err := e.Register(certificateExpiry(e.TLS)); err != nil {
			return err
		}
	}
	return e.lifecycle.started(workers)
}

// stopExtension is the time without a report after which the service manager may kill a daemon that
// ends.
const stopExtension = 30 * time.Second

// defaultTeardownTimeout bounds the end of a daemon after its drain.
const defaultTeardownTimeout = time.Minute

// teardown bounds the end of a daemon. If the end is stuck, it logs where, and the process exits.
type teardown struct {
	service atomic.Pointer[Drainable] // nil if it has nothing to drain
	timeout time.Duration             // 0 means the default
}

// Drainable is a service that completes requests in flight before it ends.
type Drainable interface {
	// DrainTimeout returns how long the requests may take.
	DrainTimeout() retry.Bound
	// Drained returns a channel that is closed when the service has stopped waiting for them.
	Drained() <-chan struct{}
}

// BoundTeardown ends the process if the end of the service is stuck: defaultTeardownTimeout after
// its drain, which must end within its timeout.
func (e *Environment) BoundTeardown(service Drainable) {
	e.lifecycle.teardown.service.Store(&service)
}

// bound calls body, which must return soon after the end of ctx, and then finish, which must return
// soon in any case.
func (t *teardown) bound(ctx context.Context, log *zap.Logger, body func() error, finish func(),
) error {
	var result error // of body, once served is closed
	served, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		result = body()
		close(served)
		finish()
	}()
	select {
	case <-served:
	case <-ctx.Done():
	}
	timeout := cmp.Or(t.timeout, defaultTeardownTimeout)
	if ctx.Err() != nil {
		t.awaitDrain(ctx, log, timeout, served)
	}
	overdue := time.NewTimer(timeout)
	defer overdue.Stop()
	select {
	case <-ended:
		return result
	case <-overdue.C:
	}
	// In the message and not in a field, which would not be readable.
	log.Error("the teardown is stuck, goroutines:\n" + stacks())
	err := status.Errorf(status.TimeOut,
		"the teardown has not ended within %v after the drain: the process ends without it; the log says where it is stuck",
		timeout)
	select {
	case <-served:
		return errors.Join(result, err)
	default:
		return err
	}
}

// awaitDrain waits until the service has drained, or has ended without that.
func (t *teardown) awaitDrain(ctx context.Context, log *zap.Logger, timeout time.Duration,
	served <-chan struct{}) {
	drain, drained := retry.Within(0), (<-chan struct{})(nil)
	if service := t.service.Load(); service != nil {
		drain, drained = (*service).DrainTimeout(), (*service).Drained()
	}
	log.Info("ending", zap.NamedError("reason", context.Cause(ctx)),
		zap.Stringer("at_most", drain.Plus(timeout)))
	draining, cancel := drain.Context(context.Background())
	defer cancel()
	select {
	case <-served:
	case <-drained:
	case <-draining.Done():
	}
}

// maxStacksBytes is the largest amount of stack traces that is logged.
const maxStacksBytes = 16 << 20

// stacks returns the stack traces of all goroutines.
func stacks() string {
	for size := 256 << 10; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, true); n < size || size >= maxStacksBytes {
			return string(text[:n])
		}
	}
}
