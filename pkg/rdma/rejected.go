// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bytes"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// RejectedError reports that the accepting side rejected a connection request. Connect returns it,
// wrapped. Its code is status.ConnectionAborted.
type RejectedError struct {
	// Reason is what the accepting side passed to Request.Reject.
	Reason []byte
}

// Error quotes the reason, which may hold any bytes, but not more than MaxPrivateData of them. It
// leaves out the zeros with which connection managers of InfiniBand and RoCE pad it.
func (e *RejectedError) Error() string {
	reason := bytes.TrimRight(e.Reason[:min(len(e.Reason), MaxPrivateData)], "\x00")
	if len(reason) == 0 {
		return "the accepting side rejected the connection"
	}
	return fmt.Sprintf("the accepting side rejected the connection: %q", reason)
}

// Unwrap returns the code of the rejection.
func (e *RejectedError) Unwrap() error { return status.ConnectionAborted }
