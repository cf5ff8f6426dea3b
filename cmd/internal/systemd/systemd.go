// Package systemd reports the state of a daemon to the service manager, by the protocol of
// sd_notify(3): started, reloading, stopping, a status line, and the watchdog's sign of life. It sends
// nothing if no service manager listens.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Notifier speaks to the service manager of this process. Its methods may be
// called concurrently.
type Notifier struct {
	log  *zap.Logger
	send func(state string) error

	mu     sync.Mutex // guards status
	status string     // sent last
}

// NewNotifier makes a notifier for the manager that the environment names
// ($NOTIFY_SOCKET), if there is one.
func NewNotifier(log *zap.Logger) *Notifier {
	return &Notifier{log: log, send: func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	}}
}

// Ready tells that the daemon has started, or has done what Reloading began.
func (n *Notifier) Ready() { n.notify(daemon.SdNotifyReady) }

// Reloading tells that the daemon is about to apply a new configuration.
// Ready must follow.
func (n *Notifier) Reloading() {
	n.notify(daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// Stopping tells that the daemon has begun to end, and may take that long.
func (n *Notifier) Stopping(bound time.Duration) {
	n.notify(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, bound.Microseconds()))
}

// Status sets the line that "systemctl status" shows. The same line again is
// not sent.
func (n *Notifier) Status(text string) {
	text = strings.ReplaceAll(text, "\n", "; ")
	n.mu.Lock()
	defer n.mu.Unlock()
	if text == n.status {
		return
	}
	n.status = text
	n.notify("STATUS=" + text)
}

// notify reports a failure and goes on: a daemon that serves must not end
// because its manager does not listen.
func (n *Notifier) notify(state string) {
	if err := n.send(state); err != nil {
		name, _, _ := strings.Cut(state, "\n")
		n.log.Warn("service manager was not told", zap.String("state", name), zap.Error(err))
	}
}

// Worker is a thread whose life is watched.
type Worker interface {
	// CheckAlive makes the thread go through its loop, waking it if it
	// sleeps, and fails if it has not by the end of ctx. One that has been
	// stopped fails with status.Shutdown.
	CheckAlive(ctx context.Context) error
}

// checksPerTimeout is how often the workers are checked within the time after
// which the manager takes the daemon for dead. One check that is late, on a
// busy machine, does no harm.
const checksPerTimeout = 3

// WatchdogTimeout is after how long without a sign of life the manager ends
// this process (WatchdogSec= of the unit), or 0 if it does not.
func WatchdogTimeout() (time.Duration, error) {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("service manager's watchdog: %w", err)
	}
	return timeout, nil
}

// FeedWatchdog gives the manager a sign of life each time that every worker
// of workers() has gone through its loop, until ctx ends. One that is stuck is complained
// about; the manager then ends the process when timeout has passed.
func (n *Notifier) FeedWatchdog(ctx context.Context, timeout time.Duration, workers func() []Worker) {
	interval := timeout / checksPerTimeout
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := checkAll(ctx, interval, workers()); ctx.Err() != nil {
			return
		} else if err != nil {
			n.log.Error("a worker makes no progress, the watchdog is not fed", zap.Duration("timeout", timeout), zap.Error(err))
		} else {
			n.notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func checkAll(ctx context.Context, bound time.Duration, workers []Worker) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for i, worker := range workers {
		// A worker that was stopped meanwhile is no part of the daemon any more.
		if err := worker.CheckAlive(ctx); err != nil && !errors.Is(err, status.Shutdown) {
			return fmt.Errorf("worker %d: %w", i, err)
		}
	}
	return nil
}
