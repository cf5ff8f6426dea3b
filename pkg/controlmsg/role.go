package controlmsg

// Role is what a program is in the chain.
type Role uint8

// The roles. An initiator asks a relay, a relay asks a target.
const (
	RoleInitiator Role = iota + 1
	RoleRelay
	RoleTarget
)

// String returns the lower-case name.
func (r Role) String() string {
	switch r {
	case RoleInitiator:
		return "initiator"
	case RoleRelay:
		return "relay"
	case RoleTarget:
		return "target"
	}
	return "invalid"
}

// ConnectionRole tells what one of the two RDMA connections of a queue is
// for.
type ConnectionRole uint8

// The roles of connections. Requests go over the control connection, and so
// do answers without data; data and the answers that follow it go over the
// data connection.
const (
	ControlConnection ConnectionRole = iota + 1
	DataConnection
)

// connectionsPerQueue is the number of connection roles.
const connectionsPerQueue = 2

// String returns the lower-case name.
func (r ConnectionRole) String() string {
	switch r {
	case ControlConnection:
		return "control"
	case DataConnection:
		return "data"
	}
	return "invalid"
}

func (r ConnectionRole) valid() bool { return r == ControlConnection || r == DataConnection }
