package iwarp

import (
	"errors"
	"syscall"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// dialCode is the code under which a failed TCP connect is reported.
func dialCode(err error) status.Code {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return status.ConnectionAborted // nothing listens there
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return status.TimeOut
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return status.NotFound // the source address
	}
	return status.CodeOf(err)
}

// listenCode is the code under which a failed listen is reported.
func listenCode(err error) status.Code {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return status.AlreadyExist
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return status.NotFound
	}
	return status.CodeOf(err)
}
