package controlmsg

// Phase is a step of the handshake: the one under way or, between requests,
// the one that was completed last.
type Phase uint8

// The phases in the order in which a session passes them. PhaseUnknown stands
// for whatever a peer names that this side does not know.
const (
	PhaseUnknown Phase = iota
	PhaseConnect
	PhaseHello
	PhaseOpenVolume
	PhaseConfigureDataPath
	PhaseCreateConnections
	PhaseStartConnections
	PhaseStartStorage
	PhaseRunning
	PhaseStopping
	PhaseDestroying
	PhaseFailed

	phaseCount
)

var phaseNames = [phaseCount]string{
	"unknown", "connect", "hello", "open_volume", "configure_data_path",
	"create_connections", "start_connections", "start_storage", "running",
	"stopping", "destroying", "failed",
}

// String returns the symbolic name, for instance "configure_data_path".
func (p Phase) String() string {
	if p < phaseCount {
		return phaseNames[p]
	}
	return phaseNames[PhaseUnknown]
}
