package relay

import (
	"fmt"
	"strings"
)

// maxReasons bounds how many reasons a Readiness has: the status of the relay has all of them.
const maxReasons = 3

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
