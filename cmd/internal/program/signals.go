package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

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
