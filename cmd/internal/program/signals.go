// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Interrupted is the cause of a context that a signal cancelled.
type Interrupted struct{ Signal os.Signal }

// Error names the signal.
func (i *Interrupted) Error() string { return fmt.Sprintf("stopped by signal %q", i.Signal) }

// Is makes Interrupted match context.Canceled, the error of the cancelled context.
func (i *Interrupted) Is(target error) bool { return target == context.Canceled }

// forceAfter is the time from the first signal on after which SIGTERM forces the end. Before that
// it is taken for the same request: timeout, sudo, and other wrappers signal both a program and its
// process group.
const forceAfter = time.Second

// withSignals returns a context that the first SIGINT, SIGTERM, or SIGHUP cancels, with
// *Interrupted as its cause. A second SIGINT, or a SIGTERM at least a second after the first
// signal, kills the process. SIGHUP has no effect if the process was started to ignore it, as nohup
// does. The returned function cancels the context and stops listening for signals.
func withSignals(parent context.Context) (context.Context, func()) {
	return withSignalsAfter(parent, forceAfter)
}

func withSignalsAfter(parent context.Context, forceAfter time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals, stop := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	var listener sync.WaitGroup
	listener.Go(func() {
		defer signal.Stop(signals)
		end := ending{forceAfter: forceAfter}
		for {
			select {
			case s := <-signals:
				if end.forces(s, time.Now()) {
					dieOf(s.(syscall.Signal))
				}
				cancel(&Interrupted{Signal: s})
			case <-stop:
				return
			}
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		close(stop)
		listener.Wait()
	}
}

// ending distinguishes the signals that force the end of a program from those that request it.
type ending struct {
	forceAfter time.Duration
	first      time.Time // when the first signal came; zero before
	interrupts int       // number of SIGINTs
}

// forces records a signal that came at now and reports whether it forces the end.
func (e *ending) forces(s os.Signal, now time.Time) bool {
	if s == syscall.SIGINT {
		e.interrupts++
	}
	if e.first.IsZero() {
		e.first = now
		return false
	}
	switch s {
	case syscall.SIGINT:
		return e.interrupts > 1
	case syscall.SIGTERM:
		return now.Sub(e.first) >= e.forceAfter
	}
	return false
}

// OutliveReaders keeps the process alive when the reader of its standard output or standard error
// goes away: writes to these fail from then on, and SIGPIPE no longer ends the process. Programs
// that serve others call it first.
func OutliveReaders() {
	// The runtime ends a process by SIGPIPE only if nobody is notified of it. Unlike an ignored
	// signal, a notification is not passed on to the processes that this one starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}
