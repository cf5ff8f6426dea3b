package rdma

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// RejectedError says that the accepting side refused a connection request.
// Connect returns it, wrapped; its code is status.ConnectionAborted.
type RejectedError struct {
	// Reason is what the accepting side passed to Request.Reject.
	Reason []byte
}

// Error quotes the reason, which may hold any bytes.
func (e *RejectedError) Error() string {
	if len(e.Reason) == 0 {
		return "the accepting side refused the connection"
	}
	return fmt.Sprintf("the accepting side refused the connection: %q", e.Reason)
}

// Unwrap gives the code under which the refusal is reported.
func (e *RejectedError) Unwrap() error { return status.ConnectionAborted }
