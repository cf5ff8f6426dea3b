package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// connectionRole tells a queue's two RDMA connections apart.
type connectionRole uint8

const (
	controlRole connectionRole = iota
	dataRole
	roleCount
)

func (r connectionRole) String() string {
	if r == controlRole {
		return "control"
	}
	return "data"
}

// connectionUser is a lane as the owner of RDMA connections.
type connectionUser interface {
	// complete takes one completion of the connection with the given role.
	complete(role connectionRole, completion *rdma.Completion)
	// endBatch is called once after all completions of a poll: what they
	// caused is sent off here, together.
	endBatch()
}

// dispatcher takes the completions of all connections of a worker and gives
// them to the lanes, found by the connection's context.
type dispatcher struct {
	queue       rdma.CompletionQueue
	users       []connectionUser
	free        []uint32
	completions [completionBatch]rdma.Completion
	touched     []connectionUser
}

// register gives user its place; contextOf makes connection contexts of it.
func (d *dispatcher) register(user connectionUser) uint32 {
	if n := len(d.free); n > 0 {
		place := d.free[n-1]
		d.free = d.free[:n-1]
		d.users[place] = user
		return place
	}
	d.users = append(d.users, user)
	// Every user of a batch may be touched once.
	d.touched = make([]connectionUser, 0, len(d.users))
	return uint32(len(d.users) - 1)
}

// unregister frees a place. No connection may use it any more.
func (d *dispatcher) unregister(place uint32) {
	d.users[place] = nil
	d.free = append(d.free, place)
}

func contextOf(place uint32, role connectionRole) uint64 {
	return uint64(place)*uint64(roleCount) + uint64(role)
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
		user := d.users[c.Context/uint64(roleCount)]
		user.complete(connectionRole(c.Context%uint64(roleCount)), c)
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
