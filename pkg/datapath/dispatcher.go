// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

const (
	// completionBatch is how many RDMA completions a worker polls at once.
	completionBatch = 64
	// completionQueueCapacity bounds the work requests of all lanes of a worker on one device.
	completionQueueCapacity = 1 << 16
)

// completionHandler is a lane as the dispatcher sees it.
type completionHandler interface {
	// handleCompletion handles one completion of the connection with the given role.
	handleCompletion(role iomsg.ConnectionRole, completion *rdma.Completion)
	// endBatch is called once after all completions of a poll. It posts everything that they
	// caused, together.
	endBatch()
}

// dispatcher polls the completions of all connections of a worker on one device and hands each to
// its lane, which the connection's context identifies. It belongs to the worker's thread.
type dispatcher struct {
	queue         rdma.CompletionQueue
	registrations []registration
	free          []uint32
	completions   [completionBatch]rdma.Completion
	touched       []uint32 // registrations that have had a completion in this batch
}

// registration is a lane's entry in the dispatcher. The generation distinguishes successive lanes
// with the same index: a cancelled connection attempt may still deliver completions after its lane
// is gone.
type registration struct {
	handler    completionHandler
	generation uint32
	touched    bool
}

// registrationID identifies a registration and its generation.
type registrationID struct{ index, generation uint32 }

// A connection's context holds the role in the lowest bit, then the index of the registration, then
// its generation.
const (
	contextIndexShift      = 1
	contextGenerationShift = 32
)

func (id registrationID) context(role iomsg.ConnectionRole) uint64 {
	return uint64(id.generation)<<contextGenerationShift |
		uint64(id.index)<<contextIndexShift | uint64(role)
}

// register adds handler and returns its ID, which the contexts of its connections contain.
func (d *dispatcher) register(handler completionHandler) registrationID {
	n := len(d.free)
	if n == 0 {
		d.registrations = append(d.registrations, registration{})
		// Each registration is in touched at most once, so Poll never allocates.
		d.touched = make([]uint32, 0, len(d.registrations))
		d.free, n = append(d.free, uint32(len(d.registrations)-1)), 1
	}
	index := d.free[n-1]
	d.free = d.free[:n-1]
	r := &d.registrations[index]
	r.handler = handler
	r.generation++
	return registrationID{index, r.generation}
}

// unregister removes a handler, which is not reachable from d afterwards. It must not be called
// within Poll.
func (d *dispatcher) unregister(id registrationID) {
	d.registrations[id.index].handler = nil
	d.free = append(d.free, id.index)
}

// Poll hands each completion to its lane, and then lets each of these lanes post what its
// completions caused.
func (d *dispatcher) Poll() int {
	n := d.queue.Poll(d.completions[:])
	if n == 0 {
		return 0
	}
	d.touched = d.touched[:0]
	for i := range d.completions[:n] {
		c := &d.completions[i]
		index := uint32(c.Context) >> contextIndexShift
		r := &d.registrations[index]
		if r.handler == nil || r.generation != uint32(c.Context>>contextGenerationShift) {
			continue // its lane is gone
		}
		role := iomsg.ConnectionRole(c.Context % uint64(iomsg.ConnectionRoleCount))
		r.handler.handleCompletion(role, c)
		if !r.touched {
			r.touched = true
			d.touched = append(d.touched, index)
		}
	}
	for _, index := range d.touched {
		r := &d.registrations[index]
		r.touched = false
		r.handler.endBatch()
	}
	return n
}
