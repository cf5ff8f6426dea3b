// SPDX-License-Identifier: Apache-2.0

package blockio

import (
	"slices"
	"sync/atomic"
)

// Counters counts the requests of one session. Only its worker counts, and any goroutine may read.
// The zero value has counted nothing.
type Counters struct {
	requests [CommandCount][len(errnos)]atomic.Uint64
	bytes    [CommandCount]atomic.Uint64
	inFlight atomic.Int64
}

// errnos holds the outcomes that are counted, in the order of the counters.
var errnos = [...]Errno{Success, NotPermitted, IOError, NoMemory, Invalid, NoSpace, Overflow,
	NotSupported, Shutdown}

// Outcomes returns the outcomes that RequestCount distinguishes.
func Outcomes() []Errno { return slices.Clone(errnos[:]) }

// Begin counts a request that is in flight until End.
func (c *Counters) Begin() { c.inFlight.Add(1) }

// End counts a request that is not in flight any more.
func (c *Counters) End() { c.inFlight.Add(-1) }

// Count counts a request of length bytes that has been answered.
func (c *Counters) Count(command Command, outcome Errno, length uint64) {
	if int(command) >= CommandCount {
		return
	}
	for i, e := range errnos {
		if e == outcome {
			c.requests[command][i].Add(1)
			break
		}
	}
	if outcome == Success && command.MovesData() {
		c.bytes[command].Add(length)
	}
}

// Counts is the sum of what Counters have counted. The zero value is that of none.
type Counts struct {
	requests [CommandCount][len(errnos)]uint64
	bytes    [CommandCount]uint64
	inFlight int64
}

// Add adds what c has counted.
func (n *Counts) Add(c *Counters) {
	for command := range n.requests {
		for i := range n.requests[command] {
			n.requests[command][i] += c.requests[command][i].Load()
		}
		n.bytes[command] += c.bytes[command].Load()
	}
	n.inFlight += c.inFlight.Load()
}

// AddEnded adds what the counters of a session that has ended have counted, which has nothing in
// flight.
func (n *Counts) AddEnded(c *Counters) {
	former := n.inFlight
	n.Add(c)
	n.inFlight = former
}

// IOStatus is what sessions have done.
type IOStatus struct {
	// InFlight is the number of requests that have not been answered.
	InFlight int
	// Requests holds the number of requests that have been answered, without those of which there
	// were none.
	Requests []RequestCount
	// BytesRead and BytesWritten count what successful requests have moved.
	BytesRead, BytesWritten uint64
}

// Answered returns the number of requests that have been answered, and how many of them failed.
func (s *IOStatus) Answered() (all, failed uint64) {
	for _, r := range s.Requests {
		all += r.Count
		if r.Error != Success {
			failed += r.Count
		}
	}
	return all, failed
}

// RequestCount is a number of requests with the same command and outcome.
type RequestCount struct {
	Command Command
	Error   Errno
	Count   uint64
}

// Status returns the sums.
func (n *Counts) Status() IOStatus {
	s := IOStatus{InFlight: int(n.inFlight), BytesRead: n.bytes[Read], BytesWritten: n.bytes[Write]}
	for command := range Command(CommandCount) {
		for i, outcome := range errnos {
			if count := n.requests[command][i]; count > 0 {
				s.Requests = append(s.Requests,
					RequestCount{Command: command, Error: outcome, Count: count})
			}
		}
	}
	return s
}
