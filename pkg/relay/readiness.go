package relay

import (
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// readiness tells the program whether any channel can serve new sessions.
type readiness struct {
	mu    sync.Mutex // held while telling, so that the last word is the latest
	ended bool
	tell  func(error)
}

// tellReadiness is called whenever a link to a target has changed.
func (r *Relay) tellReadiness() {
	r.ready.mu.Lock()
	defer r.ready.mu.Unlock()
	if r.ready.ended {
		return
	}
	r.ready.tell(r.unreadiness())
}

// shutDown makes the relay not ready for good.
func (r *readiness) shutDown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.tell(errShuttingDown)
}

// unreadiness is nil if any channel can serve new sessions, and otherwise why
// the first one cannot.
func (r *Relay) unreadiness() error {
	if r.draining.Load() != nil {
		return errDraining
	}
	var first error
	for _, c := range r.snapshot() {
		if c.isRetiring() {
			continue
		}
		s, _ := c.link.snapshot()
		if s.State == LinkReady {
			return nil
		}
		if first == nil {
			first = c.link.unavailable(&s)
		}
	}
	if first == nil {
		return status.Errorf(status.NotFound, "no channel is configured")
	}
	return first
}

// downError gives an error text about a target that is down, caused by cause,
// the code NotConnected, unless the target itself has refused with a code
// that tells more.
func downError(cause error, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if cause == nil {
		return status.Errorf(status.NotConnected, "%s", text)
	}
	switch status.CodeOf(cause) {
	case status.ConnectionReset, status.ConnectionAborted, status.TimeOut, status.Shutdown, status.OperatingSystem, status.Unknown:
		return status.Errorf(status.NotConnected, "%s: %w", text, cause)
	}
	return fmt.Errorf("%s: %w", text, cause)
}
