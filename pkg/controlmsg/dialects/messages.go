// SPDX-License-Identifier: Apache-2.0

package dialects

import "github.com/zc-relay/zc-relay/pkg/status"

// Envelope is a control message and the request that it belongs to.
type Envelope struct {
	// ID identifies a request of 3.x; the response repeats it. It is 0 in 2.10.
	ID uint32
	// Correlation identifies a request of 2.10, and groups requests in 3.x. The response repeats
	// it.
	Correlation uint32
	Message     Message
}

// Message is a pointer to one of the structs below. They are named after
// the requests of 3.x; comments give the names in 2.10.
type Message interface {
	// Name returns the name in texts of errors, for instance "init_storage_request".
	Name() string
}

// Response reports the outcome of any request of 2.10 but CreateConnection, and the failure of any
// request. In 3.x it is named error_response.
type Response struct {
	Result status.Code
	Text   string
}

// QueryStorage asks for the size of the storage (3.x).
type QueryStorage struct{}

// QueryStorageReply tells the size (3.x).
type QueryStorageReply struct {
	TotalSize uint64 // bytes
	BlockSize uint32 // bytes
}

// InitStorage exports memory and sizes the data path. In 2.10 it is named configure_data_path.
type InitStorage struct {
	// Count is how many IOs a thread of the initiator may have in flight.
	Count uint32
	// BufferSize is the largest IO in bytes (2.10 only).
	BufferSize uint32
	// BatchSize is how many receives the sender posts at a time (2.10 and 3.0 only).
	BatchSize uint32
	// Cores is how many threads the initiator has (3.x only).
	Cores uint32
	// Export is DOCA's descriptor of the exported memory: over PCI from an initiator, for RDMA from
	// a relay.
	Export []byte
}

// InitStorageReply accepts InitStorage (3.x).
type InitStorageReply struct{}

// Role distinguishes the two RDMA connections of a thread.
type Role uint32

// The roles: data moves on one connection, and IO messages travel on the other.
const (
	RoleData Role = iota
	RoleControl
	roleCount
)

// CreateConnection asks a target to connect an RDMA connection to the one with these details.
type CreateConnection struct {
	Context uint32 // the thread (3.x only)
	Role    Role
	Details []byte
}

// CreateConnectionReply has the details of the target's connection.
type CreateConnectionReply CreateConnection

// StartConnections asks to connect the data path (2.10 only, as start_data_path_connections).
type StartConnections struct{}

// StartStorage asks to begin to serve IO, and StartStorageReply (3.x) confirms it.
type (
	StartStorage      struct{}
	StartStorageReply struct{}
)

// StopStorage asks to end that, and StopStorageReply confirms it (3.x; in 2.10, an IO message
// does).
type (
	StopStorage      struct{}
	StopStorageReply struct{}
)

// Shutdown asks to release everything, and ShutdownReply (3.x) confirms it. In 2.10 it is named
// destroy_objects.
type (
	Shutdown      struct{}
	ShutdownReply struct{}
)

func (*Response) Name() string              { return "error_response" }
func (*QueryStorage) Name() string          { return "query_storage_request" }
func (*QueryStorageReply) Name() string     { return "query_storage_response" }
func (*InitStorage) Name() string           { return "init_storage_request" }
func (*InitStorageReply) Name() string      { return "init_storage_response" }
func (*CreateConnection) Name() string      { return "create_rdma_connection_request" }
func (*CreateConnectionReply) Name() string { return "create_rdma_connection_response" }
func (*StartConnections) Name() string      { return "start_data_path_connections" }
func (*StartStorage) Name() string          { return "start_storage_request" }
func (*StartStorageReply) Name() string     { return "start_storage_response" }
func (*StopStorage) Name() string           { return "stop_storage_request" }
func (*StopStorageReply) Name() string      { return "stop_storage_response" }
func (*Shutdown) Name() string              { return "shutdown_request" }
func (*ShutdownReply) Name() string         { return "shutdown_response" }
