// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/roster"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// OtherClients is the name of the clients beyond Config.CountedClients together.
const OtherClients = roster.Others

// counters counts the requests of a connection. Only its worker counts.
type counters struct {
	blockio.Counters
	client string // as in the log
	since  time.Time
}

// counterSet adds up the counters of the connections to an export, or of a client. What connections
// have counted stays when they end. The zero value has none. Its methods may be called
// concurrently.
type counterSet struct {
	mu     sync.Mutex // guards what follows, not what the counters count
	open   map[*counters]struct{}
	closed blockio.Counts
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
	s.closed.AddEnded(&c.Counters)
}

// isIdle reports whether no connection counts.
func (s *counterSet) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) == 0
}

func (s *counterSet) total() blockio.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.closed
	for c := range s.open {
		total.Add(&c.Counters)
	}
	return total
}

// connections returns what the open connections have counted, the oldest first.
func (s *counterSet) connections() []ConnectionStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ConnectionStatus
	for c := range s.open {
		var n blockio.Counts
		n.Add(&c.Counters)
		all = append(all, ConnectionStatus{Client: c.client, Since: c.since, IOStatus: n.Status()})
	}
	slices.SortFunc(all, func(a, b ConnectionStatus) int { return a.Since.Compare(b.Since) })
	return all
}

// ExportStatus is the state of an export, and what its clients have done since it was added.
type ExportStatus struct {
	Name string
	Info blockio.Info
	// Connections is the number of connections now, and Accepted that of all so far.
	Connections int
	Accepted    uint64
	blockio.IOStatus
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
	blockio.IOStatus
}

// ClientStatus is what the connections of a client have done.
type ClientStatus struct {
	Client string
	blockio.IOStatus
}

// Status returns the state of all exports.
func (s *Server) Status() []ExportStatus {
	var all []ExportStatus
	for _, e := range s.list() {
		total := e.counters.total()
		state := ExportStatus{
			Name: e.name, Info: e.Info(), Connections: int(e.open.Load()),
			Accepted: e.accepted.Load(), IOStatus: total.Status(),
			Open: e.counters.connections(),
		}
		for client, set := range s.clients.All(e.name) {
			counted := set.total()
			state.Clients = append(state.Clients, ClientStatus{client, counted.Status()})
		}
		slices.SortFunc(state.Clients,
			func(a, b ClientStatus) int { return cmp.Compare(a.Client, b.Client) })
		all = append(all, state)
	}
	return all
}
