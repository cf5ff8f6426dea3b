package relay

import "time"

// SetEndTimes changes the timeout of a session's end and the pause between attempts, and returns a
// function that restores them.
func SetEndTimes(timeout, pause time.Duration) (restore func()) {
	formerTimeout, formerPause := endTimeout, retryPause
	endTimeout, retryPause = timeout, pause
	return func() { endTimeout, retryPause = formerTimeout, formerPause }
}
