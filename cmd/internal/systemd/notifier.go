// Package systemd tells the service manager how a daemon is, by the protocol
// of sd_notify(3): started, reloading, stopping, a line of status, and that it
// is alive. Without a service manager that listens, nothing is sent.
package systemd

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
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
