package status

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Error is an error with the code under which it crosses a wire.
type Error struct {
	// Code is what a peer is told.
	Code Code
	// Err says what failed, and wraps the cause if there is one.
	Err error
}

// Errorf returns an *Error with the given code; format and args are those of
// fmt.Errorf, %w included.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Error returns the text followed by the symbolic code in brackets.
func (e *Error) Error() string { return fmt.Sprintf("%v [%v]", e.Err, e.Code) }

// Unwrap gives errors.Is and errors.As the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the code of e.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// CodeOf returns the code under which err is reported to a peer: its own if
// it carries one, else the closest match for well-known Go errors, else
// Unknown. CodeOf(nil) is Success.
func CodeOf(err error) Code {
	if err == nil {
		return Success
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
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return IOFailed
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return OperatingSystem
	}
	return Unknown
}
