// SPDX-License-Identifier: Apache-2.0

// Package devicecall bounds how long a caller waits for a device. Calls into a driver take no
// context, and a device that hangs may never let one return.
package devicecall

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Timeout bounds how long anybody waits for a device to open.
const Timeout = 10 * time.Second

// Step is a call that a device carries out once. Its zero value is ready for use. Its methods must
// not be called concurrently.
type Step struct {
	what  string     // for errors
	ended chan error // nil unless a call is under way
}

// Take calls carryOut on a goroutine of its own and returns its result. If ctx ends first, Take
// fails with status.TimeOut, and the call goes on: the next Take waits for it instead of beginning
// another one.
func (s *Step) Take(ctx context.Context, what string, carryOut func() error) error {
	if s.ended == nil {
		ended := make(chan error, 1)
		s.what, s.ended = what, ended
		go func() { ended <- carryOut() }()
	}
	return s.Await(ctx)
}

// Await is Take for a call that is under way.
func (s *Step) Await(ctx context.Context) error {
	select {
	case err := <-s.ended:
		s.ended = nil
		return err
	case <-ctx.Done():
		return unanswered(ctx, s.what)
	}
}

// IsUnderWay reports whether the latest Take has left a call behind.
func (s *Step) IsUnderWay() bool { return s.ended != nil }

// Open is a call by which a device creates something that several need. Its methods may be called
// concurrently.
type Open[T io.Closer] struct {
	ended  chan struct{}
	object T
	err    error
}

// NewOpen begins the call, on a goroutine of its own.
func NewOpen[T io.Closer](open func() (T, error)) *Open[T] {
	o := &Open[T]{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		o.object, o.err = open()
	}()
	return o
}

// Await returns what the call returns. If ctx ends first, or after Timeout, Await fails with
// status.TimeOut, and the call goes on.
func (o *Open[T]) Await(ctx context.Context, what string) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, errSilent)
	defer cancel()
	select {
	case <-o.ended:
		return o.object, o.err
	case <-ctx.Done():
		var none T
		return none, unanswered(ctx, what)
	}
}

// Ended returns a channel that is closed when the call has returned.
func (o *Open[T]) Ended() <-chan struct{} { return o.ended }

// HasFailed reports whether the call has returned an error.
func (o *Open[T]) HasFailed() bool {
	select {
	case <-o.ended:
		return o.err != nil
	default:
		return false
	}
}

// Close closes what the call creates, now or, if the call is still under way, later.
func (o *Open[T]) Close() error {
	closeObject := func() error {
		<-o.ended
		if o.err != nil {
			return nil
		}
		return o.object.Close()
	}
	select {
	case <-o.ended:
		return closeObject()
	default:
		go func() { _ = closeObject() }() // nobody is left to tell
		return nil
	}
}

// OpenWithin returns what open creates, and fails with status.TimeOut if ctx ends first, or after
// Timeout. What comes later is closed.
func OpenWithin[T io.Closer](ctx context.Context, open func() (T, error)) (T, error) {
	o := NewOpen(open)
	object, err := o.Await(ctx, "open")
	if err != nil {
		_ = o.Close() // it has not been created
	}
	return object, err
}

// After returns a context that ends a duration after ctx.
func After(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(later, func() { timer.Stop() })
	})
	return later, func() {
		stop()
		cancel(nil)
	}
}

var errSilent = errors.New("waited " + Timeout.String())

func unanswered(ctx context.Context, what string) error {
	return status.Errorf(status.TimeOut, "%s: the device has not answered: %w", what,
		context.Cause(ctx))
}
