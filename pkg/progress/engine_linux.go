// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Engine polls the sources of one thread, and sleeps on their waiters (a DOCA progress engine).
// Other threads may only call Do, Wake, and Stats; everything else is for the thread that runs the
// engine.
type Engine struct {
	policy  Policy
	sources []polled
	waiters []*registration

	epoll  int
	wakeup int // eventfd that ends a sleep
	events []unix.EpollEvent

	pending  atomic.Bool // commands is not empty
	sleeping atomic.Bool
	closed   atomic.Bool
	mu       sync.Mutex // guards commands
	commands []func()
	running  []func() // spare slice, for the owner only

	idle  idleState
	stats statistics
}

var _ io.Closer = (*Engine)(nil)

// polled is a source and its watch, nil if it has none.
type polled struct {
	source Source
	watch  *Watch
}

// registration links a Waiter to its descriptor in the epoll set.
type registration struct {
	waiter     Waiter
	timed      TimedWaiter // the waiter, if it is one
	descriptor int
	armed      bool
}

// maxEvents bounds the ready descriptors that one wake-up reports; the next one reports the rest.
const maxEvents = 64

// wakeupToken marks the engine's own eventfd in epoll events. Other events carry the waiter's
// descriptor.
const wakeupToken = -1

// NewEngine creates an engine without sources. Close releases it.
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
		return nil, errors.Join(fmt.Errorf("create progress engine: eventfd: %w", err),
			unix.Close(epoll))
	}
	e := &Engine{
		policy: policy, epoll: epoll, wakeup: wakeup, events: make([]unix.EpollEvent, maxEvents),
	}
	e.idle.pause = shortestPause
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeupToken}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wakeup, &event); err != nil {
		return nil, errors.Join(fmt.Errorf("create progress engine: watch eventfd: %w", err),
			e.Close())
	}
	return e, nil
}

// Close releases the engine, which then no longer polls its sources. It runs the commands that Do
// has accepted and that have not run yet; Do rejects later ones, and Add fails with
// status.ErrClosed. Close does nothing the second time.
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

// Add makes the engine poll source. If source is a Waiter, the engine also sleeps on it. If Add
// fails, nothing has changed. It fails with status.ErrClosed after Close.
func (e *Engine) Add(source Source) error {
	if source == nil {
		return status.Errorf(status.InvalidValue, "add a source to a progress engine: it is nil")
	}
	if e.closed.Load() {
		return errClosed()
	}
	if waiter, ok := source.(Waiter); ok {
		if err := e.AddWaiter(waiter); err != nil {
			return err
		}
	}
	p := polled{source: source}
	if watched, ok := source.(WatchedSource); ok {
		p.watch = watched.Watch()
	}
	e.sources = append(e.sources, p)
	return nil
}

// Remove stops polling source and sleeping on it. If it is called from within Poll of any source,
// source may be polled once more before Progress returns.
func (e *Engine) Remove(source Source) {
	if waiter, ok := source.(Waiter); ok {
		e.RemoveWaiter(waiter)
	}
	for i, p := range e.sources {
		if p.source == source {
			// A copy, because Progress may be iterating over the old slice.
			e.sources = slices.Delete(slices.Clone(e.sources), i, i+1)
			return
		}
	}
}

func errClosed() error { return fmt.Errorf("progress engine: %w", status.ErrClosed) }

// AddWaiter makes the engine sleep only while waiter has no work. It fails with status.ErrClosed
// after Close.
func (e *Engine) AddWaiter(waiter Waiter) error {
	if waiter == nil {
		return status.Errorf(status.InvalidValue, "add a waiter to a progress engine: it is nil")
	}
	if e.closed.Load() {
		return errClosed()
	}
	r := &registration{waiter: waiter, descriptor: waiter.Descriptor()}
	r.timed, _ = waiter.(TimedWaiter)
	if r.descriptor != NoDescriptor {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(r.descriptor)}
		if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, r.descriptor, &event); err != nil {
			return fmt.Errorf("watch descriptor %d of %T: %w", r.descriptor, waiter, err)
		}
	}
	e.waiters = append(e.waiters, r)
	return nil
}

// RemoveWaiter stops sleeping on waiter, whose descriptor must still be open.
func (e *Engine) RemoveWaiter(waiter Waiter) {
	for i, r := range e.waiters {
		if r.waiter != waiter {
			continue
		}
		if r.descriptor != NoDescriptor {
			// An error does not matter: closing the descriptor removes it from the set, too.
			_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, r.descriptor, nil)
		}
		e.waiters = slices.Delete(e.waiters, i, i+1) // keeps no reference to it
		return
	}
}

// Progress runs queued commands, polls every source once, except those whose watches say that they
// have nothing to do, and returns how much work was done.
func (e *Engine) Progress() int {
	done := 0
	if e.pending.Load() {
		done += e.runCommands()
	}
	for _, p := range e.sources {
		if p.watch == nil || !p.watch.IsIdle() {
			done += p.source.Poll()
		}
	}
	return done
}

// Do queues a command for the engine's thread, which runs it between two polls. Any goroutine may
// call Do; it does not wait. It returns false if the engine is closed, or the command is nil: it
// will never run.
func (e *Engine) Do(command func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() || command == nil {
		return false
	}
	e.commands = append(e.commands, command)
	e.pending.Store(true)
	if e.sleeping.Load() {
		e.ring()
	}
	return true
}

// ring ends the sleep of the engine's thread.
func (e *Engine) ring() {
	// The write can only fail on a full counter, which wakes the thread as well.
	_, _ = unix.Write(e.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Wake ends the sleep of the engine's thread, or makes its next attempt to sleep return at once.
func (e *Engine) Wake() { e.Do(func() {}) }

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

// safetyTimeout bounds every sleep. Nothing depends on it: work found when it expires counts as a
// lost wake-up.
const safetyTimeout = time.Second

// Pauses between polls of waiters without a descriptor.
const (
	shortestPause = 50 * time.Microsecond
	longestPause  = 2 * time.Millisecond
)

// yieldsPerClock is the number of empty turns for each reading of the clock.
const yieldsPerClock = 4

// idleState describes the empty turns since the last work.
type idleState struct {
	misses int           // empty turns in a row
	since  time.Time     // when the first of them ended
	pause  time.Duration // the next pause, if a waiter has no descriptor
}

// Idle is called after every turn with the amount of work done. It does what the policy says:
// nothing, yield the core, or sleep.
func (e *Engine) Idle(work int) {
	e.stats.turn(work)
	if e.policy.Mode == Stepped {
		e.policy.Step(work)
		return
	}
	if work > 0 {
		e.idle.misses = 0
		e.idle.pause = shortestPause
		return
	}
	switch e.policy.Mode {
	case Busy:
		return
	case Event:
		e.sleep()
		return
	}
	e.idle.misses++
	switch {
	case e.idle.misses == 1:
		e.idle.since = time.Now()
	case e.idle.misses%yieldsPerClock == 0 && time.Since(e.idle.since) > e.policy.SpinTime:
		e.sleep()
		e.idle.misses = 0
		return
	}
	Yield()
}

// sleep waits in the kernel until a waiter has work, Do is called, or the safety timeout expires.
// It may return early.
func (e *Engine) sleep() {
	e.sleeping.Store(true)
	if !e.pending.Load() && e.armAll() {
		e.stats.local.Sleeps++
		e.stats.publish()
		if slices.ContainsFunc(e.waiters, (*registration).cannotSleep) {
			e.waitFor(min(e.idle.pause, e.due()))
			e.idle.pause = min(2*e.idle.pause, longestPause)
		} else if due := e.due(); e.waitFor(min(due, safetyTimeout)) == 0 && due > safetyTimeout {
			e.countLateWakeups()
		}
	}
	e.wakeAll()
}

// wakeAll ends what sleep has begun.
func (e *Engine) wakeAll() {
	e.sleeping.Store(false)
	for _, r := range e.waiters {
		if r.armed {
			r.armed = false
			r.waiter.Disarm()
		}
	}
}

// Descriptor returns a descriptor on which an event loop of the caller's can sleep instead of Idle,
// by itself or among others: it is readable between Arm and Disarm while the engine may have
// something to do (level-triggered). The engine owns it, and Close closes it.
func (e *Engine) Descriptor() int { return e.epoll }

// Arm is called before the caller's event loop sleeps on Descriptor. From then on, whatever the
// engine gets to do makes it readable, and so it does at once if there is something already: no
// wake-up is lost. It is readable at once, too, if a thread cannot sleep on one of the waiters, or
// one has something to do because of the time. After the sleep, call Disarm, and then Progress.
func (e *Engine) Arm() {
	e.sleeping.Store(true)
	if e.pending.Load() || !e.armAll() || e.due() < math.MaxInt64 ||
		slices.ContainsFunc(e.waiters, (*registration).cannotSleep) {
		e.ring()
	}
}

// Disarm ends what Arm has begun, and clears Descriptor. Without Arm it does nothing.
func (e *Engine) Disarm() {
	if e.sleeping.Load() {
		e.waitFor(0)
		e.wakeAll()
	}
}

// isTimed reports whether the waiter will have work because of the time.
func (r *registration) isTimed() bool {
	if r.timed == nil {
		return false
	}
	_, ok := r.timed.Due()
	return ok
}

func (r *registration) cannotSleep() bool { return r.descriptor == NoDescriptor }

// due returns how long it takes until an armed waiter has work because of the time.
func (e *Engine) due() time.Duration {
	due := time.Duration(math.MaxInt64)
	for _, r := range e.waiters {
		if r.timed == nil {
			continue
		}
		if in, ok := r.timed.Due(); ok {
			due = min(due, max(in, 0))
		}
	}
	return due
}

// armAll arms every waiter. It stops and returns false at the first that has work.
func (e *Engine) armAll() bool {
	for _, r := range e.waiters {
		if !r.waiter.Arm() {
			return false
		}
		r.armed = true
	}
	return true
}

// waitFor sleeps until a descriptor is readable or the time is up. It clears the readable
// descriptors and returns their number.
func (e *Engine) waitFor(bound time.Duration) int {
	if 0 < bound && bound < time.Millisecond {
		// epoll_wait counts in milliseconds.
		timeout := unix.NsecToTimespec(bound.Nanoseconds())
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(e.epoll), Events: unix.POLLIN}}, &timeout, nil)
		bound = 0
	}
	n, err := unix.EpollWait(e.epoll, e.events, int(bound.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return 1 // as if woken, so that it does not count as a lost wake-up
	}
	if err != nil {
		// The engine's own descriptor cannot fail while it is open.
		panic("progress: epoll_wait: " + err.Error())
	}
	for _, event := range e.events[:n] {
		e.clear(event.Fd)
	}
	return n
}

func (e *Engine) clear(descriptor int32) {
	if descriptor == wakeupToken {
		var count [8]byte
		_, _ = unix.Read(e.wakeup, count[:])
		return
	}
	for _, r := range e.waiters {
		if r.descriptor == int(descriptor) {
			r.waiter.Clear()
			return
		}
	}
}

// announcementTimeout is how long the peer may take from making work visible to announcing it. On a
// busy machine it may have to wait for a core in between.
const announcementTimeout = 500 * time.Millisecond

// countLateWakeups looks for work that was not announced. Work that has only just arrived is
// announced shortly after, so countLateWakeups waits for that.
func (e *Engine) countLateWakeups() {
	late := false
	for _, r := range e.waiters {
		wasDue := r.isTimed()
		if !r.waiter.Arm() {
			r.armed = false
			late = late || !wasDue
		}
	}
	if late && e.waitFor(announcementTimeout) == 0 {
		e.stats.local.LateWakeups++
	}
}

// Yield gives the core to another runnable thread (sched_yield(2)). It never blocks, so it bypasses
// the Go runtime's bookkeeping for system calls, which would cost more than the call.
func Yield() {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
