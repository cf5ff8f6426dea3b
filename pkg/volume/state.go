package volume

import (
	"fmt"
	"strings"
	"time"
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

// Meaning is what a state means to everybody who shows it or depends on it.
type Meaning struct {
	State State
	Text  string // for people
	// IsUsable means that the target is of use with the volume in this state: it serves the volume,
	// or will when it is its turn. A target is ready if it has such a volume.
	IsUsable bool
	// Alerts means that somebody has to do something about it.
	Alerts bool
}

// States holds all states.
var States = []Meaning{
	{Opening, "the target opens it, and serves it as soon as that has succeeded", false, false},
	{Serving, "sessions use it", true, false},
	{StandBy, "another target owns it, and this one takes over when that one is gone", true, false},
	{Failed, "it cannot be opened, and the target tries again; or it rejects requests, or all but " +
		"reads, until it is reopened", false, true},
	{Closed, "it is being closed, or has been", false, false},
}

// Means returns what a state means.
func (s State) Means() Meaning {
	for _, m := range States {
		if m.State == s {
			return m
		}
	}
	return Meaning{State: s}
}

// StateNames lists the names of all states, for help texts.
func StateNames() string {
	var names []string
	for _, m := range States {
		names = append(names, string(m.State))
	}
	last := len(names) - 1
	return fmt.Sprintf("%s, or %s", strings.Join(names[:last], ", "), names[last])
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
