// SPDX-License-Identifier: Apache-2.0

package client

import "github.com/zc-relay/zc-relay/pkg/status"

// ErrClosed is the error of everything that uses a volume, or a queue of it, after Close or Abort,
// and of calls that Close or Abort has cut off. It matches os.ErrClosed and status.Shutdown.
var ErrClosed = status.ErrClosed

// IsConnectionLost reports whether code means that the connection to the volume is gone, so that
// further requests would fail too.
func IsConnectionLost(code status.Code) bool {
	switch code {
	case status.ConnectionReset, status.ConnectionAborted, status.NotConnected, status.Shutdown,
		status.InUse: // ErrPreempted
		return true
	}
	return false
}

// CanRepeat reports whether a request that failed with code may succeed in the next session,
// because its session ended before its outcome was known. A preempted volume has none.
func CanRepeat(code status.Code) bool {
	return IsConnectionLost(code) && code != status.InUse || code == status.TimeOut
}

// isSessionEnd reports whether a response with this code means that no later request of the session
// will succeed.
func isSessionEnd(code status.Code) bool {
	switch code {
	case status.ConnectionReset, status.Shutdown, status.TimeOut, status.InUse:
		return true
	}
	return false
}
