// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// history is everything that the blocks of a gateway have held, and what its clients have asked for
// and been told. Requests of several clients may overlap, so a block may hold what any of the
// requests in progress has written. But the history knows when a change takes effect: when the disk
// is about to carry it out. Only the scheduler uses it, and whoever logs an end.
type history struct {
	gateway *nbdGateway
	clock   uint64 // counts what happens
	blocks  []blockHistory
	changes []*nbdRequest          // in progress, or given up
	byStamp map[uint64]*nbdRequest // writes
	// flushed is when the latest flush was submitted that has succeeded.
	flushed uint64
	crashes []uint64
}

// blockHistory is what a block has held, oldest first.
type blockHistory struct {
	contents []content
	// settled is when the latest request for the block was submitted that has succeeded.
	settled uint64
	// durable is the first of the contents that a loss of power may leave.
	durable int
}

type content struct {
	since, stamp uint64
}

// nbdRequest is a request of an NBD client.
type nbdRequest struct {
	connection           *connection
	cookie               uint64
	command              blockio.Command
	flags                blockio.CommandFlags
	first, count         int // blocks
	stamp                uint64
	submitted, completed uint64
	data                 []byte // of a read, as it arrives
	failure              blockio.Errno
}

func newHistory(g *nbdGateway) *history {
	h := &history{gateway: g, byStamp: make(map[uint64]*nbdRequest)}
	h.blocks = make([]blockHistory, gatewayBlocks)
	for i := range h.blocks {
		h.blocks[i].contents = []content{{}}
	}
	return h
}

// now returns the time of another event.
func (h *history) now() uint64 {
	h.clock++
	return h.clock
}

func (r *nbdRequest) changes() bool {
	return r.command == blockio.Write || r.command == blockio.Trim ||
		r.command == blockio.WriteZeroes
}

func (r *nbdRequest) covers(block int) bool {
	return block >= r.first && block < r.first+r.count
}

func (r *nbdRequest) String() string {
	return fmt.Sprintf("#%d %v of blocks %d+%d, flags %d, stamp %d, of %s", r.cookie, r.command,
		r.first, r.count, r.flags, r.stamp, r.connection.name)
}

// submit notes that a client sends a request.
func (h *history) submit(r *nbdRequest) {
	r.submitted = h.now()
	if r.changes() {
		h.changes = append(h.changes, r)
	}
	if r.stamp != 0 {
		h.byStamp[r.stamp] = r
	}
}

// inspect is called when a block is about to be written to the disk.
func (h *history) inspect(block int, data []byte) {
	w := h.gateway.world
	stamp, err := identify(data, block)
	if err != nil || block >= len(h.blocks) {
		w.violate("block %d of disk %s is about to be written with stamp %d, %v", block,
			h.gateway.disk.name, stamp, err)
		return
	}
	h.clock++
	late := "nobody has such a change in flight"
	for _, r := range h.writing(block, stamp) {
		if late = h.late(r, block); late == "" {
			b := &h.blocks[block]
			b.contents = append(b.contents, content{h.clock, stamp})
			return
		}
		late += fmt.Sprintf(" (%v)", r)
	}
	w.violate("late ghost: block %d of %s is about to be written with stamp %d: %s", block,
		h.gateway.disk.name, stamp, late)
}

// writing returns the requests that may write a stamp to a block.
func (h *history) writing(block int, stamp uint64) []*nbdRequest {
	if stamp != 0 {
		if r := h.byStamp[stamp]; r != nil && r.covers(block) {
			return []*nbdRequest{r}
		}
		return nil
	}
	var all []*nbdRequest
	for _, r := range h.changes {
		if r.stamp == 0 && r.covers(block) {
			all = append(all, r)
		}
	}
	return all
}

// late returns why a change may not take effect on a block any more, or "" if it may.
func (h *history) late(r *nbdRequest, block int) string {
	g := h.gateway
	if r.completed != 0 {
		return "its result was delivered before"
	}
	ended := r.connection.ended
	if ended == 0 {
		return ""
	}
	for _, c := range g.connections {
		if c.asked > ended && c.begun != 0 {
			return "although " + c.name + ", which has asked after its end, has been let in"
		}
	}
	noticed := g.noticed[r.connection.name]
	if noticed == 0 {
		return ""
	}
	if h.flushed > noticed {
		return "although a flush has succeeded that was submitted after its end"
	}
	if h.blocks[block].settled > noticed {
		return "although a request for the block has succeeded that was submitted after its end"
	}
	return ""
}

// complete checks a result.
func (h *history) complete(r *nbdRequest) {
	r.completed = h.now()
	if r.changes() {
		h.changes = slices.DeleteFunc(h.changes,
			func(other *nbdRequest) bool { return other == r })
	}
	w := h.gateway.world
	if r.failure != blockio.Success {
		if !h.mayFail(r) {
			w.violate("%v fails with %v", r, r.failure)
		}
		return
	}
	if r.command == blockio.Flush {
		h.flush(r)
		return
	}
	for i := range r.count {
		block := r.first + i
		b := &h.blocks[block]
		b.settled = max(b.settled, r.submitted)
		switch r.command {
		case blockio.Read:
			stamp, err := identify(r.data[i*blockSize:][:blockSize], block)
			if err != nil || !b.couldHold(stamp, r.submitted) {
				w.violate("%v returns block %d with stamp %d, %v, but it has held only %v", r, block,
					stamp, err, b.since(r.submitted))
				return
			}
		case blockio.Write, blockio.WriteZeroes:
			at := b.find(r)
			if at < 0 {
				w.violate("%v succeeds, but block %d has held only %v since", r, block,
					b.since(r.submitted))
				return
			}
			if r.flags&blockio.FUA != 0 && !h.hasCrashedSince(r.submitted) {
				b.durable = max(b.durable, at)
			}
		}
	}
}

// mayFail reports whether the faults of the world explain that a request fails.
func (h *history) mayFail(r *nbdRequest) bool {
	g := h.gateway
	if r.command == blockio.Flush && g.world.targets[g.disk.target] != g.firstTarget {
		return true // completed writes may be lost
	}
	return slices.ContainsFunc(g.world.plan.Faults,
		func(f Fault) bool { return f.Kind == FailDisk })
}

// flush notes that what the blocks have held since a flush was submitted is durable.
func (h *history) flush(r *nbdRequest) {
	h.flushed = max(h.flushed, r.submitted)
	if h.hasCrashedSince(r.submitted) {
		return // perhaps the disk has carried it out before
	}
	for i := range h.blocks {
		b := &h.blocks[i]
		b.durable = max(b.durable, b.at(r.submitted))
	}
}

func (h *history) hasCrashedSince(since uint64) bool {
	return len(h.crashes) > 0 && h.crashes[len(h.crashes)-1] > since
}

// crashed is called when the disk has lost what was not durable.
func (h *history) crashed() {
	now := h.now()
	h.crashes = append(h.crashes, now)
	for i := range h.blocks {
		b := &h.blocks[i]
		stamp, err := identify(h.gateway.disk.current[i*blockSize:][:blockSize], i)
		left := b.contents[b.durable:]
		if err != nil || !slices.ContainsFunc(left,
			func(c content) bool { return c.stamp == stamp }) {
			h.gateway.world.violate("after a loss of power, block %d holds stamp %d, %v, but what "+
				"may be left is %v", i, stamp, err, left)
		}
		b.durable = len(b.contents)
		b.contents = append(b.contents, content{now, stamp})
	}
}

// at returns the index of what the block held at a time.
func (b *blockHistory) at(time uint64) int {
	i := len(b.contents) - 1
	for b.contents[i].since > time {
		i--
	}
	return i
}

// since returns what the block held at a time, and later.
func (b *blockHistory) since(time uint64) []content { return b.contents[b.at(time):] }

func (b *blockHistory) couldHold(stamp, since uint64) bool {
	return slices.ContainsFunc(b.since(since),
		func(c content) bool { return c.stamp == stamp })
}

// find returns the index of the content that a request has written, or -1.
func (b *blockHistory) find(r *nbdRequest) int {
	for i := len(b.contents) - 1; i >= 0 && b.contents[i].since > r.submitted; i-- {
		if b.contents[i].stamp == r.stamp {
			return i
		}
	}
	return -1
}
