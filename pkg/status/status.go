// SPDX-License-Identifier: Apache-2.0

// Package status holds the symbolic error codes that cross a wire.
//
// The numbers are the values of doca_error_t, which the DOCA storage applications put into IO
// messages and control messages. So codes need no translation between the native protocol and those
// applications.
package status

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Code is a doca_error_t value. A Code other than Success is an error, and errors.Is matches it.
type Code uint32

// The doca_error_t values (DOCA 2.10 to 3.3).
const (
	Success Code = iota
	Unknown
	NotPermitted
	InUse
	NotSupported
	Again // no room in a queue for now: poll, and try again
	InvalidValue
	NoMemory
	Initialization
	TimeOut
	Shutdown
	ConnectionReset
	ConnectionAborted
	ConnectionInProgress
	NotConnected
	NoLock
	NotFound
	IOFailed
	BadState
	UnsupportedVersion
	OperatingSystem
	Driver
	Unexpected
	AlreadyExist
	Full // a limit is reached, for instance that of sessions
	Empty
	InProgress
	TooBig
	Authentication
	BadConfig
	Skipped

	codeCount
)

// CodeCount is the number of known codes, for arrays indexed by Code. Every Code below it has a
// name.
const CodeCount = int(codeCount)

var codeNames = [codeCount]string{
	"SUCCESS", "UNKNOWN", "NOT_PERMITTED", "IN_USE", "NOT_SUPPORTED", "AGAIN",
	"INVALID_VALUE", "NO_MEMORY", "INITIALIZATION", "TIME_OUT", "SHUTDOWN",
	"CONNECTION_RESET", "CONNECTION_ABORTED", "CONNECTION_INPROGRESS",
	"NOT_CONNECTED", "NO_LOCK", "NOT_FOUND", "IO_FAILED", "BAD_STATE",
	"UNSUPPORTED_VERSION", "OPERATING_SYSTEM", "DRIVER", "UNEXPECTED",
	"ALREADY_EXIST", "FULL", "EMPTY", "IN_PROGRESS", "TOO_BIG",
	"AUTHENTICATION", "BAD_CONFIG", "SKIPPED",
}

// String returns the symbolic name, such as "INVALID_VALUE".
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return fmt.Sprintf("CODE_%d", uint32(c))
}

// Error returns String. It makes a Code an error and a target for errors.Is.
func (c Code) Error() string { return c.String() }

// Known reports whether c is one of the codes above. A peer may send any number.
func (c Code) Known() bool { return c < codeCount }

// Errors that match one of package os, too. The texts of those are about files.
var (
	// ErrClosed is the error of using an object after its Close, and of what Close has cut off. It
	// matches os.ErrClosed. Its code is Shutdown.
	ErrClosed = Errorf(Shutdown, "%w", alias{os.ErrClosed, "closed by this program"})
	// ErrReadOnly is the error of a change to a volume that is, or was opened, read-only. It
	// matches os.ErrPermission. Its code is NotPermitted.
	ErrReadOnly = Errorf(NotPermitted, "%w", alias{os.ErrPermission, "the volume is read-only"})
)

// alias is another error with a text of its own.
type alias struct {
	of   error
	text string
}

func (a alias) Error() string        { return a.text }
func (a alias) Is(target error) bool { return target == a.of }

// ContextError returns why a context has ended: an error that matches both context.Cause and
// ctx.Err, so that a cause of the caller's own does not hide that the time was up. It returns nil
// while the context has not ended.
func ContextError(ctx context.Context) error {
	end, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case cause == context.DeadlineExceeded:
		return errTimedOut
	case end == nil, errors.Is(cause, end):
		return cause
	}
	return &endedContext{end: end, cause: cause}
}

// errTimedOut is context.DeadlineExceeded in the words of users, who know nothing of contexts.
var errTimedOut error = alias{context.DeadlineExceeded, "timed out"}

// endedContext is the end of a context with a cause of the caller's own, whose text it has.
type endedContext struct{ end, cause error }

func (e *endedContext) Error() string   { return e.cause.Error() }
func (e *endedContext) Unwrap() []error { return []error{e.cause, e.end} }

// Error is an error with the code that represents it on a wire.
type Error struct {
	// Code is what a peer receives.
	Code Code
	// Err says what failed, and wraps the cause if there is one.
	Err error
}

// Errorf returns an *Error with the given code. format and args are those of fmt.Errorf, including
// %w.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Error returns the text with its symbolic code in brackets: see WithCode.
func (e *Error) Error() string { return WithCode(e.Err.Error(), e.Code) }

// Unwrap returns the cause for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the code of e.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// CodeOf returns the code that represents err on a wire: its own code if it has one, otherwise the
// closest match for well-known Go errors, otherwise Unknown. CodeOf(nil) is Success.
func CodeOf(err error) Code {
	if err == nil {
		return Success
	}
	if code, ok := err.(Code); ok { // as on the data path, where errors.As would be slow
		return code
	}
	if coded, ok := err.(*Error); ok {
		return coded.Code
	}
	var coded *Error
	if errors.As(err, &coded) {
		return coded.Code
	}
	var code Code
	if errors.As(err, &code) {
		return code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return TimeOut
	case errors.Is(err, context.Canceled):
		return Shutdown
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ConnectionReset
	case errors.Is(err, syscall.ENOMEM):
		return NoMemory
	case errors.Is(err, os.ErrPermission):
		return NotPermitted
	case errors.Is(err, os.ErrNotExist):
		return NotFound
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC), errors.Is(err,
		syscall.EDQUOT):
		return IOFailed
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return OperatingSystem
	}
	return Unknown
}
