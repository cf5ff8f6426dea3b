package nbd

import (
	"slices"
	"sync/atomic"
)

// counters counts the requests to an export.
type counters struct {
	requests [CommandCount][len(errnos)]atomic.Uint64
	bytes    [CommandCount]atomic.Uint64
	inFlight atomic.Int64
}

// errnos holds the outcomes that are counted, in the order of the counters.
var errnos = [...]Errno{Success, NotPermitted, IOError, NoMemory, Invalid, NoSpace, Overflow,
	NotSupported, Shutdown}

// Outcomes returns the outcomes that RequestCount distinguishes.
func Outcomes() []Errno { return slices.Clone(errnos[:]) }

// count counts a request that has been answered.
func (c *counters) count(command Command, outcome Errno, length uint64) {
	if int(command) >= CommandCount {
		return
	}
	for i, e := range errnos {
		if e == outcome {
			c.requests[command][i].Add(1)
			break
		}
	}
	if outcome == Success && command.movesData() {
		c.bytes[command].Add(length)
	}
}

// ExportStatus is the state of an export, and what its clients have done since it was added.
type ExportStatus struct {
	Name string
	Info Info
	// Connections is the number of connections now, and Accepted that of all so far.
	Connections int
	Accepted    uint64
	// InFlight is the number of requests that have not been answered.
	InFlight int
	// Requests holds the number of requests that have been answered, without those of which there
	// were none.
	Requests []RequestCount
	// BytesRead and BytesWritten count what successful requests have moved.
	BytesRead, BytesWritten uint64
}

// RequestCount is a number of requests with the same command and outcome.
type RequestCount struct {
	Command Command
	Error   Errno
	Count   uint64
}

// Status returns the state of all exports.
func (s *Server) Status() []ExportStatus {
	var all []ExportStatus
	for _, e := range s.list() {
		state := ExportStatus{
			Name: e.name, Info: e.Info(), Connections: int(e.open.Load()),
			Accepted: e.accepted.Load(), InFlight: int(e.counters.inFlight.Load()),
			BytesRead:    e.counters.bytes[Read].Load(),
			BytesWritten: e.counters.bytes[Write].Load(),
		}
		for command := range Command(CommandCount) {
			for i, outcome := range errnos {
				if n := e.counters.requests[command][i].Load(); n > 0 {
					state.Requests = append(state.Requests,
						RequestCount{Command: command, Error: outcome, Count: n})
				}
			}
		}
		all = append(all, state)
	}
	return all
}
