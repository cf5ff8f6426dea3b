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

// LinkState is the state of a channel's standing connection to one of its targets.
type LinkState uint8

const (
	// LinkConnecting means that an attempt to connect is under way.
	LinkConnecting LinkState = iota
	// LinkReady means that new sessions can be served.
	LinkReady
	// LinkWaiting means that the target is down and the next attempt is scheduled.
	LinkWaiting
	// LinkGivenUp means that all attempts have failed and none is scheduled.
	LinkGivenUp
	// LinkStandBy means that the target waits to take the volume over from another one, and that
	// the next attempt is scheduled.
	LinkStandBy
)

// String returns the name in logs, metrics and status.
func (s LinkState) String() string {
	switch s {
	case LinkConnecting:
		return "connecting"
	case LinkReady:
		return "ready"
	case LinkWaiting:
		return "waiting"
	case LinkGivenUp:
		return "given-up"
	case LinkStandBy:
		return "stand-by"
	}
	return "invalid"
}

// LinkStatus describes a channel's standing connection to one of its targets.
type LinkStatus struct {
	State LinkState
	// Since is when the link entered State.
	Since time.Time
	// Attempt is the number of the latest attempt since the target was last found to be down, or of
	// the next one while the link is waiting. 0 means that none was necessary. Attempts on behalf
	// of a waiting session do not count. Attempts is how many there may be.
	Attempt  int
	Attempts retry.Count
	// NextTry is when the next attempt begins; zero unless waiting or stand-by.
	NextTry time.Time
	// LastError is why the target was last found to be down; nil while it is ready.
	LastError error
	// Connects and Losses count how often the connection was established and lost. Failures counts
	// failed attempts, and FailuresByCode those with each code; it is never changed, but replaced.
	Connects       uint64
	Losses         uint64
	Failures       uint64
	FailuresByCode map[status.Code]uint64
	// Postponed counts attempts that the target has answered by a time to try again. They are no
	// failures.
	Postponed uint64
	// Volume is the target's description of the volume, and TargetSoftware its name and version, as
	// of the last time it was ready; zero if it never was.
	Volume         controlmsg.OpenVolumeReply
	TargetSoftware string
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
