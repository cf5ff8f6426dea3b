// SPDX-License-Identifier: Apache-2.0

// Package controlmsg implements the control protocol between initiator, relay and target: its
// messages, their encoding and framing, and the order in which they may be sent.
//
// A conversation has a Requester and a Responder: the initiator sends requests to the relay over
// Comch, and the relay sends requests to the target over TCP. One request is outstanding at a
// time. A session, as both ends see it:
//
//	initiator                   relay                      target
//	    │ hello                   │ hello                     │
//	    │ open_volume             │ open_volume               │
//	    │ configure_data_path     │ configure_data_path       │
//	    │                         │ create_rdma_connection ×2 │  for each queue
//	    │ start_data_path_…       │ start_data_path_…         │
//	    │ start_storage           │ start_storage             │
//	    │        … IO on the data path, then …                │
//	    │ stop                    │ stop                      │
//	    │ destroy_objects         │ destroy_objects           │
//
// Messages are plain structs. Encode and Decode translate them, a Transport carries the bytes, and
// Requester and Responder enforce order, timeouts and correlation. A Responder serves a
// Handler, which carries out the requests. docs/dev/protocol.md describes the whole protocol.
//
// Nothing that a peer sends is trusted: every length, count and wait is bounded. A peer that
// violates the protocol gets an Error, and the conversation ends.
package controlmsg

import "time"

// Message is a pointer to one of the message structs of this package. The set is
// closed, so that Encode and Decode can translate all of them.
type Message interface {
	// Kind identifies the struct.
	Kind() Kind
	// validate returns an error that names the first field outside its limits.
	validate() error
}

// RequestFor is a request that is answered by an R if it succeeds.
type RequestFor[R Message] interface {
	Message
	repliedBy(R)
}

// Validate returns an InvalidValue or TooBig error unless every field of the message is within
// the protocol's limits. Encode and Decode call it, so that neither side sends what the other would
// reject.
func Validate(message Message) error { return message.validate() }

// Envelope is the unit on the wire: a message and the request that it belongs to.
type Envelope struct {
	// Correlation identifies a request. The requester chooses it, unique on the connection and
	// never 0, and the reply repeats it. It is 0 in messages that belong to no request.
	Correlation uint64
	// Timeout is how long the sender of a request waits for the answer, in whole milliseconds. 0
	// means that it does not say.
	Timeout time.Duration
	Message Message
}

// Kind identifies a message struct.
type Kind uint8

// The kinds of messages. The reply to a request is the next kind.
const (
	KindError Kind = iota + 1
	KindKeepAlive
	KindHello
	KindHelloReply
	KindOpenVolume
	kindOpenVolumeReply
	KindConfigureDataPath
	kindConfigureDataPathReply
	KindCreateRDMAConnection
	kindCreateRDMAConnectionReply
	KindStartDataPathConnections
	kindStartDataPathConnectionsReply
	KindStartStorage
	kindStartStorageReply
	KindStop
	kindStopReply
	KindDestroyObjects
	kindDestroyObjectsReply

	kindCount
)

// kindNames are also the names of the fields of the protocol buffer Envelope.
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

// String returns the name on the wire and in logs, for instance "open_volume_reply".
func (k Kind) String() string {
	if k < kindCount {
		return kindNames[k]
	}
	return kindNames[0]
}

// reply returns the kind of message that answers request k if it succeeds.
func (k Kind) reply() Kind { return k + 1 }

// Phase is a step of the handshake: the current one or, between requests, the last completed one.
type Phase uint8

// The phases, in the order in which a session passes them. PhaseUnknown stands for a peer's phase
// that this side does not know.
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

// String returns the name in logs and errors, for instance "configure_data_path".
func (p Phase) String() string {
	if p < phaseCount {
		return phaseNames[p]
	}
	return phaseNames[PhaseUnknown]
}

// Role is a program's place in the chain.
type Role uint8

// The roles. An initiator sends requests to a relay, and a relay to a target.
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
