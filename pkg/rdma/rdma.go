// SPDX-License-Identifier: Apache-2.0

// Package rdma is the seam to RDMA transports: reliable connections that carry messages and move
// data between registered memories.
//
// Set-up (Open, Listen, Connect, Register) may block, and any goroutine may do it. The data path
// belongs to one thread per completion queue: only the thread that polls a completion queue may
// post to, flush, and close the connections attached to it.
//
// Four rules hold on every transport, even where a transport would allow more:
//
//   - The connecting side sends first. The accepting side posts nothing before it
//     has received a message.
//   - A Send needs a receive that has already been posted: iWARP has no
//     receiver-not-ready.
//   - The completion of a Send or Write means only that the local memory may be
//     used again.
//   - A Send is delivered after all Writes posted before it on the same connection
//     have been placed.
package rdma

import (
	"context"
	"net/netip"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MaxPrivateData is how many bytes of private data a connection request or its reply may carry on
// any transport (the limit of rdma_cm for TCP-like port spaces).
const MaxPrivateData = 56

// Provider is one implementation of an RDMA transport.
type Provider interface {
	// Name returns the provider's name in configuration, for instance "iwarp".
	Name() string
	// Open opens the device that has the given local address. It fails with status.NotSupported if
	// the provider is not built in, and with status.NotFound if no device has the address.
	Open(address netip.Addr) (Device, error)
}

// Capabilities holds a device's limits.
type Capabilities struct {
	Transport          string // "iwarp", "infiniband", "roce", "shm" or "doca"
	MaxInboundReads    int    // RDMA Reads from one peer connection at a time (IRD)
	MaxOutboundReads   int    // RDMA Reads outstanding per connection (ORD)
	MaxSendRequests    int    // posted sends, writes and reads per connection
	MaxReceiveRequests int    // posted receives per connection
	MaxSegments        int    // segments of one send request
	MaxMessageSize     uint64 // bytes of one message
	// WriteImpliesPlaced reports whether the completion of a Write means that the peer's device has
	// the data. It does on RoCE and InfiniBand, but not on iWARP.
	WriteImpliesPlaced bool
	// StableSource reports whether the source of a Write or of a Read Response must not change
	// until it completes. If it does change, the connection may fail, because a checksum covers
	// data that is sent later.
	StableSource bool
	// OpaqueMemory reports whether regions that are not mapped can be registered: the device is a
	// ForeignDevice.
	OpaqueMemory bool
	// Device names the hardware, if the provider knows it.
	Device memory.Device
}

// Device is an opened RDMA device.
type Device interface {
	Capabilities() Capabilities
	// NewProtectionDomain creates a protection domain, whose memory can be reached only over its
	// own connections.
	NewProtectionDomain() (ProtectionDomain, error)
	// NewCompletionQueue creates a completion queue with room for at least capacity completions
	// that have not been polled.
	NewCompletionQueue(capacity int) (CompletionQueue, error)
	// Listen accepts connection requests on address; port 0 picks one.
	Listen(ctx context.Context, address netip.AddrPort) (Listener, error)
	// Connect connects to a listener and waits until the connection is established or ctx ends.
	Connect(ctx context.Context, remote netip.AddrPort, config ConnectionConfig) (Connection, error)
	// Close releases the device. Everything created on it must be closed first.
	Close() error
}

// ForeignMemory is the Handle of memory that another library has registered, in a protection domain
// of its own: memory behind a PCIe bus, for instance, that DOCA has imported.
type ForeignMemory interface {
	memory.Handle
	// ProtectionDomain returns the verbs protection domain (struct ibv_pd *). It lives at least as
	// long as the region.
	ProtectionDomain() uintptr
	// Key returns the key of the region in that domain, for local segments and for peers.
	// Addresses start at the region's Base.
	Key() uint32
}

// ForeignDevice is a Device that can use the protection domains of other libraries.
type ForeignDevice interface {
	Device
	// NewForeignDomain returns the domain that memory of another library belongs to, by the Handle
	// of its region: ForeignMemory, or another kind that the device knows. Connections and other
	// memory can be created in it as in any domain, and Register of the region returns its key. The
	// domain is shared by all that use it, so a peer that guesses a key can reach the memory of
	// other sessions: keys are all that separates them. Close leaves the domain to its library, and
	// Deregister of the region its key, which the library revokes when the region is closed.
	// NewForeignDomain fails with status.NotSupported if the memory belongs to another device, or
	// is of a kind that the device does not know.
	NewForeignDomain(foreign memory.Handle) (ProtectionDomain, error)
}

// MultiTransportDevice is a Device whose connections use one of several transports.
type MultiTransportDevice interface {
	Device
	// TransportTo returns the transport that a connection to a listener would use, as in
	// Capabilities. It may block until ctx ends.
	TransportTo(ctx context.Context, remote netip.AddrPort) string
}

// TransportTo returns the transport that a connection of device to a listener would use.
func TransportTo(ctx context.Context, device Device, remote netip.AddrPort) string {
	if d, has := device.(MultiTransportDevice); has {
		return d.TransportTo(ctx, remote)
	}
	return device.Capabilities().Transport
}

// LosableDevice is a Device that may be removed or reset.
type LosableDevice interface {
	Device
	// Lost returns a channel that is closed when that has happened. Then whatever was created on
	// the device fails, and so does what follows. Once all of it has been closed, so can the device
	// be, and opened anew when it is back.
	Lost() <-chan struct{}
}

// Lost returns the channel of a LosableDevice, and nil for any other.
func Lost(device Device) <-chan struct{} {
	if d, can := device.(LosableDevice); can {
		return d.Lost()
	}
	return nil
}

// DetailsDevice is a Device whose connections can also be set up without a listener: each side
// describes its end of a connection, the descriptions are exchanged by other means, and both sides
// connect. Programs written for DOCA do it that way. Either side may then send first, and a Send
// waits for the peer's receive.
type DetailsDevice interface {
	Device
	// Prepare makes this side's end of a connection, with config's receives posted. It ignores
	// PrivateData, Source, and Lent.
	Prepare(config ConnectionConfig) (PreparedConnection, error)
}

// PreparedConnection is one end of a connection that is not connected. The caller must call exactly
// one of Connect and Discard.
type PreparedConnection interface {
	// Details describes the end to the peer.
	Details() []byte
	// Connect connects to the peer's end, which details describe. It does not wait for the peer.
	// details may hold any bytes. If it fails, nothing is left of the connection.
	Connect(details []byte) (Connection, error)
	// Discard releases the end.
	Discard() error
}

// ExportedRegion is a MemoryRegion that a peer on a connection of a DetailsDevice can reach.
type ExportedRegion interface {
	MemoryRegion
	// Export describes the memory to the peer. It is nil if the peer has no rights.
	Export() []byte
}

// ImportingDomain is a ProtectionDomain of a DetailsDevice. Its connections reach memory that a
// peer has exported (ExportedRegion), as those of programs written for DOCA do.
type ImportingDomain interface {
	ProtectionDomain
	// Import makes exported memory usable by the domain's prepared connections. export may hold
	// any bytes.
	Import(export []byte) (ImportedRegion, error)
}

// ImportedRegion is memory of a peer.
type ImportedRegion interface {
	// RemoteMemory names the memory in work requests. Its Access is what the domain may try: only
	// the peer knows which rights it has granted.
	RemoteMemory() RemoteMemory
	// Close fails with status.InUse while the domain has connections.
	Close() error
}

// NewDomainFor creates the protection domain in which region can be registered: one of its own, or
// the one that an opaque region belongs to. It fails with status.NotSupported if device cannot use
// the region.
func NewDomainFor(device Device, region *memory.Region) (ProtectionDomain, error) {
	if region.Mapped() {
		return device.NewProtectionDomain()
	}
	capable, isCapable := device.(ForeignDevice)
	c := device.Capabilities()
	switch {
	case !isCapable || !c.OpaqueMemory:
		return nil, status.Errorf(status.NotSupported, "%s device %v cannot use memory of device "+
			"%v, which the CPU cannot address: choose an RDMA provider that can, such as verbs",
			c.Transport, c.Device, region.Device())
	case !c.Device.CanBe(region.Device()):
		return nil, status.Errorf(status.NotSupported, "RDMA device %v cannot use memory of device "+
			"%v: choose the RDMA address of that device", c.Device, region.Device())
	}
	return capable.NewForeignDomain(region.Handle())
}

// ProtectionDomain groups memory and the connections that may reach it.
type ProtectionDomain interface {
	// Register makes a region usable by the domain's connections. Keys cannot be guessed. It fails
	// with status.NotSupported if the provider cannot register this kind of region.
	Register(region *memory.Region, access memory.Access) (MemoryRegion, error)
	// Close fails with status.InUse while the domain has memory regions or connections.
	Close() error
}

// MemoryRegion is registered memory.
type MemoryRegion interface {
	// LocalKey returns the key that names the memory in local segments.
	LocalKey() uint32
	// RemoteKey returns the key by which peers name it.
	RemoteKey() uint32
	// Base returns the address of the first byte, for segments and for peers.
	Base() uint64
	// Len returns the length in bytes.
	Len() uint64
	// Deregister revokes the keys and waits until nothing uses the memory any more: when it
	// returns, no peer can reach the memory, and it may be unmapped. Work requests that still use
	// the keys fail their connection. If it fails, peers may still reach the memory, and it can be
	// called again. Any goroutine may call it, provided that no thread that polls a completion
	// queue is waiting for that goroutine.
	Deregister() error
}

// RemoteMemory is a peer's registered memory, as the peer has announced it.
type RemoteMemory struct {
	Key    uint32        // MemoryRegion.RemoteKey
	Base   uint64        // MemoryRegion.Base
	Length uint64        // bytes
	Access memory.Access // what the peer has granted
}

// Listener accepts connection requests.
type Listener interface {
	// Address returns where the listener listens, with the actual port.
	Address() netip.AddrPort
	// Accept waits for the next connection request. It fails if ctx ends, and with status.Shutdown
	// after Close and when the device or the address is lost; nothing that a peer does makes it
	// fail. It never returns a request that violates the protocol or has not arrived completely by
	// the handshake deadline.
	Accept(ctx context.Context) (Request, error)
	// Close stops listening and rejects requests that have not been accepted yet.
	Close() error
}

// Request is a connection request of a peer. The caller must call exactly one of Accept and Reject.
type Request interface {
	// PrivateData returns the data that the peer sent with its request.
	PrivateData() []byte
	// Remote returns the address that the request came from.
	Remote() netip.AddrPort
	// Accept accepts the request. The connection is established when Accept returns, and ready when
	// the peer's first message arrives.
	Accept(ctx context.Context, config ConnectionConfig) (Connection, error)
	// Reject rejects the request and gives the peer a reason of at most MaxPrivateData bytes.
	Reject(reason []byte) error
}

// ConnectionConfig configures a connection. Domain, Queue, and the request counts are required.
type ConnectionConfig struct {
	Domain ProtectionDomain
	// Queue collects the connection's completions. Polling it drives the connection.
	Queue CompletionQueue
	// Context is returned in every completion of this connection.
	Context uint64
	// PrivateData is sent to the peer with the request or its reply.
	PrivateData []byte
	// Source is the local address to connect from, if valid. Accept ignores it.
	Source netip.Addr
	// SendRequests and ReceiveRequests are how many of each can be posted.
	SendRequests    int
	ReceiveRequests int
	// InboundReads and OutboundReads are the read depths to offer. Connection.Parameters returns
	// the agreed ones.
	InboundReads  int
	OutboundReads int
	// Receives are posted before the connection is established, so they are there for the peer's
	// first messages.
	Receives []ReceiveRequest
	// TLS, unless nil, protects the connection of Connect: see SecureDevice. Accept ignores it.
	TLS *ClientTLS
	// Lent lists memory that the peer may map, at most MaxLent regions. A provider for processes of
	// one machine saves a copy by that; all others ignore it.
	Lent []LentMemory
}

// MaxLent is how many regions a connection can lend.
const MaxLent = 4

// LentMemory is memory of the connection's domain that the peer's process may map, so that data
// moves between it and the peer's memory directly.
//
// Lending cannot be revoked: neither Deregister nor Close nor the end of the connection takes the
// memory away from a peer that keeps it mapped. So lend only memory whose whole content the peer
// may read at any time. Memory that was lent for writing must not be used for another peer
// afterwards: close it. What was posted before Close may still be carried out after it, so its
// source must not change until the region is closed, unless the peer may see the change.
type LentMemory struct {
	Region MemoryRegion
	// Writable lets the peer write, too. Its Writes may then take effect as soon as they are
	// posted, ahead of messages posted before them.
	Writable bool
}

// Parameters holds what both sides of a connection have agreed on.
type Parameters struct {
	// Transport is the transport of the connection, as in Capabilities. It can differ from the
	// device's if the device has several.
	Transport     string
	Local         netip.AddrPort
	Remote        netip.AddrPort
	PrivateData   []byte // of the peer
	InboundReads  int
	OutboundReads int
	// Protection is what keeps others from reading and changing what the connection carries.
	Protection Protection
}

// Segment is a range of registered local memory.
type Segment struct {
	Key     uint32 // MemoryRegion.LocalKey
	Length  uint32
	Address uint64 // between MemoryRegion.Base and its end
}

// Opcode is what a work request does.
type Opcode uint8

// OpDisconnected is not a work request: it is the last completion of every connection, with
// StatusSuccess after an orderly end by either side and StatusFatal otherwise.
const (
	OpSend Opcode = iota + 1
	OpReceive
	OpWrite
	OpRead
	OpDisconnected
)

// String returns the lower-case name of the opcode.
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
	// ID is returned in the completion.
	ID     uint64
	Opcode Opcode // OpSend, OpWrite or OpRead
	// Silent suppresses the completion unless the request fails. The request's place in the send
	// queue is free again once a later request has completed, so a chain must end with a request
	// that is not silent.
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

// Completion is the outcome of a work request.
type Completion struct {
	ID      uint64 // of the work request
	Context uint64 // of the connection
	Length  uint32 // bytes received, for OpReceive
	Opcode  Opcode
	Status  CompletionStatus
}

// CompletionQueue collects the completions of its connections. As a progress.Waiter it lets its
// thread sleep until one of them has something to do.
type CompletionQueue interface {
	progress.Waiter
	// Poll drives the attached connections without blocking, fills completions, and returns their
	// number.
	Poll(completions []Completion) int
	// Close fails with status.InUse while connections are attached.
	Close() error
}

// Connection is a reliable connection (queue pair).
type Connection interface {
	// Parameters returns what was agreed at connection set-up.
	Parameters() Parameters
	// PostReceive adds receives to the receive queue, all or none. It fails with status.Full if
	// there is no room for all.
	PostReceive(requests []ReceiveRequest) error
	// PostSend adds requests to the send queue, all or none. They are carried out in order and
	// adjacent to each other. It fails with status.Full if there is no room for all,
	// status.InvalidValue for a segment that is not registered memory of the connection's domain,
	// and status.Again for a Read beyond the agreed outbound read depth. After the connection has
	// ended, requests are still accepted and complete as flushed until OpDisconnected has been
	// polled; then PostSend fails with status.NotConnected.
	PostSend(requests []SendRequest) error
	// Flush starts the posted requests. Call it once after a batch of posts; without it, requests
	// may wait until the completion queue is polled.
	Flush()
	// Close ends the connection at once. All its requests complete as flushed, and OpDisconnected
	// follows, after which the connection is no longer attached to its queue. When Close returns,
	// the peer can no longer reach memory over the connection.
	Close()
	// Abort has the effect of a lost network: the completion queue's thread finds the connection
	// broken. Any goroutine may call it.
	Abort()
	// Err returns why the connection has ended. It is nil before, and after an orderly end by
	// either side.
	Err() error
}

// Resetter is a Connection whose Close lets the peer still receive what has been sent, and that can
// end without that.
type Resetter interface {
	// Reset is Close, but drops what has been sent and is still on this machine.
	Reset()
}

// Reset ends a connection, if possible without what has been sent on it.
func Reset(c Connection) {
	if r, ok := c.(Resetter); ok {
		r.Reset()
		return
	}
	c.Close()
}

// Default timeouts of connection set-up.
const (
	// DefaultConnectTimeout bounds Connect if its context has no deadline.
	DefaultConnectTimeout = 5 * time.Second
	// DefaultHandshakeTimeout bounds how long an accepted TCP connection may take to send its
	// connection request.
	DefaultHandshakeTimeout = 5 * time.Second
)
