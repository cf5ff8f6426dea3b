package target

import "time"

// SetReleaseTimeout replaces the time that the release of a session may take. Run must not have
// been called.
func (t *Target) SetReleaseTimeout(timeout time.Duration) { t.releaseTimeout = timeout }
