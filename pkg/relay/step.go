package relay

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// step is a step of a session's end that a device carries out, and may never finish. Its zero value
// is ready for use.
type step struct {
	ended chan error // nil unless a call is under way
}

// take calls carryOut, and fails if that has not returned when ctx ends. The next take then waits
// for the same call instead of beginning another one.
func (p *step) take(ctx context.Context, what string, carryOut func() error) error {
	if p.ended == nil {
		ended := make(chan error, 1)
		p.ended = ended
		go func() { ended <- carryOut() }()
	}
	select {
	case err := <-p.ended:
		p.ended = nil
		return err
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "%s: the device has not answered: %w", what,
			context.Cause(ctx))
	}
}
