package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// connectionUser is a lane as the owner of RDMA connections.
type connectionUser interface {
	// complete takes one completion of the connection with the given role.
	complete(role iomsg.ConnectionRole, completion *rdma.Completion)
	// endBatch is called once after all completions of a poll: what they
	// caused is sent off here, together.
	endBatch()
}

// dispatcher takes the completions of all connections of a worker and gives
// them to the lanes, found by the connection's context.
type dispatcher struct {
	queue       rdma.CompletionQueue
	places      []place
	free        []uint32
	completions [completionBatch]rdma.Completion
	touched     []connectionUser
}

// place is where the dispatcher finds a user. Its generation tells apart the
// users that have had it: a connection that was given up while it was being
// made may still deliver completions when its lane is gone.
type place struct {
	user       connectionUser
	generation uint32
}

// placeID names a place and the generation of its user.
type placeID struct{ index, generation uint32 }

// Parts of a connection's context: the role in the lowest bit, then the index
// of the place, then its generation.
const (
	contextIndexShift      = 1
	contextGenerationShift = 32
)

func (p placeID) context(role iomsg.ConnectionRole) uint64 {
	return uint64(p.generation)<<contextGenerationShift | uint64(p.index)<<contextIndexShift | uint64(role)
}

// register gives user a place, from which the contexts of its connections are
// made.
func (d *dispatcher) register(user connectionUser) placeID {
	n := len(d.free)
	if n == 0 {
		d.places = append(d.places, place{})
		// Every user of a batch may be touched once.
		d.touched = make([]connectionUser, 0, len(d.places))
		d.free, n = append(d.free, uint32(len(d.places)-1)), 1
	}
	index := d.free[n-1]
	d.free = d.free[:n-1]
	p := &d.places[index]
	p.user = user
	p.generation++
	return placeID{index, p.generation}
}

// unregister frees a place.
func (d *dispatcher) unregister(id placeID) {
	d.places[id.index].user = nil
	d.free = append(d.free, id.index)
}

// find returns the user of a connection, nil if it is gone.
func (d *dispatcher) find(context uint64) connectionUser {
	p := &d.places[uint32(context)>>contextIndexShift]
	if p.generation != uint32(context>>contextGenerationShift) {
		return nil
	}
	return p.user
}

// Poll implements progress.Source.
func (d *dispatcher) Poll() int {
	n := d.queue.Poll(d.completions[:])
	if n == 0 {
		return 0
	}
	d.touched = d.touched[:0]
	for i := range d.completions[:n] {
		c := &d.completions[i]
		user := d.find(c.Context)
		if user == nil {
			continue
		}
		user.complete(iomsg.ConnectionRole(c.Context%uint64(iomsg.ConnectionRoleCount)), c)
		d.touch(user)
	}
	for _, user := range d.touched {
		user.endBatch()
	}
	return n
}

func (d *dispatcher) touch(user connectionUser) {
	// Completions of one connection come in a row, so the last one touched
	// is nearly always the one.
	for i := len(d.touched) - 1; i >= 0; i-- {
		if d.touched[i] == user {
			return
		}
	}
	d.touched = append(d.touched, user)
}
