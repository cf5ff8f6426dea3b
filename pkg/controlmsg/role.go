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
