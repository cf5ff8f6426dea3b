// Package emulated is a Comch provider for one Linux machine: the channel between host and DPU is a
// Unix socket and shared memory.
//
// Clients find servers in the file system: a server listens at
// DIRECTORY/REPRESENTOR/DPU-DEVICE/NAME, and a client of host device X looks for
// DIRECTORY/X/*/NAME. Control messages travel over a SOCK_SEQPACKET socket, and so do the
// descriptors of shared memory and doorbells; only goroutines of the provider use that socket. The
// data path is one ring in shared memory per consumer: a producer copies its message into the next
// posted buffer and publishes the completion. While the peer polls, sending makes no system call.
//
// Neither side trusts the other. The server creates the memory of all rings and seals it against
// resizing, so that no access to it can fault. Each side loads every shared value once and checks
// it; a peer that violates the protocol loses its connection. A doorbell is a pair of datagram
// sockets, one end per side, so that nothing a peer does to its end can block the other side or
// keep its thread from sleeping. Closing a descriptor that the peer has passed can block, so only
// goroutines of the connection close it. The server frees the memory of a ring once its consumer is
// gone, even if the client keeps the file open.
package emulated

import (
	"cmp"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// PCI addresses of the emulated hardware: the defaults of all programs.
const (
	// DefaultDevice is the device as the DPU sees it.
	DefaultDevice = "03:00.0"
	// DefaultRepresentor is the host function that the DPU serves.
	DefaultRepresentor = "b1:00.0"
	// DefaultHostDevice is the device as the host sees it.
	DefaultHostDevice = "b1:00.0"
)

// Options configures a provider. The zero value is usable.
type Options struct {
	// Directory is where servers and clients meet; "" means DefaultDirectory(). It must belong to
	// root or to the user of this process, and nobody else may be able to write to it. For a client
	// it may also belong to a system user to whom root has given it, such as the user of a daemon
	// with a runtime directory. A server
	// creates it with mode 0700. A server that admits other users makes the directory, and its own
	// files in it, accessible to everybody. Those users must also be able to search all parent
	// directories, so a user's runtime directory does not work.
	Directory string
	// Sockets replaces the Unix sockets in Directory, for instance in a simulation. nil means
	// UnixSockets(Directory).
	Sockets Sockets
	// ReachImports makes ImportMemory accept any memory of programs on the emulated libdoca. What
	// cannot be mapped, because it does not consist of whole pages, becomes an opaque region with a
	// memory.Copier, which copies through the address space of the program. The kernel must allow
	// this process to trace the program. The program can delay a copy for as long as it likes, so
	// this is not for a server of clients that it does not trust.
	ReachImports bool
	// Logger records what no call can return, for instance rejected clients. nil disables logging.
	Logger *zap.Logger
	Limits Limits
}

// Limits bounds what a peer, or this side, can request. Zero values mean the defaults.
type Limits struct {
	MaxMessageSize  int // bytes in a control message, at most 128 KiB
	MaxReceiveQueue int // control messages queued for one connection
	MaxClients      int // clients of one server
	MaxConsumers    int // consumers per side of a connection
	MaxProducers    int // producers per side of a connection
	MaxReceives     int // posted receives of one consumer, at most 1 Mi
	MaxMemorySize   int // bytes of message memory of one consumer, at most 1 GiB
	// MaxRingBytes is how many bytes of shared memory all rings of one connection may take,
	// MaxServerRingBytes how many those of all connections of one server may take, unless the
	// server's configuration says otherwise, and MaxAllRingBytes how many those of all servers of
	// the provider may take. The servers allocate them. A connection may take no more of the latter
	// two than it leaves to others.
	MaxRingBytes       int
	MaxServerRingBytes int
	MaxAllRingBytes    int
	// MaxDescriptors is how many descriptors the connections of all servers of the provider may
	// hold, by default half of what the process may open (RLIMIT_NOFILE). MaxServerDescriptors
	// bounds those of one server, by default to three quarters of MaxDescriptors. A connection may
	// take no more of either than it leaves to others, and no more than its objects need: 4 per
	// consumer that both sides may have, 2 per producer, 1 per export, and 257 for its socket and
	// descriptors in transit. Descriptors that wait to be closed count. Imported regions, and up to
	// 256 clients in their handshake, do not.
	MaxDescriptors       int
	MaxServerDescriptors int
	// MaxExports is how many regions each side may export.
	MaxExports int
	// MaxExportBytes is how much memory each side may export, unless the server's configuration
	// says otherwise.
	MaxExportBytes uint64
}

// New returns a provider. It has no side effects until one of its methods is called.
func New(options Options) comch.Provider {
	p := &provider{sockets: options.Sockets, log: options.Logger,
		limits: options.Limits.withDefaults(), reachesImports: options.ReachImports}
	if p.sockets == nil {
		p.sockets = UnixSockets(cmp.Or(options.Directory, DefaultDirectory()))
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	p.account = account{name: "provider",
		limit: holdings{descriptors: p.limits.MaxDescriptors, ringBytes: p.limits.MaxAllRingBytes}}
	return p
}

type provider struct {
	sockets Sockets
	log     *zap.Logger
	limits  Limits
	account account // of all servers

	reachesImports bool
}

func (p *provider) Name() string { return providerName }

// Services implements comch.ServiceLister.
func (p *provider) Services() ([]comch.Service, error) { return p.sockets.Services() }

func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	d, _, err := p.device(pci.Normalize(device))
	if err != nil {
		return comch.Capabilities{}, fmt.Errorf("get capabilities: %w", err)
	}
	c := p.limits.capabilities()
	c.Server, c.Client = d.CanServe, d.CanConnect
	return c, nil
}

// defaultLimits suffices for storage, and is small enough that a hostile client cannot exhaust a
// machine. Control messages are as large as on hardware, so that nothing works only in the
// emulation.
var defaultLimits = Limits{
	MaxMessageSize:     4080,
	MaxReceiveQueue:    1024,
	MaxClients:         1024,
	MaxConsumers:       128,
	MaxProducers:       128,
	MaxReceives:        1 << 17,
	MaxMemorySize:      16 << 20,
	MaxRingBytes:       64 << 20,
	MaxServerRingBytes: 128 << 20,
	MaxAllRingBytes:    512 << 20,
	MaxExports:         64,
	MaxExportBytes:     16 << 30,
}

// highestLimits keeps sizes within what sockets and 32-bit fields can carry.
var highestLimits = Limits{
	MaxMessageSize:       128 << 10,
	MaxReceiveQueue:      1 << 16,
	MaxClients:           1 << 16,
	MaxConsumers:         1 << 12,
	MaxProducers:         1 << 12,
	MaxReceives:          1 << 20,
	MaxMemorySize:        1 << 30,
	MaxRingBytes:         1 << 31,
	MaxServerRingBytes:   1 << 40,
	MaxAllRingBytes:      1 << 40,
	MaxDescriptors:       1 << 30,
	MaxServerDescriptors: 1 << 30,
	MaxExports:           1 << 12,
	MaxExportBytes:       1 << 62,
}

// Defaults of server and client configurations, if the limits allow them.
const (
	defaultReceiveQueue = 64
	defaultMaxClients   = 128
)

const (
	providerName  = "emulated"
	maxNameLength = 120 // bytes, as on hardware
	// lockSuffix is the suffix of lock files: see nameLock.
	lockSuffix = ".lock"
)

// withDefaults replaces zeroes with defaults and caps the rest at highestLimits.
func (l Limits) withDefaults() Limits {
	d, h := &defaultLimits, &highestLimits
	descriptors := bounded(l.MaxDescriptors, linux.OpenFileLimit()/2, h.MaxDescriptors)
	return Limits{
		MaxMessageSize:  bounded(l.MaxMessageSize, d.MaxMessageSize, h.MaxMessageSize),
		MaxReceiveQueue: bounded(l.MaxReceiveQueue, d.MaxReceiveQueue, h.MaxReceiveQueue),
		MaxClients:      bounded(l.MaxClients, d.MaxClients, h.MaxClients),
		MaxConsumers:    bounded(l.MaxConsumers, d.MaxConsumers, h.MaxConsumers),
		MaxProducers:    bounded(l.MaxProducers, d.MaxProducers, h.MaxProducers),
		MaxReceives:     bounded(l.MaxReceives, d.MaxReceives, h.MaxReceives),
		MaxMemorySize:   bounded(l.MaxMemorySize, d.MaxMemorySize, h.MaxMemorySize),
		MaxRingBytes:    bounded(l.MaxRingBytes, d.MaxRingBytes, h.MaxRingBytes),
		MaxServerRingBytes: bounded(l.MaxServerRingBytes, d.MaxServerRingBytes,
			h.MaxServerRingBytes),
		MaxAllRingBytes: bounded(l.MaxAllRingBytes, d.MaxAllRingBytes, h.MaxAllRingBytes),
		MaxDescriptors:  descriptors,
		MaxServerDescriptors: bounded(l.MaxServerDescriptors, descriptors*3/4,
			h.MaxServerDescriptors),
		MaxExports:     bounded(l.MaxExports, d.MaxExports, h.MaxExports),
		MaxExportBytes: bounded(l.MaxExportBytes, d.MaxExportBytes, h.MaxExportBytes),
	}
}

// ofConnection returns what one connection may hold.
func (l Limits) ofConnection() holdings {
	const socket, inTransit = 1, 256
	return holdings{
		descriptors: 4*l.MaxConsumers + 2*l.MaxProducers + l.MaxExports + socket + inTransit,
		ringBytes:   l.MaxRingBytes,
	}
}

func bounded[T int | uint64](value, fallback, highest T) T {
	if value <= 0 {
		return fallback
	}
	return min(value, highest)
}

func (l Limits) capabilities() comch.Capabilities {
	return comch.Capabilities{
		Server:             true,
		Client:             true,
		Consumer:           true,
		Producer:           true,
		MsgQ:               true,
		MaxNameLength:      maxNameLength,
		MaxMessageSize:     l.MaxMessageSize,
		MaxReceiveQueue:    l.MaxReceiveQueue,
		MaxClients:         l.MaxClients,
		MaxSendTasks:       l.MaxReceives,
		MaxConsumers:       l.MaxConsumers,
		MaxReceives:        l.MaxReceives,
		MaxMemorySize:      l.MaxMemorySize,
		MaxBufferLength:    l.MaxMemorySize,
		MaxImmediateLength: comch.MaxImmediateLength,
		CanWait:            true,
		PeerCredentials:    true,
		RejectionReasons:   true,
		ConsumerMemory:     true,
	}
}

func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

func checkCount(what string, value, limit int) error {
	if value < 1 || value > limit {
		return status.Errorf(status.InvalidValue, "%s %d is not between 1 and %d",
			what, value, limit)
	}
	return nil
}

// CheckName rejects a name that cannot be a file name in the directory of servers. what describes
// the name in the error.
func CheckName(what, name string) error {
	reason := ""
	switch {
	case name == "":
		reason = "is empty"
	case len(name) > maxNameLength:
		reason = "is too long"
	case strings.ContainsAny(name, "/\x00"):
		reason = "contains a slash or a zero byte"
	case name[0] == '.':
		reason = "starts with a dot"
	case strings.HasSuffix(name, lockSuffix):
		reason = "ends in " + lockSuffix
	default:
		return nil
	}
	return status.Errorf(status.InvalidValue,
		"invalid %s %q: it %s: use up to %d bytes, for instance \"storage\" or \"03:00.0\"",
		what, name[:min(len(name), maxNameLength)], reason, maxNameLength)
}
