package dmacopy

import (
	"context"
	"time"
)

// side is what both sides of a copy have.
type side struct {
	config *Config
	peer   *peer
	own    *input // nil if the other side has the file
	begun  time.Time
}

// run copies, in the messages of this package or of the original application,
// and tells the other side of a failure.
func (s *side) run(ctx context.Context, native, original func(context.Context) (Result, error)) (result Result, err error) {
	farewell := s.peer.farewell
	defer func() { s.peer.close(err, farewell) }()
	if s.config.Original {
		farewell = originalFarewell(s.peer)
		result, err = original(ctx)
	} else {
		s.peer.keepAlive(ctx)
		result, err = native(ctx)
	}
	result.Duration = time.Since(s.begun)
	return result, cause(ctx, err)
}
