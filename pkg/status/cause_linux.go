// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cause says more closely than a Code why a volume has failed a request: an error number of Linux
// below CauseTruncated, or one of the constants. The response carries it to the client. A Cause is
// an error; if it is an error number, errors.Is matches the syscall.Errno.
type Cause uint32

const (
	// CauseUnknown is any other cause, or none.
	CauseUnknown Cause = 0
	// CauseTruncated means that the volume's file or device has become shorter than the volume.
	CauseTruncated Cause = 200
	// CauseVolumeFailed means that the volume rejects requests because of an earlier failure.
	CauseVolumeFailed Cause = 201

	causeCount Cause = 202
)

// CauseCount is the number of causes, for arrays indexed by Cause.
const CauseCount = int(causeCount)

// Known reports whether c is defined. A peer may send any number.
func (c Cause) Known() bool { return c < causeCount }

// String returns the name of the error number, such as "ENOSPC", or what stands in its place.
func (c Cause) String() string {
	switch c {
	case CauseTruncated:
		return "truncated"
	case CauseVolumeFailed:
		return "volume_failed"
	}
	if name := unix.ErrnoName(c.errno()); name != "" {
		return name
	}
	return "other"
}

// Error returns String and an explanation.
func (c Cause) Error() string {
	switch c {
	case CauseTruncated:
		return c.String() + " (the volume's file or device has become shorter)"
	case CauseVolumeFailed:
		return c.String() + " (the volume has failed earlier; the target's log says why)"
	}
	if errno := c.errno(); unix.ErrnoName(errno) != "" {
		return c.String() + " (" + errno.Error() + ")"
	}
	return c.String()
}

// Unwrap returns the error number, or nil.
func (c Cause) Unwrap() error {
	if errno := c.errno(); errno != 0 {
		return errno
	}
	return nil
}

func (c Cause) errno() syscall.Errno {
	if c < CauseTruncated {
		return syscall.Errno(c)
	}
	return 0
}

// CauseOf returns the Cause or the error number that err wraps, or CauseUnknown if there is none.
func CauseOf(err error) Cause {
	var cause Cause
	if errors.As(err, &cause) {
		return cause
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno < syscall.Errno(CauseTruncated) {
		return Cause(errno)
	}
	return CauseUnknown
}

// ParseErrno returns the Cause that is the error number with a name such as "ENOSPC".
func ParseErrno(name string) (Cause, bool) {
	for c := CauseUnknown + 1; name != "" && c < CauseTruncated; c++ {
		if unix.ErrnoName(c.errno()) == name {
			return c, true
		}
	}
	return CauseUnknown, false
}
