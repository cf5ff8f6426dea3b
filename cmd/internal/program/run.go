// SPDX-License-Identifier: Apache-2.0

// Package program holds what all command line programs share: exit codes, the sentence that
// explains a failure, signals, and the processors that polling threads need.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/explain"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Run executes a command line, which may be that of a DOCA application (package argp), and returns
// the exit code. It explains a failure with one sentence on root's error output. Any error before a
// command's RunE starts is a usage error.
func Run(ctx context.Context, root *cobra.Command, arguments []string) int {
	entered := false
	// Before prepare, which checks what it is called with.
	root.InitDefaultCompletionCmd(arguments...)
	prepare(root, root.Version, &entered)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(explainFlag)
	groupFlags(root)
	wrongHelp := checkHelp(root)
	if err := checkVersion(arguments); err != nil {
		tell(logging.Errors(root.ErrOrStderr()), root, err)
		return ExitUsage
	}
	arguments = argp.Arguments(root, arguments)
	if command, err := checkTwice(root, arguments); err != nil {
		tell(logging.Errors(root.ErrOrStderr()), command, err)
		return ExitUsage
	}
	root.SetArgs(arguments)
	out := &checkedOutput{Writer: root.OutOrStdout()}
	if !output.IsTerminal(out.Writer) {
		root.SetOut(out)
	}
	command, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, *wrongHelp)
	if out.err != nil {
		entered = true // the call is right
		if err == nil {
			err = fmt.Errorf("print: %w", out.err)
		}
	}
	if err == nil {
		return ExitOK
	}
	if argp.Implied(command) && !entered && lacksCommand(command, arguments) {
		command = command.Root()
		err = errors.New(noCommand + ": " + childrenOf(command))
	}
	if !entered {
		err = Usage(asTyped(command, arguments, explainCall(command, err)))
	}
	tell(logging.Errors(root.ErrOrStderr()), command, err)
	return ExitCode(err)
}

// checkedOutput remembers why output could not be written. Not everybody who writes can say so:
// cobra prints help without looking at errors.
type checkedOutput struct {
	io.Writer
	err error
}

// Write writes to the inner writer.
func (c *checkedOutput) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	if err != nil {
		c.err = err
	}
	return n, err
}

func tell(w io.Writer, command *cobra.Command, err error) {
	fmt.Fprintf(w, "%s: %s\n", command.CommandPath(), Sentence(err))
	if next := remedy(err); next != "" {
		fmt.Fprintln(w, next)
	} else if code, ok := codeShown(err); ok {
		fmt.Fprintf(w, "Run '%s explain %s' for causes and remedies.\n", command.Root().Name(), code)
	}
	if exit, ok := errors.AsType[*exitError](err); ok && exit.code == ExitUsage &&
		!exit.isRejected {
		if command.Name() == "help" { // whose own help says nothing about the commands
			command = command.Root()
		}
		fmt.Fprintf(w, "Run '%s --help' for usage.\n", command.CommandPath())
	}
}

// codeShown returns the last code in the sentence about err that has an explanation. The text of a
// wrong call explains itself.
func codeShown(err error) (code string, ok bool) {
	exit, ok := errors.AsType[*exitError](err)
	if ok && exit.code == ExitUsage && !exit.isRejected {
		return "", false
	}
	for part := range strings.SplitSeq(Sentence(err), "[") {
		if name, _, closed := strings.Cut(part, "]"); closed && explain.Has(name) {
			code = name
		}
	}
	return code, code != ""
}

// remedy says what to do about an error of the system that needs no knowledge of what failed.
func remedy(err error) string {
	switch {
	case strings.Contains(err.Error(), "\"ss -l"): // the error says it itself
		return ""
	case errors.Is(err, syscall.EADDRINUSE) && isSocket(err):
		return "Another program uses the socket: \"ss -lxp\" shows which; stop it, or choose another path."
	case errors.Is(err, syscall.EADDRINUSE):
		return "Another program uses the address: \"ss -ltnp\" shows which; stop it, or choose another port."
	case errors.Is(err, syscall.EMFILE):
		return "This process may open no more files: \"ulimit -n\" shows how many it may, and " +
			"\"ulimit -n NUMBER\" lets those that the shell starts open more."
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "\"ip address\" lists the addresses of this machine."
	case errors.Is(err, fs.ErrPermission) && isPort(err):
		return fmt.Sprintf("This program runs as user %d, and low ports are root's, those below 1024 as a rule: choose another port.",
			os.Getuid())
	case errors.Is(err, fs.ErrPermission) && !errors.Is(err, status.ErrReadOnly):
		return fmt.Sprintf("This program runs as user %d: run it as a user who may (ls -l), or let this one.",
			os.Getuid())
	}
	return ""
}

// isPort reports whether err is about listening on a port.
func isPort(err error) bool { return isListen(err, "tcp") }

// isSocket reports whether a Unix socket cannot be listened on.
func isSocket(err error) bool { return isListen(err, "unix") }

func isListen(err error, network string) bool {
	failure, ok := errors.AsType[*net.OpError](err)
	return ok && failure.Op == "listen" && strings.HasPrefix(failure.Net, network)
}

// prepare records in *entered that a command's RunE was called, and gives every command the flags
// that all have. It also makes commands fail that only group others: cobra would print the help and
// succeed.
func prepare(command *cobra.Command, version string, entered *bool) {
	for _, child := range command.Commands() {
		prepare(child, version, entered)
	}
	command.Version = version
	command.InitDefaultHelpFlag()
	command.InitDefaultVersionFlag()
	for name, usage := range map[string]string{"help": "print this help",
		"version": "print the version"} {
		if f := command.Flags().Lookup(name); f != nil {
			f.Usage = usage
		}
	}
	completeWords(command)
	limitNumbers(command)
	inner := command.RunE
	if inner == nil && command.Run == nil && command.HasSubCommands() {
		command.Args = cobra.ArbitraryArgs // which the function below examines
		inner = func(_ *cobra.Command, operands []string) error {
			if len(operands) > 0 {
				return Usage(unknownChild(command, operands[0]))
			}
			return Usagef("%s: %s", noCommand, childrenOf(command))
		}
	}
	if inner == nil {
		return
	}
	command.RunE = func(c *cobra.Command, arguments []string) error {
		*entered = true
		return inner(c, arguments)
	}
}

// answerTo makes a program use the name that it was called by. Packages install some programs under
// longer names, and so name their completions and manual pages.
func answerTo(root *cobra.Command, path string) {
	_, arguments, _ := strings.Cut(root.Use, " ")
	root.Use = strings.TrimSpace(filepath.Base(path) + " " + arguments)
}

// The exit codes of every program.
const (
	// ExitOK means that the program did everything it was asked to.
	ExitOK = 0
	// ExitFailure means that an IO failed, or that data was wrong.
	ExitFailure = 1
	// ExitUsage means a wrong command line or configuration, or a request that the volume or the
	// peer does not support. A daemon that ends with it would end with it again, so units do not
	// restart it.
	ExitUsage = 2
	// ExitConnect means that the peer could not be reached.
	ExitConnect = 3
	// ExitTaken means that the volume has been taken from the program for good, while it was using
	// it.
	ExitTaken = 4
	// ExitRestart means that the program did what it could, and that the rest takes a restart of a
	// daemon.
	ExitRestart = 5
	// ExitSignal is what shells add to the number of the signal that has ended a program.
	ExitSignal = 128
)

// exitError is an error with an exit code.
type exitError struct {
	code int
	err  error
	// isRejected means that a peer has rejected a request whose form is right.
	isRejected bool
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// As gives a wrong call the code InvalidValue for status.CodeOf, unless its error has another code.
func (e *exitError) As(target any) bool {
	code, ok := target.(*status.Code)
	if !ok || e.code != ExitUsage || status.CodeOf(e.err) != status.Unknown {
		return false
	}
	*code = status.InvalidValue
	return true
}

// Usage gives err the exit code ExitUsage. Usage(nil) is nil.
func Usage(err error) error { return WithExitCode(ExitUsage, err) }

// Usagef is Usage(fmt.Errorf(format, args...)).
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Rejected gives err the exit code ExitUsage, too, for a well-formed request that a daemon or a
// peer rejects because of its own state. The help of the command knows nothing about that, so the
// user is not sent there. Rejected(nil) is nil.
func Rejected(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: ExitUsage, err: err, isRejected: true}
}

// CannotConnect gives err the exit code ExitConnect. CannotConnect(nil) is nil.
func CannotConnect(err error) error { return WithExitCode(ExitConnect, err) }

// WithExitCode gives err the exit code. WithExitCode(code, nil) is nil.
func WithExitCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

// IsUsage reports whether err is the fault of the call.
func IsUsage(err error) bool { return ExitCode(err) == ExitUsage }

// ExitCode returns the exit code of err: ExitOK for nil, ExitFailure for an error without one.
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

// Sentence returns the text of err on one line. Joined errors have one line each, with one code.
func Sentence(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		line = strings.ReplaceAll(line, context.DeadlineExceeded.Error(), "timed out")
		lines[i] = status.OneCode(strings.TrimSpace(line))
	}
	return strings.Join(lines, "; ")
}

// FailureOf describes err for a document, nil for no error. Its exit code tells the phase.
func FailureOf(err error) *report.Failure {
	if err == nil {
		return nil
	}
	phase := "run"
	switch ExitCode(err) {
	case ExitUsage:
		phase = "prepare"
	case ExitConnect:
		phase = "connect"
	}
	return report.FailureOf(phase, err, Sentence(err))
}

// ReserveProcessors raises GOMAXPROCS to count polling threads and two more for everything else.
// The runtime's default follows the number of CPUs, where pollers could starve garbage collection
// and control messages.
func ReserveProcessors(count int) {
	if wanted := count + 2; runtime.GOMAXPROCS(0) < wanted {
		runtime.GOMAXPROCS(wanted)
	}
}
