// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"slices"

	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// watches say what would make a turn of each open connection do something. Most connections have
// nothing to do in most turns, and a look at a connection itself touches many cache lines, which
// the data of others has displaced. A look at its watch touches the line that the peer writes.
type watches struct {
	bySlot []watch
	due    []*softrdma.Attached[connection] // scratch of the turn
}

// watch is what a completion queue remembers of an open connection between its turns.
type watch struct {
	peer *outboxHeader // nil if the slot is free
	// position is that of the connection: the peer has written something if its tail is another.
	position uint64
	// waits is set if the connection waits for more than the peer's records.
	waits      bool
	connection *connection
}

// hasNews reports whether the peer has written records, or has ended the connection.
func (at *watch) hasNews() bool {
	return at.peer.tail.Load() != at.position || at.peer.ended.Load() != 0
}

// add begins to watch a connection that has become open.
func (w *watches) add(c *connection) {
	if missing := int(c.Slot) + 1 - len(w.bySlot); missing > 0 {
		w.bySlot = append(w.bySlot, make([]watch, missing)...)
		w.due = slices.Grow(w.due[:0], len(w.bySlot)) // a turn allocates nothing
	}
	w.bySlot[c.Slot] = watch{peer: c.peer.header, connection: c}
	w.update(c)
}

// remove stops watching a connection, whose outboxes are still mapped.
func (w *watches) remove(c *connection) { w.bySlot[c.Slot] = watch{} }

// update notes what an open connection waits for after it has done something.
func (w *watches) update(c *connection) {
	at := &w.bySlot[c.Slot]
	at.position = c.position
	at.waits = c.hungUp || c.Sends.Head != c.Sends.Next || c.hasUnsent()
}

// collect returns the connections whose turns would do something, valid until the next call, those
// that have waited longest first.
func (w *watches) collect(fairness *softrdma.Fairness) []*softrdma.Attached[connection] {
	clear(w.due) // it must not keep connections that have ended
	w.due = w.due[:0]
	for i := range w.bySlot {
		at := &w.bySlot[i]
		if at.peer == nil {
			continue
		}
		if at.waits || at.hasNews() {
			w.due = append(w.due, &at.connection.Attached)
		}
	}
	softrdma.SortByWait(fairness, softrdma.Receiving, w.due, softrdma.SharingOf[connection])
	return w.due
}
