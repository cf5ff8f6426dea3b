// SPDX-License-Identifier: Apache-2.0

// Package recurrence paces what a log says about a failure that occurs again and again.
package recurrence

import (
	"time"

	"go.uber.org/zap"
)

// The pauses between the lines about a failure, which double.
const (
	FirstPause   = 10 * time.Second
	LongestPause = 5 * time.Minute
)

// forgottenAfter is the silence after which an occurrence counts as the first of another failure.
const forgottenAfter = 2 * LongestPause

// Recurrence counts the occurrences of one failure. The zero value has none. It is not for
// concurrent use.
type Recurrence struct {
	begun, latest time.Time
	count         int
	pause         time.Duration // between the former line and the next
	due           time.Time     // of the next line
}

// Occur counts an occurrence, and reports whether the log needs a line about it: about the first
// one, and then now and then while they continue.
func (r *Recurrence) Occur(now time.Time) bool {
	if r.count == 0 || now.Sub(r.latest) > forgottenAfter {
		*r = Recurrence{begun: now, latest: now, count: 1, pause: FirstPause,
			due: now.Add(FirstPause)}
		return true
	}
	r.count++
	r.latest = now
	if now.Before(r.due) {
		return false
	}
	r.pause = min(2*r.pause, LongestPause)
	r.due = now.Add(r.pause)
	return true
}

// Fields describes for the log how many attempts have failed, and for how long; nothing about the
// first one.
func (r *Recurrence) Fields() []zap.Field {
	if r.count == 1 {
		return nil
	}
	return []zap.Field{zap.Int("attempts", r.count),
		zap.Duration("for", r.latest.Sub(r.begun).Round(time.Second))}
}
