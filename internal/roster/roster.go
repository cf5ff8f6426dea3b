// SPDX-License-Identifier: Apache-2.0

// Package roster keeps something for each client by name. Clients choose their names, so the number
// of names is bounded.
package roster

import (
	"cmp"
	"regexp"
	"sync"

	"github.com/zc-relay/zc-relay/internal/printable"
)

const (
	// Others is the name of all clients beyond the limit together.
	Others = "other"
	// unnamed is the name of all clients without one.
	unnamed = "unnamed"
	// MaxName bounds a name, in bytes.
	MaxName = 128
)

// Roster has a value for each client of each owner, such as a channel or a volume. Its methods may
// be called concurrently.
type Roster[T any] struct {
	limit  int
	isIdle func(*T) bool

	mu      sync.Mutex // guards what follows
	entries map[key]*entry[T]
	asked   uint64 // how often Of has been called
}

type key struct{ owner, client string }

type entry[T any] struct {
	value T
	asked uint64 // value of Roster.asked when Of returned the value
}

// New returns a roster with room for so many clients, of all owners together. A client of several
// owners takes a place for each. isIdle reports whether a client has gone, so that another one may
// take its place.
func New[T any](limit int, isIdle func(*T) bool) *Roster[T] {
	return &Roster[T]{limit: limit, isIdle: isIdle, entries: make(map[key]*entry[T])}
}

// processID ends the names that clients have by default. Each run of a program would be another
// client.
var processID = regexp.MustCompile(` \(process \d+\)$`)

// nameOf returns the name under which a client is kept: one printable line.
func nameOf(client string) string {
	name := processID.ReplaceAllString(printable.Line(client, MaxName), "")
	return cmp.Or(name, unnamed)
}

// Of returns the value of a client, which is zero at first; nil if the limit is 0. At the limit, a
// new client takes the place of the idle one that was asked for the longest ago. If there is none,
// it counts as one of Others.
func (r *Roster[T]) Of(owner, client string) *T {
	if r.limit == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key{owner, nameOf(client)}
	if r.entries[k] == nil && k.client != Others && !r.makeRoom() {
		k.client = Others
	}
	if r.entries[k] == nil {
		r.entries[k] = new(entry[T])
	}
	r.asked++
	r.entries[k].asked = r.asked
	return &r.entries[k].value
}

// makeRoom reports whether there is room for another client. It may forget one.
func (r *Roster[T]) makeRoom() bool {
	count := 0
	var oldest *key
	for k, e := range r.entries {
		if k.client == Others {
			continue
		}
		count++
		if (oldest == nil || e.asked < r.entries[*oldest].asked) && r.isIdle(&e.value) {
			oldest = &k
		}
	}
	if count < r.limit {
		return true
	}
	if oldest == nil {
		return false
	}
	delete(r.entries, *oldest)
	return true
}

// All returns the values of an owner's clients by name.
func (r *Roster[T]) All(owner string) map[string]*T {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*T)
	for k, e := range r.entries {
		if k.owner == owner {
			all[k.client] = &e.value
		}
	}
	return all
}
