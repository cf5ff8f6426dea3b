// SPDX-License-Identifier: Apache-2.0

// Package progress lets one thread drive many sources of work. A progress engine polls the sources,
// and puts the thread to sleep when none has work.
package progress

import (
	"sync/atomic"
	"time"
)

// Source is something that an Engine polls, for instance a completion queue or a DOCA context. Only
// the engine's thread calls its methods.
type Source interface {
	// Poll makes progress without blocking and returns how much it did, 0 for nothing. It bounds
	// its work per call, so that other sources get their turn.
	Poll() int
}

// Watch lets an engine skip a source whose poll would find nothing, which it knows as long as Word
// has the value Idle. While Word is nil, the source is polled. A look at one word costs less than a
// poll, which touches what the source consists of.
type Watch struct {
	Word *atomic.Uint64
	Idle uint64
}

// IsIdle reports whether a poll would find nothing.
func (w *Watch) IsIdle() bool { return w.Word != nil && w.Word.Load() == w.Idle }

// WatchedSource is a Source with a Watch.
type WatchedSource interface {
	Source
	// Watch returns the source's watch, always the same, which the source changes on the engine's
	// thread. A source whose Word is not its own clears it before the word's memory is unmapped.
	Watch() *Watch
}

// NoDescriptor is returned by Waiter.Descriptor if a thread cannot sleep on the waiter, for
// instance because a device's driver does not signal its completions. An engine with such a waiter
// polls with growing pauses instead of sleeping.
const NoDescriptor = -1

// Waiter is what a thread can sleep on instead of polling it. An engine also sleeps on a Source
// that is a Waiter.
//
// This protocol loses no wake-up: Arm announces to the peer that this side is about to sleep, and
// then checks once more for work. If Arm returns true, there was no work, and from then on any new
// work makes Descriptor readable, until Disarm. The announcement on this side and the check for it
// on the waking side are both sequentially consistent.
type Waiter interface {
	// Descriptor returns a file descriptor that epoll can wait for; it is readable while the waiter
	// is armed and has work. It never changes. NoDescriptor means that a thread cannot sleep on the
	// waiter.
	Descriptor() int
	// Arm prepares for sleep. It returns false if there is work already; the waiter is then not
	// armed, even if it was before.
	Arm() bool
	// Disarm ends what Arm began. It is called only while the waiter is armed.
	Disarm()
	// Clear consumes what made Descriptor readable. It is called after the engine has seen the
	// descriptor readable.
	Clear()
}

// TimedWaiter is a Waiter that may have work at a time that it knows, without anything that makes
// its descriptor readable.
type TimedWaiter interface {
	Waiter
	// Due returns how long it will be until then; false if only the descriptor announces work. The
	// engine calls it between Arm, which has returned true, and Disarm.
	Due() (in time.Duration, ok bool)
}

// State is the state of a context (DOCA Core context state machine).
type State int32

// A context is Idle until it is started, Starting until its peer has agreed, Running while it can
// do work, and Stopping until everything submitted has completed.
const (
	Idle State = iota
	Starting
	Running
	Stopping
)

// String returns the lower-case name of the state.
func (s State) String() string {
	switch s {
	case Idle:
		return "idle"
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	}
	return "invalid"
}
