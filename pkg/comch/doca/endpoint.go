// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// budget bounds the steps of progress of one turn of an endpoint.
const budget = 64

// endpoint is a DOCA server or client, and the thread that alone uses it. It ends when it is closed
// and nothing of it is left.
type endpoint struct {
	log          *zap.Logger
	library      *doca.Library
	device       *doca.Device
	representor  *doca.Representor // nil for a client
	control      *doca.Control
	capabilities comch.Capabilities
	settings     settings
	engine       *progress.Engine
	exited       chan struct{} // closed when the thread has ended
	noKey        sync.Once     // guards a message that concerns all imports
	// looked is when the last complete look has begun. standsStill is set when one has not been
	// carried out in time, nor since.
	looked      atomic.Pointer[time.Time]
	standsStill atomic.Bool

	// Only the thread uses the rest.

	steps       []*step
	pacing      bool // the engine does not sleep for long, because there are steps
	connections map[doca.Connection]*connection
	numbered    uint64 // connections so far
	// full is a connection whose messages nobody reads, and since when. Until somebody does, the
	// endpoint makes no progress, which makes the peers wait.
	full      *connection
	fullSince time.Time
	// connected is called for a new connection. It returns nil to reject it.
	connected func(doca.Connection) *connection
	users     int  // what keeps the endpoint: the server, connections, consumers, producers
	rejected  int  // users that nobody closes: connections that were never accepted
	leaking   bool // libdoca has kept a consumer or producer
	ending    bool
	ended     bool
	endErr    error
}

// newEndpoint creates a server or client that is not started. It owns device and representor, even
// if it fails.
func (p *provider) newEndpoint(library *doca.Library, s settings, c comch.Capabilities,
	device *doca.Device, representor *doca.Representor) (*endpoint, error) {
	e := &endpoint{log: p.log.With(zap.String("service", s.name)), library: library,
		device: device, representor: representor, capabilities: c, settings: s,
		exited: make(chan struct{}), connections: make(map[doca.Connection]*connection), users: 1}
	caps, err := library.ComchCapabilities(device.Name())
	if err == nil {
		e.engine, err = progress.NewEngine(progress.Policy{Mode: progress.Event})
	}
	if err == nil {
		e.control, err = doca.NewControl(doca.ControlConfig{Device: device,
			Representor: representor, Name: s.name, MaxMessageSize: s.maxMessageSize,
			ReceiveQueue: s.receiveQueue, Sends: max(1, caps.MaxSends), Wait: c.CanWait})
	}
	if err == nil {
		err = e.engine.Add(e)
	}
	if err != nil {
		return nil, errors.Join(err, e.release())
	}
	go e.run()
	return e, nil
}

func (e *endpoint) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !e.ended {
		e.engine.Idle(e.engine.Progress())
	}
	e.endErr = e.release()
	close(e.exited)
}

// release closes what newEndpoint has made.
func (e *endpoint) release() error {
	var errs []error
	if e.engine != nil {
		e.engine.Remove(e)
		errs = append(errs, e.engine.Close())
	}
	if e.control != nil {
		err := status.Errorf(status.TimeOut, "the context is %v", e.control.State())
		if e.control.State() == progress.Idle {
			err = e.control.Close()
		}
		if err != nil {
			// The device may still use it, so the device stays open as well.
			e.log.Warn("leak a DOCA Comch context", zap.Error(err))
			return errors.Join(append(errs, err)...)
		}
	}
	if e.representor != nil {
		errs = append(errs, e.representor.Close())
	}
	return errors.Join(append(errs, e.device.Close())...)
}

// Poll implements progress.Source.
func (e *endpoint) Poll() int {
	done := 0
	if !e.isPaused() {
		done = e.control.Turn(budget, e.handle)
	}
	if len(e.steps) > 0 {
		done += e.runSteps()
	}
	if e.control.State() == progress.Idle {
		e.endAll()
	}
	e.finish()
	return done
}

// runSteps runs each step once, keeps those that are not done, and returns how many are.
func (e *endpoint) runSteps() int {
	steps := e.steps
	e.steps = nil // a step may begin others
	done := 0
	for _, s := range steps {
		if s.run() {
			done++
		} else {
			e.steps = append(e.steps, s)
		}
	}
	if len(e.steps) == 0 {
		e.engine.RemoveWaiter(pacer{})
		e.pacing = false
	}
	return done
}

// isPaused reports whether messages have to wait because nobody reads them. A connection that stays
// full is aborted, so that one peer cannot hold up the others for long. Nothing pauses while steps
// need progress.
func (e *endpoint) isPaused() bool {
	if e.full == nil || len(e.steps) > 0 {
		return false
	}
	if !e.full.isFull() {
		e.full = nil
		return false
	}
	if time.Since(e.fullSince) < comch.CloseTimeout {
		return true
	}
	e.full.fail(status.Errorf(status.Full,
		"nobody has read the peer's control messages for %v", comch.CloseTimeout))
	e.full = nil
	return false
}

// Descriptor, Arm, Disarm, and Clear implement progress.Waiter.

func (e *endpoint) Descriptor() int { return e.control.Descriptor() }

func (e *endpoint) Arm() bool {
	if e.ended {
		return false
	}
	return e.isPaused() || e.control.Arm()
}

func (e *endpoint) Disarm() { e.control.Clear() }
func (e *endpoint) Clear()  { e.control.Clear() }

// pacer makes the engine poll with pauses.
type pacer struct{}

func (pacer) Descriptor() int { return progress.NoDescriptor }
func (pacer) Arm() bool       { return true }
func (pacer) Disarm()         {}
func (pacer) Clear()          {}

// step is work of the thread that takes many turns.
type step struct {
	poll     func() bool // reports whether it is done
	canceled atomic.Bool
	deadline time.Time // zero if there is none
	done     chan error
}

func (s *step) run() bool {
	switch {
	case s.poll():
		s.done <- nil
	case s.canceled.Load():
		s.done <- context.Canceled
	case !s.deadline.IsZero() && time.Now().After(s.deadline):
		s.done <- context.DeadlineExceeded
	default:
		return false
	}
	return true
}

// begin makes the thread call poll in each turn until it returns true or the time is up. bound 0
// means for ever. Only the thread may call begin.
func (e *endpoint) begin(bound time.Duration, poll func() bool) *step {
	s := &step{poll: poll, done: make(chan error, 1)}
	if bound > 0 {
		s.deadline = time.Now().Add(bound)
	}
	if e.ended {
		s.done <- errEnded
		return s
	}
	if !e.pacing {
		e.pacing = true
		_ = e.engine.AddWaiter(pacer{}) // cannot fail without a descriptor
	}
	e.steps = append(e.steps, s)
	return s
}

var errEnded = status.Errorf(status.NotConnected, "the DOCA context has ended")

// do runs f on the thread and waits for it. It fails if the thread has ended.
func (e *endpoint) do(f func() error) error {
	done := make(chan error, 1)
	if !e.engine.Do(func() { done <- f() }) {
		return errEnded
	}
	return <-done
}

// await runs poll on the thread in each turn until it returns true, the time is up, or ctx ends.
func (e *endpoint) await(ctx context.Context, bound time.Duration, poll func() bool) error {
	var s *step
	if err := e.do(func() error { s = e.begin(bound, poll); return nil }); err != nil {
		return err
	}
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
		s.canceled.Store(true)
		e.engine.Wake()
		if err := <-s.done; err == nil {
			return nil
		}
		return ctx.Err()
	}
}

// lookTimeout bounds the wait for a look of the thread, which normally takes microseconds.
const lookTimeout = 100 * time.Millisecond

// looks bounds the turns of a look. Each finds up to budget events.
const looks = 64

// look waits until the thread has collected what libdoca knew at a time. One look serves all
// connections. It gives up on a thread that stands still in a call to libdoca, and does not wait
// for it again until it goes on.
func (e *endpoint) look(at time.Time) {
	if last := e.looked.Load(); e.standsStill.Load() || last != nil && !last.Before(at) {
		return
	}
	looked := make(chan struct{})
	runs := e.engine.Do(func() {
		begun := time.Now()
		// Also while the endpoint is paused: a peer whose messages nobody reads must not hide the
		// end of another.
		for range looks {
			if e.control.Turn(budget, e.handle) == 0 {
				e.looked.Store(&begun)
				break
			}
		}
		if e.control.State() == progress.Idle {
			e.endAll()
		}
		close(looked)
		e.standsStill.Store(false)
	})
	if !runs {
		return
	}
	timeout := time.NewTimer(lookTimeout)
	defer timeout.Stop()
	select {
	case <-looked:
	case <-timeout.C:
		e.standsStill.Store(true)
		select {
		case <-looked: // just now: nobody would undo it
			e.standsStill.Store(false)
		default:
		}
	}
}

// awaitEnd waits for the end of an endpoint of which nothing is left to close: only then is a
// server's name free. Otherwise it returns at once.
func (e *endpoint) awaitEnd() error {
	unused := true
	_ = e.do(func() error { // fails if the thread has ended
		unused = e.users == e.rejected
		return nil
	})
	if !unused {
		return nil
	}
	<-e.exited
	return e.endErr
}

// handle delivers an event. Only the thread calls it, within a turn.
func (e *endpoint) handle(event doca.ControlEvent) {
	if event.Kind == doca.Connected {
		if event.Err != nil {
			e.log.Info("a client has failed to connect", zap.Error(event.Err))
			return
		}
		e.connections[event.Connection] = e.connected(event.Connection)
		return
	}
	c := e.connections[event.Connection]
	if c == nil {
		return
	}
	switch event.Kind {
	case doca.Disconnected:
		c.lose()
	case doca.MessageReceived:
		if c.deliver(event.Message) && e.full == nil {
			e.full, e.fullSince = c, time.Now()
		}
	case doca.MessageSent:
		if event.UserData == c.number {
			c.sent(event.Err)
		}
	case doca.ConsumerCreated, doca.ConsumerExpired:
		c.consumerEvent(comch.ConsumerEvent{ID: comch.ConsumerID(event.Consumer),
			Created: event.Kind == doca.ConsumerCreated})
	}
}

// endAll ends all connections, because the context is Idle.
func (e *endpoint) endAll() {
	for _, c := range e.connections {
		c.lose()
	}
}

// leave drops one user. Only the thread calls it.
func (e *endpoint) leave() { e.users-- }

// finish stops the context when nobody uses it, and ends the thread when it has stopped. libdoca
// refuses to stop the context while it has consumers or producers.
func (e *endpoint) finish() {
	if e.users > 0 || e.ended {
		return
	}
	if e.leaking {
		e.ended = true
		return
	}
	if !e.ending {
		e.ending = true
		if e.control.State() != progress.Idle {
			if err := e.control.Stop(); err != nil {
				e.log.Warn("stop a DOCA Comch context", zap.Error(err))
			}
		}
		e.begin(comch.CloseTimeout, func() bool {
			e.ended = e.control.State() == progress.Idle
			return e.ended
		})
		return
	}
	if len(e.steps) == 0 {
		e.ended = true // Idle, or out of time
	}
}
