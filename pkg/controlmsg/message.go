package controlmsg

// Message is one of the messages of this package, always as a pointer. The
// set is closed: another codec translates to and from these.
type Message interface {
	// Kind tells which message it is.
	Kind() Kind
	// validate returns an error that says which field holds what it must not.
	validate() error
}

// Validate returns an InvalidValue or TooBig error unless every field of the
// message is within the protocol's limits. A Codec calls it in both
// directions, so that neither side sends what the other would refuse.
func Validate(message Message) error { return message.validate() }

// Envelope is what travels: a message and the request that it belongs to.
type Envelope struct {
	// Correlation is chosen by the requesting side, is unique on the
	// connection and never 0; a reply carries that of its request. It is 0
	// in messages that belong to no request.
	Correlation uint64
	Message     Message
}

// Codec turns envelopes into bytes and back. Its methods may be called
// concurrently.
type Codec interface {
	// Name is the codec's name in logs, for instance "protobuf".
	Name() string
	// Append appends the encoded envelope to dst. It fails if the message is
	// not valid.
	Append(dst []byte, e *Envelope) ([]byte, error)
	// Decode decodes one envelope that takes up all of b, and keeps nothing
	// of b. What it returns is valid. status.Unexpected is the code for a
	// message of unknown kind, status.InvalidValue or status.TooBig for
	// everything else.
	Decode(b []byte) (*Envelope, error)
}

// The kinds of messages. A reply follows its request.
const (
	KindError Kind = iota + 1
	KindKeepAlive
	KindHello
	KindHelloReply
	KindOpenVolume
	KindOpenVolumeReply
	KindConfigureDataPath
	KindConfigureDataPathReply
	KindCreateRDMAConnection
	KindCreateRDMAConnectionReply
	KindStartDataPathConnections
	KindStartDataPathConnectionsReply
	KindStartStorage
	KindStartStorageReply
	KindStop
	KindStopReply
	KindDestroyObjects
	KindDestroyObjectsReply

	kindCount
)

// Kind tells what a message is.
type Kind uint8

var kindNames = [kindCount]string{
	"invalid",
	"error", "keep_alive",
	"hello", "hello_reply",
	"open_volume", "open_volume_reply",
	"configure_data_path", "configure_data_path_reply",
	"create_rdma_connection", "create_rdma_connection_reply",
	"start_data_path_connections", "start_data_path_connections_reply",
	"start_storage", "start_storage_reply",
	"stop", "stop_reply",
	"destroy_objects", "destroy_objects_reply",
}

// String returns the symbolic name, for instance "open_volume_reply".
func (k Kind) String() string {
	if k < kindCount {
		return kindNames[k]
	}
	return kindNames[0]
}

// isRequest reports whether messages of this kind are answered.
func (k Kind) isRequest() bool {
	return k >= KindHello && k < kindCount && (k-KindHello)%2 == 0
}

// reply is the kind of answer that a request gets if it succeeds.
func (k Kind) reply() Kind { return k + 1 }

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

// Phase is a step of the handshake: the one under way or, between requests,
// the one that was completed last.
type Phase uint8

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

// The roles. An initiator asks a relay, a relay asks a target.
const (
	RoleInitiator Role = iota + 1
	RoleRelay
	RoleTarget
)

// Role is what a program is in the chain.
type Role uint8

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
