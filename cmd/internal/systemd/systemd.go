// SPDX-License-Identifier: Apache-2.0

// Package systemd reports the state of a daemon to the service manager, by the protocol of
// sd_notify(3): started, reloading, stopping, a status line, and the watchdog's sign of life. It
// sends nothing if no service manager listens.
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

// Notifier reports to the service manager of this process. Its methods may be called concurrently.
type Notifier struct {
	log  *zap.Logger
	send func(state string) error

	mu     sync.Mutex // guards status
	status string     // sent last
}

// NewNotifier returns a notifier for the service manager in $NOTIFY_SOCKET, if any.
func NewNotifier(log *zap.Logger) *Notifier {
	return &Notifier{log: log, send: func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	}}
}

// Ready reports that the daemon has started, or finished reloading.
func (n *Notifier) Ready() { n.notify(daemon.SdNotifyReady) }

// Reloading reports that the daemon starts to apply a new configuration. Ready must follow.
func (n *Notifier) Reloading() {
	n.notify(daemon.SdNotifyReloading + "\n" + strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// reportsPerExtension is the number of reports within the time that each of them asks for.
const reportsPerExtension = 3

// Stopping reports that the daemon has started to end, and keeps asking for more time until ctx
// ends. So the end may take longer than the manager's own bound (TimeoutStopSec= of the unit), but
// a process that reports nothing for the time of an extension is killed.
func (n *Notifier) Stopping(ctx context.Context, extension time.Duration) {
	request := fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extension.Microseconds())
	n.notify(daemon.SdNotifyStopping + "\n" + request)
	ticker := time.NewTicker(extension / reportsPerExtension)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			n.notify(request)
		}
	}
}

// Status sets the line that "systemctl status" shows. It does not send the same line again.
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

// notify sends a state. It only logs a failure: a daemon must not end because its manager does not
// listen.
func (n *Notifier) notify(state string) {
	if err := n.send(state); err != nil {
		name, _, _ := strings.Cut(state, "\n")
		n.log.Warn("notify service manager", zap.String("state", name), zap.Error(err))
	}
}

// Worker is a thread that the watchdog watches.
type Worker interface {
	// CheckAlive waits until the thread has gone through its loop, after waking it if it sleeps. It
	// fails if ctx ends first, and with status.Shutdown if the thread has been stopped.
	CheckAlive(ctx context.Context) error
}

// checksPerTimeout is the number of checks within the manager's timeout. A single late check, on a
// busy machine, does no harm.
const checksPerTimeout = 3

// WatchdogTimeout returns the time without a sign of life after which the manager kills this
// process (WatchdogSec= of the unit), or 0 if there is no watchdog.
func WatchdogTimeout() (time.Duration, error) {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0, fmt.Errorf("service manager's watchdog: %w", err)
	}
	return timeout, nil
}

// FeedWatchdog reports a sign of life to the manager each time that every worker of workers() has
// gone through its loop, until ctx ends. It logs a stuck worker; the manager then kills the process
// after timeout.
func (n *Notifier) FeedWatchdog(ctx context.Context, timeout time.Duration,
	workers func() []Worker) {
	interval := timeout / checksPerTimeout
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := checkAll(ctx, interval, workers()); ctx.Err() != nil {
			return
		} else if err != nil {
			n.log.Error("a worker makes no progress, so the watchdog will end the process",
				zap.Duration("timeout", timeout), zap.Error(err))
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
		// A worker that has been stopped is no longer part of the daemon.
		if err := worker.CheckAlive(ctx); err != nil && !errors.Is(err, status.Shutdown) {
			return fmt.Errorf("worker %d: %w", i, err)
		}
	}
	return nil
}
