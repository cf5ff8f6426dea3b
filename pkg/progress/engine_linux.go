package progress

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Engine drives the contexts of one thread (a DOCA progress engine). Only Do,
// Wake and Stats may be called by other threads; everything else belongs to
// the thread that runs the engine.
type Engine struct {
	policy  Policy
	sources []Source
	waiters []*registration

	epoll  int
	wakeup int // eventfd, private to this process
	events []unix.EpollEvent

	pending  atomic.Bool // commands are queued
	sleeping atomic.Bool
	closed   atomic.Bool
	mu       sync.Mutex // guards commands
	commands []func()
	running  []func() // the owner's spare slice

	idle  idleState
	stats statistics
}

// registration ties a Waiter to its descriptor in the epoll set.
type registration struct {
	waiter     Waiter
	descriptor int
	armed      bool
}

// maxEvents bounds how many ready descriptors one wake-up reports; more are
// reported by the next.
const maxEvents = 64

// wakeupToken marks the engine's own eventfd in epoll events; registrations
// carry their index.
const wakeupToken = -1

// NewEngine makes an engine without sources. Close releases it.
func NewEngine(policy Policy) (*Engine, error) {
	if err := policy.validate(); err != nil {
		return nil, err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create progress engine: epoll: %w", err)
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create progress engine: eventfd: %w", err), unix.Close(epoll))
	}
	e := &Engine{policy: policy, epoll: epoll, wakeup: wakeup, events: make([]unix.EpollEvent, maxEvents)}
	e.idle.pause = shortestPause
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeupToken}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wakeup, &event); err != nil {
		return nil, errors.Join(fmt.Errorf("create progress engine: watch eventfd: %w", err), e.Close())
	}
	return e, nil
}

// Close releases the engine; its sources are not polled any more. Commands
// that Do has accepted and that have not run yet are run by Close, so that
// none is lost; later ones are refused.
func (e *Engine) Close() error {
	e.mu.Lock()
	closed := e.closed.Swap(true)
	e.mu.Unlock()
	if closed {
		return nil
	}
	e.runCommands()
	e.stats.publish()
	return errors.Join(unix.Close(e.epoll), unix.Close(e.wakeup))
}

// Add makes the engine poll source. If source is a Waiter, the engine also
// sleeps on it. On error nothing has changed; a source that is no Waiter
// cannot fail.
func (e *Engine) Add(source Source) error {
	if waiter, ok := source.(Waiter); ok {
		if err := e.AddWaiter(waiter); err != nil {
			return err
		}
	}
	e.sources = append(e.sources, source)
	return nil
}

// Remove stops polling source, and sleeping on it. From within Poll of any
// source, source may be polled once more before Progress returns.
func (e *Engine) Remove(source Source) {
	if waiter, ok := source.(Waiter); ok {
		e.RemoveWaiter(waiter)
	}
	for i, s := range e.sources {
		if s == source {
			// A copy, because Progress may be iterating over the old slice.
			e.sources = slices.Delete(slices.Clone(e.sources), i, i+1)
			return
		}
	}
}

// AddWaiter makes the engine sleep only as long as waiter has nothing to do.
func (e *Engine) AddWaiter(waiter Waiter) error {
	r := &registration{waiter: waiter, descriptor: waiter.Descriptor()}
	if r.descriptor >= 0 {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(r.descriptor)}
		if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, r.descriptor, &event); err != nil {
			return fmt.Errorf("watch descriptor %d of %T: %w", r.descriptor, waiter, err)
		}
	}
	e.waiters = append(e.waiters, r)
	return nil
}

// RemoveWaiter forgets waiter, whose descriptor must still be open.
func (e *Engine) RemoveWaiter(waiter Waiter) {
	for i, r := range e.waiters {
		if r.waiter != waiter {
			continue
		}
		if r.descriptor >= 0 {
			// The descriptor leaves the set when it is closed anyway.
			_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, r.descriptor, nil)
		}
		e.waiters = append(e.waiters[:i], e.waiters[i+1:]...)
		return
	}
}

// Progress runs queued commands, polls every source once and returns how much
// work was done.
func (e *Engine) Progress() int {
	done := 0
	if e.pending.Load() {
		done += e.runCommands()
	}
	for _, s := range e.sources {
		done += s.Poll()
	}
	return done
}

// Do has the engine's thread call command between two polls. It may be called
// by any goroutine and does not wait. It returns false if the engine is
// closed; the command will then never run.
func (e *Engine) Do(command func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return false
	}
	e.commands = append(e.commands, command)
	e.pending.Store(true)
	e.wakeLocked()
	return true
}

// Wake ends the sleep of the engine's thread, or keeps it from falling
// asleep once.
func (e *Engine) Wake() { e.Do(func() {}) }

func (e *Engine) wakeLocked() {
	if !e.sleeping.Load() {
		return
	}
	// A full counter means that it has been rung already.
	_, _ = unix.Write(e.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (e *Engine) runCommands() int {
	e.mu.Lock()
	commands := e.commands
	e.commands = e.running[:0]
	e.pending.Store(false)
	e.mu.Unlock()
	for i, command := range commands {
		command()
		commands[i] = nil
	}
	e.running = commands
	return len(commands)
}
