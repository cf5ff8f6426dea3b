package rdma

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// RejectedError reports that the accepting side rejected a connection request. Connect returns it,
// wrapped. Its code is status.ConnectionAborted.
type RejectedError struct {
	// Reason is what the accepting side passed to Request.Reject.
	Reason []byte
}

// Error quotes the reason, which may hold any bytes, but not more than MaxPrivateData of them.
func (e *RejectedError) Error() string {
	if len(e.Reason) == 0 {
		return "the accepting side rejected the connection"
	}
	return fmt.Sprintf("the accepting side rejected the connection: %q",
		e.Reason[:min(len(e.Reason), MaxPrivateData)])
}

// Unwrap returns the code of the rejection.
func (e *RejectedError) Unwrap() error { return status.ConnectionAborted }
