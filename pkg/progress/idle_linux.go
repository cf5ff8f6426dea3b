package progress

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

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
		if r.descriptor < 0 {
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
