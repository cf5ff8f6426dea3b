package service

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/systemd"
	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// lifecycle is what a daemon tells its service manager, and is told by it.
type lifecycle struct {
	log      *zap.Logger
	notifier *systemd.Notifier
	hangups  chan os.Signal

	teardown teardown

	background context.Context // of what runs beside the service
	end        context.CancelFunc
	running    sync.WaitGroup

	mu      sync.Mutex // guards reloads
	reloads []func() error
}

func newLifecycle(log *zap.Logger) *lifecycle {
	l := &lifecycle{log: log, notifier: systemd.NewNotifier(log), hangups: make(chan os.Signal, 1)}
	l.background, l.end = context.WithCancel(context.Background())
	return l
}

// call calls body. Meanwhile SIGHUP reloads, and the manager is told when ctx
// ends.
func (l *lifecycle) call(ctx context.Context, body func() error) error {
	signal.Notify(l.hangups, syscall.SIGHUP)
	defer signal.Stop(l.hangups)
	l.running.Go(l.reloadAtHangups)
	defer l.running.Wait()
	defer l.end()
	stop := context.AfterFunc(ctx, func() { l.notifier.Stopping(l.teardown.longest()) })
	defer stop()
	return l.teardown.bound(ctx, l.log, body)
}

func (l *lifecycle) reloadAtHangups() {
	for {
		select {
		case <-l.background.Done():
			return
		case <-l.hangups:
			l.reload()
		}
	}
}

// reload calls everything that was registered for it. What fails leaves things
// as they were, so that the daemon goes on.
func (l *lifecycle) reload() {
	l.notifier.Reloading()
	defer l.notifier.Ready()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, apply := range l.reloads {
		errs = append(errs, apply())
	}
	if err := errors.Join(errs...); err != nil {
		l.log.Error("reload: what failed stays as it was", zap.Error(err))
		return
	}
	l.log.Info("reloaded")
}

// started tells the manager that the service runs and, if it wants to know,
// from now on that its workers do.
func (l *lifecycle) started(workers func() []*datapath.Worker) error {
	timeout, err := systemd.WatchdogTimeout()
	if err != nil {
		return err
	}
	l.notifier.Ready()
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

// OnReload has apply called at every SIGHUP.
func (e *Environment) OnReload(apply func() error) {
	e.lifecycle.mu.Lock()
	defer e.lifecycle.mu.Unlock()
	e.lifecycle.reloads = append(e.lifecycle.reloads, apply)
}

// Started tells the service manager that the daemon serves, and lets its
// watchdog watch the workers that there are at the time of each look. It is
// called once, when the daemon listens.
func (e *Environment) Started(workers func() []*datapath.Worker) error {
	if e.TLS != nil {
		if err := e.Register(certificateExpiry(e.TLS)); err != nil {
			return err
		}
	}
	return e.lifecycle.started(workers)
}
