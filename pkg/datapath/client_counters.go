// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"slices"

	"github.com/zc-relay/zc-relay/internal/roster"
)

// OtherClients is the name under which ClientCounters counts clients beyond its limit.
const OtherClients = roster.Others

// ClientCounters holds counters for a bounded number of clients by name. Each has an owner: a
// channel or a volume. Its methods may be called concurrently.
type ClientCounters struct{ clients *roster.Roster[CounterSet] }

// NewClientCounters returns counters for so many clients, of all owners together. With 0 there are
// none.
func NewClientCounters(limit int) *ClientCounters {
	return &ClientCounters{roster.New(limit, (*CounterSet).isIdle)}
}

// Of returns the counters of a client, nil if no clients are counted. Clients beyond the limit
// count as OtherClients, unless one of the others has no open lane, and gives up its place.
func (c *ClientCounters) Of(owner, client string) *CounterSet { return c.clients.Of(owner, client) }

// ClientCounts holds the counts of a client.
type ClientCounts struct {
	Client string
	*QueueCounts
}

// Counts returns the counts of an owner's clients, sorted by name.
func (c *ClientCounters) Counts(owner string) []ClientCounts {
	sets := c.clients.All(owner)
	all := make([]ClientCounts, 0, len(sets))
	for _, client := range slices.Sorted(maps.Keys(sets)) {
		all = append(all, ClientCounts{client, sets[client].Total()})
	}
	return all
}
