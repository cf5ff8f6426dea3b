package controlmsg

import (
	"context"
	"time"
)

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// deadline ends reads or writes of a connection when a context ends.
type deadline struct {
	ctx      context.Context
	set      func(time.Time) error
	stopFunc func() bool
	ended    chan struct{} // closed when the context's end has been applied
}

// newDeadline bounds what set bounds by ctx, until stop is called. Errors of
// set are those of a closed connection, which the next read or write reports.
func newDeadline(ctx context.Context, set func(time.Time) error) *deadline {
	d := &deadline{ctx: ctx, set: set, ended: make(chan struct{})}
	latest, _ := ctx.Deadline() // the zero time means none, for set as well
	_ = set(latest)
	d.stopFunc = context.AfterFunc(ctx, func() {
		_ = set(longAgo)
		close(d.ended)
	})
	return d
}

// shorten ends the wait after timeout, unless the context ends it before.
func (d *deadline) shorten(timeout time.Duration) {
	latest := time.Now().Add(timeout)
	if own, ok := d.ctx.Deadline(); ok && own.Before(latest) {
		return
	}
	_ = d.set(latest)
	if d.ctx.Err() != nil {
		// The context may have ended just before, and was overridden.
		_ = d.set(longAgo)
	}
}

// stop makes sure that the context's end does not reach into the next
// operation.
func (d *deadline) stop() {
	if !d.stopFunc() {
		<-d.ended
	}
}
