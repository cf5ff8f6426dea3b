// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxReasons bounds how many reasons a Readiness has: the status of the relay has all of them.
const maxReasons = 3

// probeInterval is how often a channel probes the data path to each target that is ready: about as
// rarely as a monitoring system asks, so that thousands of channels do not burden a target.
var probeInterval = 30 * time.Second

// Readiness says how many of the relay's channels can serve new sessions.
type Readiness struct {
	// Err is why the relay can serve no new sessions at all; nil if it can.
	Err error
	// Channels is the number of configured channels, and Serving how many of them can serve new
	// sessions.
	Channels, Serving int
	// Reasons says of the first channels that cannot why not.
	Reasons []error
}

// String says how many channels serve, and why others do not.
func (r Readiness) String() string {
	text := fmt.Sprintf("serving %d of %d channels", r.Serving, r.Channels)
	var reasons []string
	for _, reason := range r.Reasons {
		reasons = append(reasons, reason.Error())
	}
	if more := r.Channels - r.Serving - len(reasons); more > 0 && len(reasons) > 0 {
		reasons = append(reasons, fmt.Sprintf("%d more", more))
	}
	if len(reasons) == 0 {
		return text
	}
	return text + ": " + strings.Join(reasons, "; ")
}

// reportReadiness is called whenever the readiness may have changed.
func (r *Relay) reportReadiness() {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	if !r.ending {
		r.config.OnReady(r.readiness())
	}
}

// readiness returns how many channels can serve new sessions. One that can makes the relay ready.
func (r *Relay) readiness() Readiness {
	var now Readiness
	for _, c := range r.snapshot() {
		if c.isRemoved() {
			continue
		}
		now.Channels++
		if c.isAvailable() {
			now.Serving++
			continue
		}
		if len(now.Reasons) < maxReasons {
			if err := c.unavailable(); err != nil { // it may have become available
				now.Reasons = append(now.Reasons, err)
			}
		}
	}
	switch {
	case r.draining.Load() != nil:
		now.Err = errDraining
	case now.Channels == 0:
		now.Err = status.Errorf(status.NotFound, "the relay has no channels: add one")
	case now.Serving > 0:
	case len(now.Reasons) == 0:
		now.Serving++ // the only one has just become available
	case now.Channels == 1:
		now.Err = now.Reasons[0]
	default:
		now.Err = fmt.Errorf("serving 0 of %d channels: %w", now.Channels, now.Reasons[0])
	}
	return now
}

// isAvailable reports whether the channel can serve new sessions.
func (c *channel) isAvailable() bool {
	s := c.listenStatus()
	return ChannelStates.Of(s.State).IsUsable && c.targets.IsReady()
}

// unavailable returns why the channel cannot serve new sessions; nil if it can.
func (c *channel) unavailable() error {
	s := c.listenStatus()
	switch {
	case ChannelStates.Of(s.State).IsUsable:
		return c.targets.Unavailable()
	case s.LastError == nil:
		return fmt.Errorf("channel %v is %s", c.id, s.State)
	}
	return fmt.Errorf("channel %v: clients cannot connect: %w", c.id, s.LastError)
}
