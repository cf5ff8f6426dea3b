package program

import (
	"errors"
	"fmt"
	"strings"
)

// The exit codes of every program.
const (
	// ExitOK means that everything asked for was done.
	ExitOK = 0
	// ExitFailure means that an IO failed, or data was not what it must be.
	ExitFailure = 1
	// ExitUsage means that the program was called wrongly, or asked for what
	// the volume or the peer does not offer.
	ExitUsage = 2
	// ExitConnect means that there was no way to the peer.
	ExitConnect = 3
)

// exitError is an error that asks for an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Usage makes the program end with ExitUsage because of err. Usage(nil) is
// nil.
func Usage(err error) error { return withExitCode(ExitUsage, err) }

// Usagef is Usage(fmt.Errorf(format, args...)).
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// CannotConnect makes the program end with ExitConnect because of err.
// CannotConnect(nil) is nil.
func CannotConnect(err error) error { return withExitCode(ExitConnect, err) }

func withExitCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

// ExitCode is the exit code that err asks for: ExitOK for nil, ExitFailure
// for an error that asks for nothing else.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return ExitFailure
}

// Sentence is the text of err on one line: joined errors come one per line
// otherwise.
func Sentence(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "; ")
}
