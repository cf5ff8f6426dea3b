// Package progress drives contexts: a progress engine polls the contexts of
// one thread and puts that thread to sleep when there is nothing to do.
package progress

// Source is something an Engine polls, normally a context or a group of them.
// All methods are called by the engine's thread only.
type Source interface {
	// Poll makes progress without blocking and returns how much was done: 0
	// means there was nothing to do. It bounds its work per call, so that
	// other sources get their turn.
	Poll() int
}

// NoDescriptor is what Waiter.Descriptor returns if a thread cannot sleep on
// the waiter (Comch on hardware). Instead of sleeping, its engine polls with
// growing pauses.
const NoDescriptor = -1

// Waiter is what a context offers so that a thread can sleep on it instead
// of polling it. A Source that also is a Waiter lets its engine sleep.
//
// The protocol that loses no wake-up: Arm announces to the peer that this
// side is about to sleep and then checks once more for work. If Arm returns
// true there was none, and from then on any new work makes Descriptor
// readable, until Disarm. Both the announcement here and the check for it on
// the waking side are sequentially consistent.
type Waiter interface {
	// Descriptor returns a file descriptor that epoll can wait for; it is
	// readable while the waiter is armed and has work. It never changes.
	// NoDescriptor means that the waiter cannot be slept on, and nothing else.
	Descriptor() int
	// Arm prepares for sleep. It returns false if there is work already; the
	// context is then not armed. On an armed context it only checks again.
	Arm() bool
	// Disarm ends what Arm began. It is called after every Arm that
	// returned true.
	Disarm()
	// Drain consumes what made Descriptor readable. It is called when the
	// engine saw it readable.
	Drain()
}

// State is where a context is in its life (DOCA Core context state machine).
type State int32

// A context is Idle until it is started, Starting until its peer has agreed,
// Running while it can do work, and Stopping until everything that was
// submitted has been completed.
const (
	Idle State = iota
	Starting
	Running
	Stopping
)

// String returns the lower-case name of the state.
func (s State) String() string {
	switch s {
	case Idle:
		return "idle"
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	}
	return "invalid"
}
