// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"maps"
	"slices"
	"time"
)

// SetEndTimes changes the timeout of a session's end and the pause between attempts, for relays
// that are created from then on, and returns a function that restores them.
func SetEndTimes(timeout, pause time.Duration) (restore func()) {
	former := usualEndTimes
	usualEndTimes.attempt, usualEndTimes.pause = timeout, pause
	return func() { usualEndTimes = former }
}

// SetAnswerTimeout changes how long a device may keep a request of a session that has ended, for
// relays that are created from then on, and returns a function that restores it.
func SetAnswerTimeout(timeout time.Duration) (restore func()) {
	former := usualEndTimes
	usualEndTimes.answer = timeout
	return func() { usualEndTimes = former }
}

// StoppedByMessage returns, for each session with an initiator of 2.10, a channel that is closed
// when the time begins within which the initiator has to end the session.
func (r *Relay) StoppedByMessage() (stopped []<-chan struct{}) {
	for _, c := range r.snapshot() {
		c.mu.Lock()
		sessions := slices.Collect(maps.Values(c.sessions))
		c.mu.Unlock()
		for _, s := range sessions {
			client := dialectClient{dialectClientConfig: dialectClientConfig{session: s}}
			stopped = append(stopped, client.Stopped())
		}
	}
	return stopped
}

// SetDoubtAge changes how long a device is in use before an error can make the relay doubt it.
func SetDoubtAge(age time.Duration) (restore func()) {
	former := doubtAge
	doubtAge = age
	return func() { doubtAge = former }
}

// SetProbeInterval changes how often channels that are created from then on probe the data path,
// and returns a function that restores it.
func SetProbeInterval(interval time.Duration) (restore func()) {
	former := probeInterval
	probeInterval = interval
	return func() { probeInterval = former }
}
