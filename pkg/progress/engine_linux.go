package progress

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	if r.descriptor != NoDescriptor {
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
		if r.descriptor != NoDescriptor {
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

// safetyTimeout bounds every sleep. Nothing depends on it: work that is found
// when it strikes is counted as a lost wake-up.
const safetyTimeout = time.Second

// Pauses between polls of contexts that cannot be waited for.
const (
	shortestPause = 50 * time.Microsecond
	longestPause  = 2 * time.Millisecond
)

// yieldsPerClock is how many empty turns share one look at the clock.
const yieldsPerClock = 4

// idleState is what an engine remembers of the empty turns behind it.
type idleState struct {
	misses int       // empty turns in a row
	since  time.Time // when the row began
	pause  time.Duration
}

// Idle is called after every turn with the work it did, and does what the
// policy says: nothing, give the core away, or sleep.
func (e *Engine) Idle(work int) {
	e.stats.turn(work)
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
	if e.spinTimeIsUp() {
		e.sleep()
		e.idle.misses = 0
		return
	}
	Yield()
}

func (e *Engine) spinTimeIsUp() bool {
	if e.idle.misses == 1 {
		e.idle.since = time.Now()
		return false
	}
	if e.idle.misses%yieldsPerClock != 0 {
		return false
	}
	return time.Since(e.idle.since) > e.policy.SpinTime
}

// sleep waits in the kernel until a waiter has work, Do is called or a bound
// is reached. It may return early.
func (e *Engine) sleep() {
	e.sleeping.Store(true)
	if !e.pending.Load() && e.armAll() {
		e.stats.local.Sleeps++
		e.stats.publish()
		e.wait()
	}
	e.sleeping.Store(false)
	e.disarmAll()
}

// armAll arms every waiter, or stops at the first that has work.
func (e *Engine) armAll() bool {
	for _, r := range e.waiters {
		if !r.waiter.Arm() {
			return false
		}
		r.armed = true
	}
	return true
}

func (e *Engine) disarmAll() {
	for _, r := range e.waiters {
		if r.armed {
			r.armed = false
			r.waiter.Disarm()
		}
	}
}

func (e *Engine) wait() {
	if e.mustPause() {
		e.waitFor(e.idle.pause)
		e.idle.pause = min(2*e.idle.pause, longestPause)
		return
	}
	if e.waitFor(safetyTimeout) == 0 {
		e.countLateWakeups()
	}
}

// mustPause reports whether a context has no descriptor to sleep on.
func (e *Engine) mustPause() bool {
	for _, r := range e.waiters {
		if r.descriptor == NoDescriptor {
			return true
		}
	}
	return false
}

// waitFor sleeps until a descriptor is readable or the time is up, drains
// what is readable and returns its number.
func (e *Engine) waitFor(bound time.Duration) int {
	if bound < time.Millisecond {
		// epoll_wait counts in milliseconds.
		timeout := unix.NsecToTimespec(bound.Nanoseconds())
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(e.epoll), Events: unix.POLLIN}}, &timeout, nil)
		bound = 0
	}
	n, err := unix.EpollWait(e.epoll, e.events, int(bound.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return 1 // as if woken: whoever looks for lost wake-ups must not count this
	}
	if err != nil {
		// The engine's own descriptor cannot fail while it is open.
		panic("progress: epoll_wait: " + err.Error())
	}
	for _, event := range e.events[:n] {
		e.drain(event.Fd)
	}
	return n
}

func (e *Engine) drain(descriptor int32) {
	if descriptor == wakeupToken {
		var count [8]byte
		_, _ = unix.Read(e.wakeup, count[:])
		return
	}
	for _, r := range e.waiters {
		if r.descriptor == int(descriptor) {
			r.waiter.Drain()
			return
		}
	}
}

// countLateWakeups looks for work that nobody announced. Work that arrived
// this very moment is announced shortly after, so it gets the time for that.
func (e *Engine) countLateWakeups() {
	late := false
	for _, r := range e.waiters {
		if !r.waiter.Arm() {
			r.armed = false
			late = true
		}
	}
	if late && e.waitFor(20*time.Millisecond) == 0 {
		e.stats.local.LateWakeups++
	}
}

// Yield gives the core to another runnable thread. It never blocks, so the
// runtime need not be told: that would cost more than the call.
func Yield() {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
