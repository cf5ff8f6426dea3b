package controlmsg

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// waitError is what a wait fails with when its context has ended:
// status.TimeOut, or status.Shutdown if the context was cancelled.
func waitError(ctx context.Context, what string) error {
	cause := context.Cause(ctx)
	return status.Errorf(status.CodeOf(cause), "%s: %w", what, cause)
}
