// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"errors"
	"maps"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// LinkState is the state of a channel's standing connection to one of its targets, by its name in
// logs, metrics, and status.
type LinkState string

const (
	// LinkConnecting means that an attempt to connect is under way.
	LinkConnecting LinkState = "connecting"
	// LinkReady means that new sessions can be served.
	LinkReady LinkState = "ready"
	// LinkWaiting means that the target is down and the next attempt is scheduled.
	LinkWaiting LinkState = "waiting"
	// LinkGivenUp means that all attempts have failed and none is scheduled.
	LinkGivenUp LinkState = "given-up"
	// LinkStandBy means that the target waits to take the volume over from another one, and that
	// the next attempt is scheduled.
	LinkStandBy LinkState = "stand-by"
)

// IsUsable reports whether the target serves, or is ready to take over from the one that does.
func (s LinkState) IsUsable() bool { return s == LinkReady || s == LinkStandBy }

// LinkStatus describes a channel's standing connection to one of its targets.
type LinkStatus struct {
	State LinkState `json:"state"`
	// Since is when the link entered State.
	Since time.Time `json:"since"`
	// LastError is why the target was last found to be down; nil while it is ready. Reason is its
	// text.
	LastError error  `json:"-"`
	Reason    string `json:"reason,omitempty"`
	// Attempt is the number of the latest attempt since the target was last found to be down, or of
	// the next one while the link is waiting. 0 means that none was necessary. Attempts on behalf
	// of a waiting session do not count. Attempts is how many there may be, as is MaxAttempts,
	// which is nil for any number.
	Attempt     int         `json:"attempt"`
	Attempts    retry.Count `json:"-"`
	MaxAttempts *int        `json:"max_attempts"`
	// NextAttempt is when the next attempt begins; nil unless waiting or stand-by.
	NextAttempt *time.Time `json:"next_attempt_at"`
	// Connects and Losses count how often the connection was established and lost. Failures counts
	// failed attempts, and FailuresByCode those with each code; it is never changed, but replaced.
	Connects       uint64                 `json:"connects"`
	Losses         uint64                 `json:"losses"`
	Failures       uint64                 `json:"failures"`
	FailuresByCode map[status.Code]uint64 `json:"-"`
	// Postponed counts attempts that the target has answered by a time to try again. They are no
	// failures.
	Postponed uint64 `json:"-"`
	// Volume is the target's description of the volume, and TargetSoftware its name and version, as
	// of the last time it was ready; zero if it never was.
	Volume         controlmsg.OpenVolumeReply `json:"-"`
	TargetSoftware string                     `json:"-"`
	role           role
}

// role is what the target of a link is to the volume, as far as the channel knows.
//
//	event                      may own it    stand-by          doubtful
//	it is ready                              → may own it¹
//	it answers: a stand-by     → stand-by                      → stand-by
//	another one takes over²    → doubtful
//
//	¹ It has taken the volume over.
//	² While this one is ready. A target that is down answers before it is used again.
type role uint8

const (
	mayOwn   role = iota // it has not said otherwise
	standsBy             // it said so when it last answered
	doubtful             // a target that was a stand-by has taken the volume over from it
)

// roleEvent is what changes a role.
type roleEvent uint8

const (
	isReady roleEvent = iota
	answersStandBy
	anotherTakesOver
)

// nextRole is the table of role.
var nextRole = [...][3]role{
	isReady:          {mayOwn: mayOwn, standsBy: mayOwn, doubtful: doubtful},
	answersStandBy:   {mayOwn: standsBy, standsBy: standsBy, doubtful: standsBy},
	anotherTakesOver: {mayOwn: doubtful, standsBy: standsBy, doubtful: doubtful},
}

// describe sets what only the status shows.
func (s *LinkStatus) describe() {
	if s.LastError != nil {
		s.Reason = s.LastError.Error()
	}
	if n, isLimited := s.Attempts.Number(); isLimited {
		s.MaxAttempts = new(int(n))
	}
}

// untilNextAttempt returns the time until the next attempt; 0 if none is scheduled.
func (s *LinkStatus) untilNextAttempt() time.Duration {
	if s.NextAttempt == nil {
		return 0
	}
	return time.Until(*s.NextAttempt)
}

// hasOutcome reports whether an attempt to connect has had an outcome.
func (s *LinkStatus) hasOutcome() bool {
	return s.State == LinkReady || s.LastError != nil || s.Connects > 0
}

// isVacant reports whether nobody can have listened at the address at the last attempt.
func (s *LinkStatus) isVacant() bool {
	return errors.Is(s.LastError, syscall.ECONNREFUSED) || errors.Is(s.LastError, errNoRoute)
}

// countFailure counts a failed attempt. A target may send any code, so those without a name count
// together.
func (s *LinkStatus) countFailure(code status.Code) {
	if !code.Known() {
		code = status.Unknown
	}
	all := maps.Clone(s.FailuresByCode)
	if all == nil {
		all = make(map[status.Code]uint64)
	}
	all[code]++
	s.Failures, s.FailuresByCode = s.Failures+1, all
}
