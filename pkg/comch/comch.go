// Package comch is the seam to DOCA Comch: the communication channel between
// client applications on a host and servers on a BlueField DPU.
//
// A server listens on one device for the clients of one representor, under a
// name. A client connects to it by that name. The resulting Connection
// carries control messages both ways, and is what consumers and producers,
// the fast data path, are made on. Providers implement these interfaces over
// hardware or over shared memory.
//
// Servers and connections may be used by any goroutine. A consumer or a
// producer belongs to one thread at a time. The peer is not trusted: whatever
// is received may hold any bytes, and posted buffers stay writable by the
// peer, so a message must be copied once and only then examined.
package comch

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Provider is one implementation of Comch.
type Provider interface {
	// Name is the provider's name in configuration, for instance "emulated".
	Name() string
	// Capabilities answers what device can do before anything is created on
	// it. It fails with status.NotSupported if the provider is not built in
	// or the device cannot do Comch.
	Capabilities(device string) (Capabilities, error)
	// Listen starts a server. Its name is unique per device and representor:
	// status.AlreadyExist if it is taken.
	Listen(ctx context.Context, config ServerConfig) (Server, error)
	// Connect connects to a server. status.NotFound means that no server has
	// that name, status.NotPermitted that the server refused this user,
	// status.Full that it has its maximum of clients.
	Connect(ctx context.Context, config ClientConfig) (Connection, error)
	// NewDPA makes a DPA thread, status.NotSupported if the device has none.
	NewDPA(config DPAConfig) (DPA, error)
	// NewMsgQ makes a message queue to a DPA of this provider.
	NewMsgQ(config MsgQConfig) (MsgQ, error)
}

// Capabilities are what a device can do, and its limits (doca_comch_cap_*).
type Capabilities struct {
	// What the device can be used for.
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
	// CanWait tells whether consumers and producers have descriptors that a
	// thread can sleep on. Comch on hardware has not.
	CanWait bool
}

// ServerConfig says where a server listens. Zero values mean the defaults.
type ServerConfig struct {
	Device      string // the DPU's device, for instance "03:00.0"
	Representor string // the host function it serves, for instance "b1:00.0"
	Name        string
	// MaxMessageSize is the largest control message in bytes. Client and
	// server must agree; 0 takes the device's maximum.
	MaxMessageSize int
	// ReceiveQueue is how many received control messages are kept for each
	// connection before the peer's Send has to wait.
	ReceiveQueue int
	// Refused, if it is set, is told of each client that was turned away and
	// why. Any goroutine may call it, and it must not block.
	Refused func(peer Peer, reason error)
	// Admission says which clients to take at first.
	Admission
}

// Admission says which clients a server takes. Zero values mean the defaults.
type Admission struct {
	// MaxClients is how many clients may be connected at once.
	MaxClients int
	// AllowAnyUser accepts clients of every user. Otherwise only root, the
	// server's own user and AllowUsers may connect.
	AllowAnyUser bool
	AllowUsers   []uint32 // user ids
	// MaxExportBytes limits the memory that one connection may have exported
	// to the server at any time.
	MaxExportBytes uint64
}

// AllowsOthers tells whether users may connect that are neither root nor the
// server's own.
func (a *Admission) AllowsOthers() bool { return a.AllowAnyUser || len(a.AllowUsers) > 0 }

// ClientConfig says which server to connect to. Zero values mean the
// defaults.
type ClientConfig struct {
	Device string // the host's device, for instance "b1:00.0"
	Name   string
	// MaxMessageSize and ReceiveQueue are as in ServerConfig.
	MaxMessageSize int
	ReceiveQueue   int
}

// Server accepts the connections of clients.
type Server interface {
	// Accept waits for the next client. It fails with status.Shutdown after
	// Close.
	Accept(ctx context.Context) (Connection, error)
	// SetAdmission says which clients to take from now on. Clients that are
	// connected stay.
	SetAdmission(admission Admission) error
	// Address says where the server listens, for logs.
	Address() string
	// Close stops listening and releases the name. Established connections
	// live on.
	Close() error
}

// Peer is what the operating system says of the process at the other end.
type Peer struct {
	PID int
	UID uint32
	GID uint32
}

// ConsumerID names a consumer of the peer; unique per connection and never 0.
type ConsumerID uint32

// ConsumerEvent tells that the peer has created or destroyed a consumer.
type ConsumerEvent struct {
	ID      ConsumerID
	Created bool
}

// Connection is an established connection between a client and a server.
// It ends when either side closes it or either process dies.
type Connection interface {
	// Peer identifies the process at the other end.
	Peer() Peer
	// MaxMessageSize is the agreed limit of control messages in bytes.
	MaxMessageSize() int
	// Send sends one control message, waiting while the peer's receive queue
	// is full. status.TooBig if the message exceeds MaxMessageSize.
	Send(ctx context.Context, message []byte) error
	// Receive waits for the next control message, which the caller then
	// owns. Messages arrive whole and in order. After the end of the
	// connection, once all received messages have been taken, it fails with
	// status.NotConnected.
	Receive(ctx context.Context) ([]byte, error)
	// NextConsumerEvent waits for the peer to create or destroy a consumer.
	// Events come in the order of creation and destruction.
	NextConsumerEvent(ctx context.Context) (ConsumerEvent, error)
	// NewConsumer creates a consumer and waits until it is running and the
	// peer has been told of it.
	NewConsumer(ctx context.Context, config ConsumerConfig) (Consumer, error)
	// NewProducer creates a producer that sends to one consumer of the peer.
	// status.NotFound if the peer has no such consumer (any more).
	NewProducer(ctx context.Context, consumer ConsumerID) (Producer, error)
	// ExportMemory lets the peer import a region with the given rights and
	// returns the descriptor to send it, at most MaxExportLength bytes.
	ExportMemory(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error)
	// ImportMemory turns a descriptor that the peer sent into a region. The
	// region stays valid until it is closed, even past the connection.
	ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error)
	// Done is closed when the connection has ended, for whatever reason.
	Done() <-chan struct{}
	// Err says why the connection has ended, nil before.
	Err() error
	// Close disconnects in order. It fails with status.InUse while this side
	// has consumers or producers.
	Close() error
	// Abort disconnects at once. Consumers and producers of this side stay
	// allocated, see nothing more of the peer, and must still be closed.
	Abort()
}

// MaxExportLength bounds the descriptor of an exported region in bytes.
const MaxExportLength = 1024

// MaxImmediateLength bounds the immediate data of a message in bytes, on any
// provider.
const MaxImmediateLength = 32

// ConsumerConfig sizes a consumer.
type ConsumerConfig struct {
	// Receives is how many receives can be posted at a time.
	Receives int
	// MemorySize is the number of bytes of message memory that the provider
	// allocates for this consumer's posted buffers.
	MemorySize int
	// ImmediateLength is how many bytes of immediate data a message to this
	// consumer may have; 0 means the device's maximum.
	ImmediateLength int
}

// Received is the completion of a posted receive.
type Received struct {
	// UserData is what the receive was posted with.
	UserData uint64
	// Offset is where the posted buffer starts in the consumer's memory.
	Offset uint32
	// Length is the number of bytes received, at most what was posted.
	Length uint32
	// Producer identifies the producer, unique per connection.
	Producer uint32
	// ImmediateLength bytes of Immediate came with the message.
	ImmediateLength uint32
	Immediate       [MaxImmediateLength]byte
}

// Consumer receives messages on the data path.
type Consumer interface {
	progress.Waiter
	// ID is the consumer's id on its connection.
	ID() ConsumerID
	// Memory is the consumer's message memory, in which receives are posted.
	// The peer can write all of it at any time.
	Memory() []byte
	// PostReceive offers length bytes at offset of Memory to the peer's
	// producers. length may be 0. Receives complete in the order in which
	// they were posted. status.Full if Receives are posted already,
	// status.InvalidValue if the range is outside the memory.
	PostReceive(offset, length uint32, userData uint64) error
	// Flush makes posted receives visible and wakes a peer that waits for
	// them. It is called once after a batch of PostReceive.
	Flush()
	// Poll fills received with completed receives, in order, and returns
	// their number. A peer that breaks the protocol ends the connection, and
	// Poll returns 0 from then on.
	Poll(received []Received) int
	// State is Running until the consumer is stopped or its connection ends.
	State() progress.State
	// Stop withdraws the posted receives and tells the peer that the consumer
	// is gone: its producers end. What had arrived can still be polled, and
	// the memory stays until Close. A second Stop does nothing.
	Stop()
	// Close destroys the consumer, stopping it before. Its memory is gone.
	Close() error
}

// Producer sends messages on the data path to one consumer of the peer.
// Messages of one producer arrive in the order in which they were sent.
type Producer interface {
	// Waiter lets a thread sleep until a consumer that had no receives
	// posted has some again. Arm returns false if there are some.
	progress.Waiter
	// ID is what the consumer sees as Received.Producer; unique per
	// connection and never 0.
	ID() uint32
	// Send copies message and immediate to the consumer's next posted buffer.
	// Neither slice is kept. status.Again if no receive is posted: try again
	// later. status.InvalidValue if the message is longer than the posted
	// buffer, or immediate than the consumer allows.
	// status.NotConnected if the consumer or the connection is gone.
	Send(message, immediate []byte) error
	// Flush wakes the peer if it sleeps. Messages are visible to a polling
	// peer even before; it is called once after a batch of Send.
	Flush()
	// State is Running until the producer, the consumer or the connection
	// ends.
	State() progress.State
	// Close destroys the producer.
	Close() error
}
