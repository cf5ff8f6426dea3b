// SPDX-License-Identifier: Apache-2.0

// Package lease keeps what a relay has sent for a session from taking effect after the session has
// ended, however long a network has held it.
//
// A relay may change the volumes of a target while it answers the target's questions. An answer
// counts from its question, so one that the network has held grants nothing; and it names the
// sessions of the relay that have ended. Each side draws its conclusions:
//
//   - The target looks at the lease just before it submits a change to a volume. Beyond the lease,
//     the change waits for the next answer. The target ends what an answer names before it lets
//     anything pass.
//   - The relay fails the changes that a session had in flight when the target has confirmed that
//     nothing of it can take effect any more, or when the last lease that did not name it is over.
//   - A target that opens a volume for somebody asks the other relays that may change it, and ends
//     the sessions of those that do not answer for as long as a lease lasts.
//
// So a change that was told to have failed, and one that comes before a successor's, are dropped or
// have finished, whatever is delivered when. docs/dev/protocol.md has the messages and all numbers.
//
// A relay answers a question only when it has looked at each of its clients since the question came
// (Lessee.Run), so that a client that had ended before is named.
//
// Times are those of a clock that runs while the machine sleeps, in nanoseconds. The two sides do
// not compare their clocks. Rates must agree within a hundredth.
package lease

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/linux"
)

// Length is the length of a lease.
const Length = 5 * time.Second

// WithDrift returns the longest that a lease of a length lasts by the clock of the other side.
func WithDrift(length time.Duration) time.Duration { return length + length/100 }

// MaxEnded bounds each list of sessions in an answer. A relay for which that is not enough to name
// what has ended does not answer.
const MaxEnded = 128

// Instance stands for a relay towards one process of a target. It is random, and known to these two
// only, so that nobody else can speak for the relay.
type Instance = [16]byte

// Question is what a target says in a keep-alive.
type Question struct {
	// Number is the question, 0 if there is none. Later questions have larger numbers.
	Number uint64
	// Noted has the ended sessions that the relay has last named on this connection. Nothing of
	// them reaches a volume any more.
	Noted []uint64
	// Confirmed has the ended and awaited sessions, as last named, whose changes have finished,
	// too.
	Confirmed []uint64
}

// Answer is what a relay says in a keep-alive.
type Answer struct {
	// Instance is zero if the relay takes no part.
	Instance Instance
	// Question is the question that is answered; 0 if there is none, or if the relay cannot answer.
	Question uint64
	// Ended has the sessions that have ended and are not noted, and Awaited those that are noted
	// and not confirmed.
	Ended, Awaited []uint64
}

// Clock returns the time in nanoseconds. It is called by any goroutine, and never returns less than
// before.
type Clock func() int64

// Boottime is the Clock of this machine, CLOCK_BOOTTIME.
func Boottime() int64 { return int64(linux.BootTime()) }

// announced bounds the connections to one peer on which the same is said at once. There may be
// hundreds. If these few are held up, the next keep-alives say it on others.
const announced = 4

// announceOnSome calls tell for some connections.
func announceOnSome[C comparable](connections map[C]struct{}, tell func(C)) {
	left := announced
	for c := range connections {
		if left == 0 {
			return
		}
		left--
		tell(c)
	}
}
