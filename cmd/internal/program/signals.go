package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Interrupted is the cause of a context that a signal cancelled.
type Interrupted struct{ Signal os.Signal }

// Error names the signal.
func (i *Interrupted) Error() string { return fmt.Sprintf("stopped by signal %q", i.Signal) }

// Is makes Interrupted match context.Canceled, the error of the cancelled context.
func (i *Interrupted) Is(target error) bool { return target == context.Canceled }

// WithSignals returns a context that the first SIGINT or SIGTERM cancels, with *Interrupted as its
// cause. After that the process reacts to signals in the default way, so that a second one kills
// it. The returned function cancels the context and stops listening for signals.
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
