// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// docaContext is what object uses of doca.Consumer and doca.Producer.
type docaContext interface {
	Descriptor() int
	State() progress.State
	Start() error
	Stop() error
	Progress(budget int) int
	Revoke() bool
	FreeTasks() int
	Close() error
	Free()
}

// object is what consumers and producers have in common: a DOCA context that the endpoint's thread
// creates, the owner uses, and the endpoint's thread destroys.
type object struct {
	waker
	connection *connection
	what       string
	context    docaContext
	memory     []byte              // what it has allocated; nil if there is none
	target     comch.ConsumerID    // of a producer
	isGone     atomic.Bool         // the consumer of a producer has expired
	drain      func() (empty bool) // called before the context is stopped by close, may be nil

	closeOnce sync.Once
	closeErr  error

	// Only the endpoint's thread uses the rest.

	revoked  bool
	stopping bool
	tasks    int   // that the device has not returned
	over     bool  // the DOCA context has been destroyed
	err      error // why stopping or destroying it has failed so far
}

// open starts the context and waits until it runs. If it fails, the context is destroyed. create is
// called on the endpoint's thread until it reports that it is done.
func (o *object) open(ctx context.Context, create func() (done bool, err error)) error {
	c := o.connection
	var err error
	started := false
	waited := c.endpoint.await(ctx, comch.CloseTimeout, func() bool {
		if !started {
			var done bool
			if done, err = create(); !done || err != nil {
				return done || err != nil
			}
			started = true
			c.objects[o] = struct{}{}
			c.endpoint.users++
			if err = o.context.Start(); err != nil {
				return true
			}
		}
		o.context.Progress(budget)
		if c.ended.Load() {
			err = c.errNotConnected()
			return true
		}
		switch o.context.State() {
		case progress.Running:
			// Here, because the thread may wake the owner from now on.
			o.waker, err = newWaker(o.context.Descriptor())
			return true
		case progress.Idle:
			return true
		}
		return false
	})
	err = errors.Join(err, waited)
	if err == nil && o.context.State() != progress.Running {
		err = status.Errorf(status.ConnectionReset, "the peer has not agreed")
	}
	if err == nil {
		return nil
	}
	if errors.Is(waited, context.DeadlineExceeded) && ctx.Err() == nil {
		err = status.Errorf(status.TimeOut, "not running within %v", comch.CloseTimeout)
	}
	if started {
		_ = o.close()
	} else {
		_ = free(o.memory)
	}
	return err
}

// teardown does one step of destroying the context, and reports whether that is done. Only the
// endpoint's thread calls it.
func (o *object) teardown() bool {
	if o.over {
		return true
	}
	if !o.revoked && !o.context.Revoke() {
		return false
	}
	o.revoked = true
	if !o.stopping {
		o.stopping = true
		if o.context.State() != progress.Idle {
			o.err = o.context.Stop()
		}
	}
	o.context.Progress(budget)
	o.tasks = o.context.FreeTasks()
	if o.context.State() != progress.Idle {
		return false
	}
	// Until the next step of progress, libdoca may still hold on to it.
	o.err = o.context.Close()
	o.over = o.err == nil
	return o.over
}

// close destroys the object. What the device may still use is leaked if that takes too long.
func (o *object) close() error {
	o.closeOnce.Do(func() { o.closeErr = o.closeNow() })
	return o.closeErr
}

func (o *object) closeNow() error {
	e := o.connection.endpoint
	drained := o.drain == nil
	err := e.await(context.Background(), comch.CloseTimeout, func() bool {
		drained = drained || o.revoked || o.connection.ended.Load() || o.drain()
		return drained && o.teardown()
	})
	if errors.Is(err, context.DeadlineExceeded) && !drained {
		// The peer does not receive what was sent. That is no reason to leak anything.
		err = e.await(context.Background(), comch.CloseTimeout, o.teardown)
	}
	switch {
	case err != nil:
		err = status.Errorf(status.TimeOut, "close %s: the device has not let go of it within %v "+
			"(%v, %d tasks, access revoked: %t): %w", o.what, comch.CloseTimeout,
			o.context.State(), o.tasks, o.revoked, errors.Join(err, o.err))
	default:
		o.context.Free()
		err = free(o.memory)
	}
	if err != nil {
		e.log.Warn("leak a DOCA context and its memory", zap.String("object", o.what),
			zap.Error(err))
	}
	_ = e.do(func() error {
		delete(o.connection.objects, o)
		if err != nil {
			o.connection.leaked++
			e.leaking = true
		}
		e.leave()
		return nil
	})
	return errors.Join(err, o.waker.close())
}

// isOver reports whether the object can no longer be used, because this side or the peer has ended
// it or its connection.
func (o *object) isOver() bool { return o.connection.ended.Load() || o.isGone.Load() }

// isPeerGone reports whether a send or a receive has failed because the other side or the
// connection has ended. The event that says so arrives on another progress engine, and may be late.
func isPeerGone(err error) bool {
	switch status.CodeOf(err) {
	case status.NotConnected, status.ConnectionReset, status.ConnectionAborted, status.Shutdown:
		return true
	}
	return false
}

// targetExpired is called on the endpoint's thread when the peer has lost a consumer.
func (o *object) targetExpired(id comch.ConsumerID) {
	if o.target != 0 && o.target == id {
		o.isGone.Store(true)
		o.wake()
	}
}

// adopt counts a consumer or producer of the connection, so that it is not closed before.
func (c *connection) adopt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return status.Errorf(status.NotConnected, "the connection has ended: %w", c.err)
	}
	c.children++
	return nil
}

func (c *connection) disown() {
	c.mu.Lock()
	c.children--
	c.mu.Unlock()
}
