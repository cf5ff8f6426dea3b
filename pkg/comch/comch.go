// SPDX-License-Identifier: Apache-2.0

// Package comch is the seam to DOCA Comch, the communication channel between client applications on
// a host and servers on a BlueField DPU.
//
// A server listens on one device, under a name, for the clients of one representor. A client
// connects to it by that name. The resulting Connection carries control messages in both
// directions. Its consumers and producers are the fast data path. Providers implement these
// interfaces over hardware or over shared memory.
//
// Any goroutine may use servers and connections. A consumer or a producer belongs to one thread at
// a time. The peer is not trusted: received messages may hold any bytes, and the peer can still
// write to posted buffers, so copy a message once and examine only the copy.
package comch

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Provider is one implementation of Comch.
type Provider interface {
	// Name returns the provider's name in configuration, for instance "emulated".
	Name() string
	// Capabilities returns what device can do, without creating anything on it. It fails with
	// status.NotSupported if the provider is not built in or the device does not support Comch.
	Capabilities(device string) (Capabilities, error)
	// Listen starts a server. It fails with status.AlreadyExist if the device and representor
	// already have a server of that name, with status.NotFound if there is no such device or
	// representor, and with status.NotSupported if the device cannot have servers. Admission by
	// user needs Capabilities.PeerCredentials: see Admission.AllowUsers.
	Listen(ctx context.Context, config ServerConfig) (Server, error)
	// Connect connects to a server. It fails with status.NotFound if no server has that name or
	// config.Device does not exist, status.NotPermitted if the server rejects this user, and
	// status.Full if the server has reached its maximum number of clients. Without
	// Capabilities.RejectionReasons, a client that the server rejects learns only
	// status.ConnectionReset, and one that finds no server status.NotFound or status.TimeOut.
	Connect(ctx context.Context, config ClientConfig) (Connection, error)
}

// Capabilities holds what a device can do, and its limits (doca_comch_cap_*).
type Capabilities struct {
	// Server, Client, Consumer, Producer, and MsgQ report what the device supports.
	Server, Client, Consumer, Producer, MsgQ bool

	MaxNameLength      int // bytes in a server name
	MaxMessageSize     int // bytes in a control message
	MaxReceiveQueue    int // control messages queued for one connection
	MaxClients         int // clients of one server
	MaxSendTasks       int // sends in flight of one server, client or producer
	MaxConsumers       int // consumers per side of one connection
	MaxReceives        int // posted receives of one consumer
	MaxMemorySize      int // bytes of message memory of one consumer
	MaxBufferLength    int // bytes of one posted buffer, and of one message
	MaxImmediateLength int // bytes of immediate data in a data-path message
	// CanWait reports whether consumers and producers have descriptors that a thread can sleep on.
	// On hardware they do if the progress engine is in the event mode "progress all"; a provider
	// that cannot select it, or is configured not to wait, has none.
	CanWait bool
	// PeerCredentials reports whether the provider knows the peer's process: Peer.Known, and
	// admission by user.
	PeerCredentials bool
	// RejectionReasons reports whether Connect returns the reason of a rejection
	// (status.NotPermitted, status.Full), whether ServerConfig.Refused is called, and whether
	// Connection.Err distinguishes a peer that has closed the connection (status.Shutdown) from one
	// that has aborted it or died (status.ConnectionReset, which it returns for all without).
	RejectionReasons bool
	// ConsumerMemory reports whether ConsumerConfig.Memory may be set.
	ConsumerMemory bool
	// OpaqueImports reports whether ImportMemory returns regions that the CPU cannot address. Such
	// a region can be used only with devices that reach memory through its Handle.
	OpaqueImports bool
}

// ServerConfig configures a server. Zero values select the defaults.
type ServerConfig struct {
	// Device is the DPU's device, and Representor the host function that the server serves, for
	// instance "03:00.0" and "b1:00.0". PCI addresses may have a domain ("0000:03:00.0").
	Device      string
	Representor string
	Name        string
	// MaxMessageSize is the largest control message in bytes. Client and server must agree; 0
	// selects the device's maximum.
	MaxMessageSize int
	// ReceiveQueue is how many received control messages are queued per connection before the
	// peer's Send has to wait.
	ReceiveQueue int
	// Refused, if set, is called for each rejected client with the reason, if the provider has
	// RejectionReasons. Any goroutine may call it, and it must not block.
	Refused func(peer Peer, reason error)
	// Admission is the initial admission; see Server.SetAdmission.
	Admission
}

// Admission selects the clients that a server accepts. Zero values select the defaults.
type Admission struct {
	// MaxClients is how many clients may be connected at once.
	MaxClients int
	// AllowAnyUser accepts clients of every user. Otherwise only root, the server's own user and
	// AllowUsers, which are user ids, may connect. A provider without PeerCredentials accepts every
	// process of the host that can open the device, and rejects AllowUsers with
	// status.InvalidValue, because it cannot tell users.
	AllowAnyUser bool
	AllowUsers   []uint32
	// MaxExportBytes limits how much memory one connection may have exported to the server at a
	// time.
	MaxExportBytes uint64
	// MaxRingBytes limits how much memory all connections together may make the server's provider
	// allocate for their consumers.
	MaxRingBytes uint64
}

// AllowsOthers reports whether users other than root and the server's own may connect.
func (a *Admission) AllowsOthers() bool { return a.AllowAnyUser || len(a.AllowUsers) > 0 }

// ClientConfig selects the server to connect to. Zero values select the defaults.
type ClientConfig struct {
	// Device is the host's device, for instance "b1:00.0" or "0000:b1:00.0".
	Device string
	Name   string
	// MaxMessageSize and ReceiveQueue are as in ServerConfig.
	MaxMessageSize int
	ReceiveQueue   int
}

// Server accepts the connections of clients.
type Server interface {
	// Accept waits for the next client. After Close it fails with status.Shutdown.
	Accept(ctx context.Context) (Connection, error)
	// SetAdmission changes which clients are accepted from now on. Connected clients stay
	// connected.
	SetAdmission(admission Admission) error
	// Address returns where the server listens, for logs.
	Address() string
	// Close stops accepting clients and releases the name. Established connections are not
	// affected. A device may be able only to stop accepting: the name then stays taken until the
	// last connection is closed, and Listen fails with status.AlreadyExist until then.
	Close() error
}

// Peer identifies the process at the other end, as the operating system reports it.
type Peer struct {
	// Known reports whether the provider knows the process (Capabilities.PeerCredentials).
	// Otherwise the other fields are 0.
	Known bool
	PID   int
	UID   uint32
	GID   uint32
}

// String returns the peer as used in logs and errors, for instance "process 42 of user 1000".
func (p Peer) String() string {
	if !p.Known {
		return "an unknown process"
	}
	return fmt.Sprintf("process %d of user %d", p.PID, p.UID)
}

// ConsumerID identifies a consumer of the peer. It is unique per connection and never 0.
type ConsumerID uint32

// ConsumerEvent reports that the peer has created or destroyed a consumer.
type ConsumerEvent struct {
	ID      ConsumerID
	Created bool
}

// Arrival is one thing that the peer has done: it has sent a control message, or created or
// destroyed a consumer.
type Arrival struct {
	Message []byte
	// Event tells of a consumer. Its ID is 0 if Message has arrived.
	Event ConsumerEvent
}

// IsMessage reports whether a message has arrived.
func (a *Arrival) IsMessage() bool { return a.Event.ID == 0 }

// Connection is an established connection between a client and a server. It ends when either side
// closes it or either process dies. Any goroutine may call its methods.
type Connection interface {
	// Peer returns the process at the other end.
	Peer() Peer
	// MaxMessageSize returns the agreed limit of control messages in bytes.
	MaxMessageSize() int
	// Send sends one control message, and waits while the peer's receive queue is full. It fails
	// with status.TooBig if the message exceeds MaxMessageSize, and with status.NotSupported if it
	// is empty and the device cannot carry that.
	Send(ctx context.Context, message []byte) error
	// Receive waits for the next control message, which the caller then owns. Messages arrive whole
	// and in order. After the connection has ended, Receive returns the messages that had arrived,
	// and then fails with status.NotConnected.
	Receive(ctx context.Context) ([]byte, error)
	// NextConsumerEvent waits until the peer creates or destroys a consumer. Events arrive in the
	// order of creation and destruction.
	NextConsumerEvent(ctx context.Context) (ConsumerEvent, error)
	// Next waits for the next control message or consumer event, in the order in which the peer has
	// acted. It takes what Receive or NextConsumerEvent would have returned.
	Next(ctx context.Context) (Arrival, error)
	// NewConsumer creates a consumer and waits until it is running and the peer has been notified.
	NewConsumer(ctx context.Context, config ConsumerConfig) (Consumer, error)
	// NewProducer creates a producer that sends to one consumer of the peer. It fails with
	// status.NotFound if the peer has no such consumer, or has destroyed it.
	NewProducer(ctx context.Context, consumer ConsumerID) (Producer, error)
	// ExportMemory lets the peer import a region with the given rights. It returns the descriptor
	// to send to the peer, of at most MaxExportLength bytes.
	//
	// The export ends with the connection, except that a peer that has imported the region may use
	// it until it closes the import. memory.Loan shows how long that is. A provider that lets the
	// peer map the region passes the open file description of Region.Descriptor. Any other provider
	// revokes the peer's access when this side ends the connection, and calls Region.KeepLoan until
	// it has.
	//
	// The call may be slow: a device has to register and pin the region. A provider may keep one
	// registration for all exports of a region with the same rights, until the last of them ends.
	ExportMemory(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error)
	// ImportMemory turns a descriptor that the peer sent into a region, whose Base is the address
	// that the peer knows. With Capabilities.OpaqueImports the region is opaque, and its Device is
	// that of the connection. The region stays valid until it is closed, even after the connection
	// has ended.
	ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error)
	// Done returns a channel that is closed when the connection has ended, for any reason.
	Done() <-chan struct{}
	// Err returns why the connection has ended, or nil if it has not.
	Err() error
	// Close disconnects gracefully. It fails with status.InUse while this side has consumers or
	// producers.
	Close() error
	// Abort disconnects at once. Consumers and producers of this side stay allocated but exchange
	// nothing more with the peer, and must still be closed.
	Abort()
}

// Prober is a Connection that can find out that its peer has disconnected or died before it has
// received everything that the peer sent before: Done may be closed much later, for instance
// because this process has been stopped meanwhile.
type Prober interface {
	// HasEnded is called by the function of that name.
	HasEnded(by time.Time) bool
}

// HasEnded reports whether a connection had ended by a time, which has passed. It may also return
// true if the connection has ended since. It waits for nobody, except that a provider without the
// kernel's help may wait for a thread of its own: not for long, and in vain if that is stuck.
//
// A provider in one kernel with its peer always knows. A device tells what it has noticed; without
// a Prober, HasEnded returns what Done does.
func HasEnded(c Connection, by time.Time) bool {
	select {
	case <-c.Done():
		return true
	default:
	}
	p, ok := c.(Prober)
	return ok && p.HasEnded(by)
}

// PlainExporter is a Connection whose peer may be a program written for DOCA.
type PlainExporter interface {
	// ExportPlain is Connection.ExportMemory, with a descriptor as libdoca makes it and such
	// programs expect it.
	ExportPlain(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error)
}

// DeviceImporter is a Connection that can import memory with a device other than its own: a port of
// a DPU has Comch, and the sub-function beside it RDMA. DOCA does not say which devices can; the
// import fails with the one that cannot.
type DeviceImporter interface {
	// ImportMemoryFor is Connection.ImportMemory, but the region belongs to device. It fails with
	// status.NotSupported if the provider has one device for everything.
	ImportMemoryFor(device memory.Device, descriptor []byte) (*memory.Region, memory.Access, error)
}

// ImportMemoryFor imports memory with a device other than the connection's, if the connection can.
func ImportMemoryFor(c Connection, device memory.Device, descriptor []byte) (*memory.Region,
	memory.Access, error) {
	if importer, can := c.(DeviceImporter); can {
		return importer.ImportMemoryFor(device, descriptor)
	}
	return nil, 0, status.Errorf(status.NotSupported,
		"import memory with device %v: the Comch provider has one device for everything", device)
}

// MaxExportLength bounds the descriptor of an exported region in bytes.
const MaxExportLength = 1024

// MaxImmediateLength bounds the immediate data of a message in bytes, on any provider.
const MaxImmediateLength = 32

// ConsumerConfig configures a consumer.
type ConsumerConfig struct {
	// Receives is how many receives can be posted at a time.
	Receives int
	// MemorySize is how many bytes of message memory the provider allocates for the consumer's
	// posted buffers. It must be 0 if Memory is set.
	MemorySize int
	// Memory, if set, is the application's memory to receive into, of at most MaxMemorySize bytes:
	// the offsets of PostReceive are offsets in it. The caller keeps it open until the consumer is
	// closed. It needs Capabilities.ConsumerMemory; otherwise, and for a kind of region that the
	// provider cannot use, creating the consumer fails with status.NotSupported.
	Memory *memory.Region
	// ImmediateLength is how many bytes of immediate data a message to this consumer may carry; 0
	// selects the device's maximum.
	ImmediateLength int
}

// Received is the completion of a posted receive.
type Received struct {
	// UserData is the value that the receive was posted with.
	UserData uint64
	// Offset is where the posted buffer starts in the consumer's memory.
	Offset uint32
	// Length is the number of bytes received, at most the posted length.
	Length uint32
	// Producer identifies the producer, unique per connection.
	Producer uint32
	// ImmediateLength is how many bytes of Immediate arrived with the message.
	ImmediateLength uint32
	Immediate       [MaxImmediateLength]byte
}

// Consumer receives messages on the data path.
type Consumer interface {
	progress.Waiter
	// ID returns the consumer's ID on its connection.
	ID() ConsumerID
	// Memory returns the consumer's message memory, in which receives are posted. The peer can
	// write all of it at any time. It is nil if ConsumerConfig.Memory is an opaque region.
	Memory() []byte
	// PostReceive offers length bytes at offset of Memory to the peer's producers. length may be 0.
	// Receives complete in the order in which they were posted. It fails with status.Full if
	// ConsumerConfig.Receives are already posted, and with status.InvalidValue if the range is
	// outside the memory. The receive may be held back until Flush or the next Poll; if posting it
	// fails then, the consumer ends: see LateConsumer.
	PostReceive(offset, length uint32, userData uint64) error
	// Flush makes posted receives visible and wakes a peer that waits for them. Call it once after
	// a batch of calls of PostReceive. While more than half of ConsumerConfig.Receives are posted,
	// Flush may leave the others to the next Poll or Arm.
	Flush()
	// Poll fills received with completed receives, in order, and returns their number. If the peer
	// violates the protocol, the connection ends, and Poll returns 0 from then on.
	Poll(received []Received) int
	// State returns Running until the consumer is stopped, its connection ends, or it fails: see
	// LateConsumer.
	State() progress.State
	// Stop takes back the posted receives and notifies the peer, whose producers to this consumer
	// end. Messages that had arrived can still be polled, and the memory stays until Close. A
	// second Stop does nothing.
	Stop()
	// Close stops and destroys the consumer. Memory that the provider has allocated is no longer
	// valid. On hardware it waits for the device, up to CloseTimeout.
	Close() error
}

// CloseTimeout bounds how long Close of a consumer or producer waits for the device. If the device
// has not let go of it by then, Close logs that, leaks the memory that the device may still use,
// and returns an error with status.TimeOut. The object counts as closed.
const CloseTimeout = 5 * time.Second

// LateConsumer is a Consumer whose receives reach the device after PostReceive has returned. Its
// owner asserts that type once, when it gets the consumer. A receive that the device then rejects
// ends the consumer although its connection goes on: a sleeper wakes up, and after the next Poll
// State is no longer Running and Err returns the error.
type LateConsumer interface {
	Consumer
	// Err returns the error of the receive that has ended the consumer. It is nil while none has
	// failed, and stays nil if the consumer ends for another reason, such as the end of the
	// connection.
	Err() error
}

// WatchedConsumer is a Consumer with a word in memory that shows when a message arrives. Its owner
// asserts that type once, when it gets the consumer.
type WatchedConsumer interface {
	Consumer
	// Watch returns what to watch until Poll would find something, valid until Close. Its Word is
	// nil if Poll may find something now, or if it cannot tell.
	Watch() progress.Watch
}

// Producer sends messages on the data path to one consumer of the peer. Messages from one producer
// arrive in the order in which they were sent.
type Producer interface {
	// Waiter lets a thread sleep until the consumer, which had no receive posted, has one again.
	// Arm returns false if it has one already.
	progress.Waiter
	// ID returns the value of Received.Producer at the consumer. It is unique per connection and
	// never 0.
	ID() uint32
	// Send copies message and immediate to the consumer's next posted buffer and keeps neither
	// slice. It fails with status.Again if no receive is posted or the producer has no room, in
	// which case the caller tries again later; with status.InvalidValue if the message is longer
	// than the posted buffer, or immediate longer than the consumer allows; and with
	// status.NotConnected if the consumer or the connection is gone. The message may be held back
	// until Flush; if sending it fails then, or later, the producer ends: see LateProducer.
	Send(message, immediate []byte) error
	// Flush sends what was held back, and wakes the peer if it sleeps. Call it once after a batch
	// of calls of Send.
	Flush()
	// State returns Running until the producer, the consumer, or the connection ends.
	State() progress.State
	// Close destroys the producer. What has been sent and flushed still arrives if the consumer has
	// receives for it. On hardware Close waits for that, up to CloseTimeout.
	Close() error
}

// LateProducer is a Producer whose sends complete after Send has returned, as they do on hardware.
// Its owner asserts that type once, when it gets the producer, and then polls it in every turn. A
// send that completes with an error ends the producer although its connection goes on: State leaves
// Running, Send fails with status.NotConnected, and Err returns the error. The messages sent after
// that one are lost.
//
// Arm of a LateProducer returns false only if there is something to collect, success or failure, or
// if the last Send failed with status.Again and may succeed now. So the thread can sleep on it
// whether or not it has something to send.
type LateProducer interface {
	Producer
	// Poll returns how many sends have succeeded since the last Poll, in the order of sending.
	progress.Source
	// Err returns the error of the send that has ended the producer. It is nil while none has
	// failed, and stays nil if the producer ends for another reason, such as the end of the
	// consumer or the connection, which fails the sends in flight, too.
	Err() error
	// Abort makes Close drop the sends in flight instead of waiting for them. Only Close may
	// follow.
	Abort()
}
