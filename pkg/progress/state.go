// Package progress drives contexts: a progress engine polls the contexts of
// one thread and puts that thread to sleep when there is nothing to do.
package progress

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
