// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/states"
)

// State is whether a volume serves requests.
type State string

// The states of a volume; States says what they mean.
const (
	Opening State = "opening"
	Serving State = "serving"
	StandBy State = "stand-by"
	Failed  State = "failed"
	Closed  State = "closed"
)

// States holds all states. A volume is usable if the target serves it, or will when it is its turn.
// A target is ready if it has such a volume.
var States = states.Table[State]{
	{State: Opening, Text: "the target opens it, and serves it as soon as that has succeeded"},
	{State: Serving, Text: "sessions use it", IsUsable: true},
	{State: StandBy, Text: "another target owns it, and this one takes over when that one is " +
		"gone", IsUsable: true},
	{State: Failed, Text: "it cannot be opened, and the target tries again; or it rejects " +
		"requests, or all but reads, until it is reopened", Alerts: true},
	{State: Closed, Text: "it is being closed, or has been"},
}

// Status is the state of a volume at one moment.
type Status struct {
	State State
	// Reason is why the volume is a stand-by or has failed, and otherwise nil.
	Reason error
	// Since is when the volume entered State.
	Since time.Time
	// IsReadable means that a volume that has failed still serves reads.
	IsReadable bool
	// Attempt counts the attempts to open a volume that cannot be opened, and NextTry is when the
	// next one begins; zero otherwise.
	Attempt int
	NextTry time.Time
}

// ReasonText returns the text of Reason, "" for none.
func (s *Status) ReasonText() string {
	if s.Reason == nil {
		return ""
	}
	return s.Reason.Error()
}
