// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/roster"
)

// OtherClients is the name of the clients beyond Config.CountedClients together.
const OtherClients = roster.Others

// counters counts the requests of a connection. Only its worker counts.
type counters struct {
	requests [CommandCount][len(errnos)]atomic.Uint64
	bytes    [CommandCount]atomic.Uint64
	inFlight atomic.Int64

	client string // as in the log
	since  time.Time
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

// counts is what connections have counted.
type counts struct {
	requests [CommandCount][len(errnos)]uint64
	bytes    [CommandCount]uint64
	inFlight int64
}

func (n *counts) add(c *counters) {
	for command := range n.requests {
		for i := range n.requests[command] {
			n.requests[command][i] += c.requests[command][i].Load()
		}
		n.bytes[command] += c.bytes[command].Load()
	}
	n.inFlight += c.inFlight.Load()
}

// counterSet adds up the counters of the connections to an export, or of a client. What connections
// have counted stays when they end. The zero value has none. Its methods may be called
// concurrently.
type counterSet struct {
	mu     sync.Mutex // guards what follows, not what the counters count
	open   map[*counters]struct{}
	closed counts
}

func (s *counterSet) include(c *counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[*counters]struct{})
	}
	s.open[c] = struct{}{}
}

func (s *counterSet) retire(c *counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, isOpen := s.open[c]; !isOpen {
		return
	}
	delete(s.open, c)
	s.closed.add(c)
	s.closed.inFlight = 0
}

// isIdle reports whether no connection counts.
func (s *counterSet) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) == 0
}

func (s *counterSet) total() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.closed
	for c := range s.open {
		total.add(c)
	}
	return total
}

// connections returns what the open connections have counted, the oldest first.
func (s *counterSet) connections() []ConnectionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ConnectionStatus
	for c := range s.open {
		var n counts
		n.add(c)
		all = append(all, ConnectionStatus{Client: c.client, Since: c.since, IOStatus: n.status()})
	}
	slices.SortFunc(all, func(a, b ConnectionStatus) int { return a.Since.Compare(b.Since) })
	return all
}

// IOStatus is what connections have done.
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

func (n *counts) status() IOStatus {
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

// ExportStatus is the state of an export, and what its clients have done since it was added.
type ExportStatus struct {
	Name string
	Info Info
	// Connections is the number of connections now, and Accepted that of all so far.
	Connections int
	Accepted    uint64
	IOStatus
	// Open holds the connections whose clients have chosen the export, and Clients what the clients
	// have done that are counted by name (Config.CountedClients), sorted by name.
	Open    []ConnectionStatus
	Clients []ClientStatus
}

// ConnectionStatus is the state of a connection.
type ConnectionStatus struct {
	// Client describes the client as the log does.
	Client string
	Since  time.Time
	IOStatus
}

// ClientStatus is what the connections of a client have done.
type ClientStatus struct {
	Client string
	IOStatus
}

// Status returns the state of all exports.
func (s *Server) Status() []ExportStatus {
	var all []ExportStatus
	for _, e := range s.list() {
		total := e.counters.total()
		state := ExportStatus{
			Name: e.name, Info: e.Info(), Connections: int(e.open.Load()),
			Accepted: e.accepted.Load(), IOStatus: total.status(),
			Open: e.counters.connections(),
		}
		for client, set := range s.clients.All(e.name) {
			counted := set.total()
			state.Clients = append(state.Clients, ClientStatus{client, counted.status()})
		}
		slices.SortFunc(state.Clients,
			func(a, b ClientStatus) int { return cmp.Compare(a.Client, b.Client) })
		all = append(all, state)
	}
	return all
}
