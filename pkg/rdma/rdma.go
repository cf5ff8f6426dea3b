// Package rdma is the seam to RDMA transports: reliable connections that
// carry messages and move data between registered memories.
//
// Set-up (Open, Listen, Connect, Register) may wait and may be done by any
// goroutine. The data path belongs to one thread per completion queue: only
// the thread that polls a completion queue may post to, flush and close the
// connections attached to it.
//
// The rules hold on every transport, also where a transport would allow more:
// the connecting side sends first, and the accepting side posts nothing
// before it has received; a Send needs a receive that was posted before
// (iWARP has no receiver-not-ready); the completion of a Send or Write says
// only that the local memory may be used again; a Send is delivered after
// all Writes posted before it on the same connection have been placed.
package rdma

import (
	"context"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// MaxPrivateData is how many bytes of private data a connection request or
// its answer may carry on any transport (the limit of rdma_cm for TCP-like
// port spaces).
const MaxPrivateData = 56

// Provider is one implementation of an RDMA transport.
type Provider interface {
	// Name is the provider's name in configuration, for instance "iwarp".
	Name() string
	// Open opens the device that has the given local address. It fails with
	// status.NotSupported if the provider is not built in, and with
	// status.NotFound if no device has the address.
	Open(address netip.Addr) (Device, error)
}

// Capabilities are a device's limits.
type Capabilities struct {
	Transport          string // "iwarp", "infiniband" or "roce"
	MaxInboundReads    int    // RDMA Reads from one peer connection at a time (IRD)
	MaxOutboundReads   int    // RDMA Reads outstanding per connection (ORD)
	MaxSendRequests    int    // posted sends, writes and reads per connection
	MaxReceiveRequests int    // posted receives per connection
	MaxSegments        int    // segments of one send request
	MaxMessageSize     uint64 // bytes of one message
	// WriteImpliesPlaced tells that the completion of a Write means that the
	// peer's device has the data. It does on RoCE and InfiniBand, not on
	// iWARP.
	WriteImpliesPlaced bool
	// StableSource tells that the source of a Write or of a Read Response
	// must not change until it completes, or else the connection may fail
	// (checksums over data that is sent later).
	StableSource bool
	// OpaqueMemory tells that regions that are not mapped can be registered.
	OpaqueMemory bool
}

// Device is an opened RDMA device.
type Device interface {
	Capabilities() Capabilities
	// NewProtectionDomain makes a protection domain: its memory can be
	// reached over its own connections only.
	NewProtectionDomain() (ProtectionDomain, error)
	// NewCompletionQueue makes a completion queue for at least the given
	// number of uncollected completions.
	NewCompletionQueue(capacity int) (CompletionQueue, error)
	// Listen accepts connection requests on address; port 0 picks one.
	Listen(ctx context.Context, address netip.AddrPort) (Listener, error)
	// Connect connects to a listener and waits until the connection is
	// established, at most until ctx ends.
	Connect(ctx context.Context, remote netip.AddrPort, config ConnectionConfig) (Connection, error)
	// Close releases the device. Everything made on it must be closed before.
	Close() error
}

// ProtectionDomain groups memory and the connections that may reach it.
type ProtectionDomain interface {
	// Register makes a region usable by the domain's connections. Keys are
	// not guessable. status.NotSupported if the provider cannot take this
	// kind of region.
	Register(region *memory.Region, access memory.Access) (MemoryRegion, error)
	// Close fails with status.InUse while the domain has memory regions or
	// connections.
	Close() error
}

// MemoryRegion is registered memory.
type MemoryRegion interface {
	// LocalKey names the memory in local segments.
	LocalKey() uint32
	// RemoteKey names it towards peers.
	RemoteKey() uint32
	// Base is the address of the first byte, in segments and towards peers.
	Base() uint64
	// Len is the length in bytes.
	Len() uint64
	// Deregister revokes the keys and waits until no operation touches the
	// memory any more: when it returns, no peer can reach the memory and it
	// may be unmapped. Operations that still use the keys fail their
	// connection. It may be called by any goroutine, but not by one that
	// holds up the thread of a completion queue in use.
	Deregister() error
}

// RemoteMemory is a peer's registered memory, as it names it to this side.
type RemoteMemory struct {
	Key    uint32        // MemoryRegion.RemoteKey
	Base   uint64        // MemoryRegion.Base
	Length uint64        // bytes
	Access memory.Access // what the peer has granted
}

// Listener accepts connection requests.
type Listener interface {
	// Address is where the listener listens, with the actual port.
	Address() netip.AddrPort
	// Accept waits for the next connection request. status.Shutdown after
	// Close. Requests that break the protocol, or stay silent past the
	// handshake deadline, never come up here.
	Accept(ctx context.Context) (Request, error)
	// Close ends listening; requests not yet accepted are refused.
	Close() error
}

// Request is a connection request of a peer. Exactly one of Accept and
// Reject must be called.
type Request interface {
	// PrivateData is what the peer sent with its request.
	PrivateData() []byte
	// Remote is where the request came from.
	Remote() netip.AddrPort
	// Accept answers the request. The connection is established when Accept
	// returns; it becomes ready when the peer's first message arrives.
	Accept(ctx context.Context, config ConnectionConfig) (Connection, error)
	// Reject refuses the request and gives the peer a reason of at most
	// MaxPrivateData bytes.
	Reject(reason []byte) error
}

// ConnectionConfig says how to make a connection. Domain, Queue and the
// request counts are required.
type ConnectionConfig struct {
	Domain ProtectionDomain
	// Queue collects the connection's completions and, being polled, drives
	// the connection.
	Queue CompletionQueue
	// Context comes back in every completion of this connection.
	Context uint64
	// PrivateData goes to the peer with the request or its answer.
	PrivateData []byte
	// Source is the local address to connect from; only for Connect, and
	// only if valid.
	Source netip.Addr
	// SendRequests and ReceiveRequests are how many of each can be posted.
	SendRequests    int
	ReceiveRequests int
	// InboundReads and OutboundReads are the read depths to offer; what was
	// agreed is in Connection.Parameters.
	InboundReads  int
	OutboundReads int
	// Receives are posted before the connection is established, so that the
	// peer's first messages find them.
	Receives []ReceiveRequest
}

// Parameters are what both sides of a connection have agreed on.
type Parameters struct {
	Local         netip.AddrPort
	Remote        netip.AddrPort
	PrivateData   []byte // of the peer
	InboundReads  int
	OutboundReads int
}

// Segment is a range of registered local memory.
type Segment struct {
	Key     uint32 // MemoryRegion.LocalKey
	Length  uint32
	Address uint64 // between MemoryRegion.Base and its end
}

// Opcode tells what a work request does.
type Opcode uint8

// The operations. OpDisconnected is no work request: it is the last
// completion of every connection, with StatusSuccess after an orderly end by
// either side and StatusFatal otherwise.
const (
	OpSend Opcode = iota + 1
	OpReceive
	OpWrite
	OpRead
	OpDisconnected
)

// String returns the lower-case name of the operation.
func (o Opcode) String() string {
	switch o {
	case OpSend:
		return "send"
	case OpReceive:
		return "receive"
	case OpWrite:
		return "rdma_write"
	case OpRead:
		return "rdma_read"
	case OpDisconnected:
		return "disconnected"
	}
	return "invalid"
}

// SendRequest is a work request for the send queue.
type SendRequest struct {
	// ID comes back in the completion.
	ID     uint64
	Opcode Opcode // OpSend, OpWrite or OpRead
	// Silent suppresses the completion unless the request fails. Its slot in
	// the send queue is free again once a later request has completed, so a
	// chain must end with a request that is not silent.
	Silent bool
	// Local is the memory to send or write from, or to read into.
	Local Segment
	// RemoteAddress and RemoteKey name the peer's memory in a Write or Read.
	RemoteAddress uint64
	RemoteKey     uint32
}

// ReceiveRequest is a work request for the receive queue.
type ReceiveRequest struct {
	ID    uint64
	Local Segment
}

// Completion tells the outcome of a work request.
type Completion struct {
	ID      uint64 // of the work request
	Context uint64 // of the connection
	Length  uint32 // bytes received, for OpReceive
	Opcode  Opcode
	Status  CompletionStatus
}

// CompletionQueue collects the completions of its connections. As a
// progress.Waiter it lets its thread sleep until there is something to do
// for any of them.
type CompletionQueue interface {
	progress.Waiter
	// Poll drives the attached connections without blocking and fills
	// completions. It returns their number.
	Poll(completions []Completion) int
	// Close fails with status.InUse while connections are attached.
	Close() error
}

// Connection is a reliable connection (queue pair).
type Connection interface {
	// Parameters are what was agreed at connection set-up.
	Parameters() Parameters
	// PostReceive adds receives to the receive queue, all or none:
	// status.Full if there is no room for all.
	PostReceive(requests []ReceiveRequest) error
	// PostSend adds requests to the send queue, all or none. They are carried
	// out in order and adjacent to each other. status.Full if there is no
	// room for all; status.InvalidValue for a segment that is not registered
	// memory of the connection's domain; status.Again for a Read beyond the
	// agreed outbound read depth. After the end of the connection requests
	// are still taken and complete as flushed, until OpDisconnected has been
	// collected; then status.NotConnected.
	PostSend(requests []SendRequest) error
	// Flush starts what has been posted. It is called once after a batch of
	// posts; without it requests may wait until the queue is polled.
	Flush()
	// Close ends the connection at once. All its requests complete as
	// flushed, then OpDisconnected follows. After that the connection is no
	// longer attached to its queue. When Close returns, no memory is touched
	// on behalf of the peer any more.
	Close()
	// Abort has the effect of a lost network: it may be called by any
	// goroutine, and the completion queue's thread will find the connection
	// broken.
	Abort()
	// Err says why the connection has ended: nil before, and after an
	// orderly end by either side.
	Err() error
}

// Default deadlines of connection set-up.
const (
	// DefaultConnectTimeout bounds Connect if its context has no deadline.
	DefaultConnectTimeout = 5 * time.Second
	// DefaultHandshakeTimeout bounds how long an accepted TCP connection may
	// take to send its connection request.
	DefaultHandshakeTimeout = 5 * time.Second
)
