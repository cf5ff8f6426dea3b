// Package program is what the command line programs have in common: exit
// codes, the one sentence that explains a failure, signals, and the processors
// that polling threads need.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// CollectVariable is the environment variable that makes programs built with
// the tag faultinject force a garbage collection at that interval, for
// instance "100ms".
const CollectVariable = "ZC_RELAY_COLLECT_INTERVAL"

// Run executes a command line and returns the exit code. A failure is
// explained by one sentence on the error output of root. Whatever goes wrong
// before a command's RunE is entered is a usage error.
func Run(ctx context.Context, root *cobra.Command, arguments []string) int {
	entered := false
	prepare(root, &entered)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(arguments)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if !entered {
		err = Usage(err)
	}
	explain(root.ErrOrStderr(), command, err)
	return ExitCode(err)
}

func explain(w io.Writer, command *cobra.Command, err error) {
	fmt.Fprintf(w, "%s: %s\n", command.CommandPath(), Sentence(err))
	if ExitCode(err) == ExitUsage {
		fmt.Fprintf(w, "Run '%s --help' for usage.\n", command.CommandPath())
	}
}

// prepare notes when a command's RunE is entered, and makes a command that
// only groups others fail when none of them is named: cobra would print the
// help and succeed.
func prepare(command *cobra.Command, entered *bool) {
	for _, child := range command.Commands() {
		prepare(child, entered)
	}
	inner := command.RunE
	if inner == nil && command.Run == nil && command.HasSubCommands() {
		inner = func(*cobra.Command, []string) error { return Usagef("no command was given") }
	}
	if inner == nil {
		return
	}
	command.RunE = func(c *cobra.Command, arguments []string) error {
		*entered = true
		return inner(c, arguments)
	}
}

// answerTo makes a program speak of itself by the name that it was called by:
// packages install some under longer names, which are also those of their
// completions and manual pages.
func answerTo(root *cobra.Command, path string) {
	_, arguments, _ := strings.Cut(root.Use, " ")
	root.Use = strings.TrimSpace(filepath.Base(path) + " " + arguments)
}

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

// Interrupted is the cause of a context that a signal has cancelled.
type Interrupted struct{ Signal os.Signal }

// Error names the signal.
func (i *Interrupted) Error() string { return fmt.Sprintf("stopped by signal %q", i.Signal) }

// Is makes Interrupted match context.Canceled, as the error of the cancelled
// context does.
func (i *Interrupted) Is(target error) bool { return target == context.Canceled }

// WithSignals returns a context that the first SIGINT or SIGTERM cancels, with
// *Interrupted as its cause. The process then reacts to signals as it does by
// default, so that a second one ends it at once. The returned function
// releases what it takes to listen for signals.
func WithSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var listener sync.WaitGroup
	listener.Go(func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(&Interrupted{Signal: s})
		case <-ctx.Done():
			signal.Stop(signals)
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		listener.Wait()
	}
}

// ReserveProcessors lets the Go runtime run count threads that poll without
// pause, and two more for everything else. The runtime's own choice follows
// the number of CPUs, with which pollers could keep out garbage collection
// and control messages.
func ReserveProcessors(count int) {
	if wanted := count + 2; runtime.GOMAXPROCS(0) < wanted {
		runtime.GOMAXPROCS(wanted)
	}
}
