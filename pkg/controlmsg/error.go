package controlmsg

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Error is what a peer reports: the answer to a request that failed, or the
// reason why it ends the connection. It is an error that errors.Is matches
// with its status.Code.
type Error struct {
	Code status.Code
	// Phase is where in the handshake the peer was.
	Phase Phase
	// Text is one printable line of at most MaxTextLength bytes.
	Text string
}

// Kind returns KindError.
func (*Error) Kind() Kind { return KindError }

// Error tells that the peer reported it, in which phase, its text and the
// symbolic code.
func (e *Error) Error() string {
	return fmt.Sprintf("peer reports in phase %v: %s [%v]", e.Phase, e.Text, e.Code)
}

// Unwrap gives errors.Is and status.CodeOf the code.
func (e *Error) Unwrap() error { return e.Code }

func (e *Error) validate() error {
	if e.Code == status.Success {
		return status.Errorf(status.InvalidValue, "error with code 0 (success)")
	}
	if e.Phase >= phaseCount {
		return status.Errorf(status.InvalidValue, "phase %d does not exist", e.Phase)
	}
	return checkName("error text", e.Text, MaxTextLength)
}

// report is how an error of this side is told to the peer. The error of
// another peer is passed on as it is.
func report(err error, phase Phase) *Error {
	if err == nil {
		return &Error{Code: status.Unknown, Phase: phase, Text: "unspecified failure"}
	}
	if passed, ok := errors.AsType[*Error](err); ok && passed.Phase != PhaseUnknown {
		phase = passed.Phase
	}
	code := status.CodeOf(err)
	if code == status.Success {
		code = status.Unknown
	}
	return &Error{Code: code, Phase: phase, Text: printableLine(bareText(err), MaxTextLength)}
}

// bareText is the text of err without what the other fields of an Error say.
func bareText(err error) string {
	switch e := err.(type) { // only the outermost error: inner ones are part of the text
	case *Error:
		return e.Text
	case *status.Error:
		return e.Err.Error()
	}
	return err.Error()
}
