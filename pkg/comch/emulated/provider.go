// Package emulated is a Comch provider for one Linux machine: the channel
// between host and DPU is a Unix socket and shared memory.
//
// Servers are found in the file system, under
// DIRECTORY/REPRESENTOR/DPU-DEVICE/NAME; a client of host device X looks
// under DIRECTORY/X/*/. Control messages, and the descriptors of shared
// memory and doorbells, travel over a SOCK_SEQPACKET socket that only
// goroutines of the provider touch. The data path is a ring in shared memory
// per consumer: a producer copies its message into the next posted buffer and
// publishes the completion; while the peer polls there is no system call.
//
// Neither side trusts the other. The server creates the memory of all rings,
// sealed against resizing, so that no access to them can fault; every value
// in them is loaded once and checked, and a peer that breaks the rules loses
// its connection. A doorbell is a pair of datagram sockets of which each side
// holds one end alone, so that nothing a peer does to its end can block the
// other side or keep it from sleeping. What a peer has handed over is closed by
// goroutines of the connection only, since that can block. The memory of a ring
// is freed when its consumer is gone, even if the client keeps the file.
package emulated

import (
	"strings"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The PCI addresses of the emulated hardware, as programs use them when no
// others are configured.
const (
	// DefaultDevice is the device as the DPU sees it.
	DefaultDevice = "03:00.0"
	// DefaultRepresentor is the host function that the DPU serves.
	DefaultRepresentor = "b1:00.0"
	// DefaultHostDevice is the device as the host sees it.
	DefaultHostDevice = "b1:00.0"
)

// Options configure a provider. The zero value is usable.
type Options struct {
	// Directory is where servers and clients meet; "" means
	// DefaultDirectory(). It must belong to root or to the user of this
	// process, and nobody else may be able to write to it. A server makes it
	// with mode 0700; one that allows any user opens it, and what it uses in
	// it, to everybody's clients, who also must be able to search the
	// directories above: those of a user's runtime directory they cannot.
	Directory string
	// Logger takes what cannot be returned: refused clients, for instance.
	Logger *zap.Logger
	Limits Limits
}

// Limits bound what a peer, or this side, can ask for. A value of 0 means the
// default.
type Limits struct {
	MaxMessageSize  int // bytes in a control message, at most 128 KiB
	MaxReceiveQueue int // control messages queued for one connection
	MaxClients      int // clients of one server
	MaxConsumers    int // consumers of either side of a connection
	MaxProducers    int // producers of either side of a connection
	MaxReceives     int // posted receives of one consumer, at most 1 Mi
	MaxMemorySize   int // bytes of message memory of one consumer, at most 1 GiB
	// MaxRingBytes is the shared memory that all rings of one connection may
	// take; the server pays for them.
	MaxRingBytes int
	// MaxExports is how many regions either side may have exported.
	MaxExports int
	// MaxExportBytes is the memory that either side may have exported,
	// unless the server is configured otherwise.
	MaxExportBytes uint64
}

// New makes the provider. It touches nothing until it is used.
func New(options Options) comch.Provider {
	p := &provider{directory: options.Directory, log: options.Logger, limits: options.Limits.complete()}
	if p.directory == "" {
		p.directory = DefaultDirectory()
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	return p
}

type provider struct {
	directory string
	log       *zap.Logger
	limits    Limits
}

func (p *provider) Name() string { return providerName }

func (p *provider) Capabilities(device string) (comch.Capabilities, error) {
	if err := checkName("device", device); err != nil {
		return comch.Capabilities{}, err
	}
	return p.limits.capabilities(), nil
}

// defaultLimits are generous for what storage needs and small enough that a
// hostile client cannot exhaust a machine. The size of control messages is
// that of the hardware, so that nothing works only here.
var defaultLimits = Limits{
	MaxMessageSize:  4080,
	MaxReceiveQueue: 1024,
	MaxClients:      1024,
	MaxConsumers:    128,
	MaxProducers:    128,
	MaxReceives:     1 << 17,
	MaxMemorySize:   16 << 20,
	MaxRingBytes:    64 << 20,
	MaxExports:      64,
	MaxExportBytes:  16 << 30,
}

// highestLimits keep sizes within what sockets and 32-bit fields can carry.
var highestLimits = Limits{
	MaxMessageSize:  128 << 10,
	MaxReceiveQueue: 1 << 16,
	MaxClients:      1 << 16,
	MaxConsumers:    1 << 12,
	MaxProducers:    1 << 12,
	MaxReceives:     1 << 20,
	MaxMemorySize:   1 << 30,
	MaxRingBytes:    1 << 31,
	MaxExports:      1 << 12,
	MaxExportBytes:  1 << 62,
}

// Defaults of what a server or client may leave open.
const (
	defaultReceiveQueue = 64
	defaultMaxClients   = 128
)

const (
	providerName  = "emulated"
	maxNameLength = 120 // bytes, as on hardware
)

// complete replaces zeroes by defaults and cuts off what cannot work.
func (l Limits) complete() Limits {
	return Limits{
		MaxMessageSize:  bounded(l.MaxMessageSize, defaultLimits.MaxMessageSize, highestLimits.MaxMessageSize),
		MaxReceiveQueue: bounded(l.MaxReceiveQueue, defaultLimits.MaxReceiveQueue, highestLimits.MaxReceiveQueue),
		MaxClients:      bounded(l.MaxClients, defaultLimits.MaxClients, highestLimits.MaxClients),
		MaxConsumers:    bounded(l.MaxConsumers, defaultLimits.MaxConsumers, highestLimits.MaxConsumers),
		MaxProducers:    bounded(l.MaxProducers, defaultLimits.MaxProducers, highestLimits.MaxProducers),
		MaxReceives:     bounded(l.MaxReceives, defaultLimits.MaxReceives, highestLimits.MaxReceives),
		MaxMemorySize:   bounded(l.MaxMemorySize, defaultLimits.MaxMemorySize, highestLimits.MaxMemorySize),
		MaxRingBytes:    bounded(l.MaxRingBytes, defaultLimits.MaxRingBytes, highestLimits.MaxRingBytes),
		MaxExports:      bounded(l.MaxExports, defaultLimits.MaxExports, highestLimits.MaxExports),
		MaxExportBytes:  bounded(l.MaxExportBytes, defaultLimits.MaxExportBytes, highestLimits.MaxExportBytes),
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
		return status.Errorf(status.InvalidValue, "%s %d is not within 1 and %d", what, value, limit)
	}
	return nil
}

// checkName refuses what cannot be the name of a file in the directory where
// servers meet clients. what tells which setting it came from.
func checkName(what, name string) error {
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
	return status.Errorf(status.InvalidValue, "%s %q %s: up to %d bytes can be used, for instance \"storage\" or \"03:00.0\"",
		what, name[:min(len(name), maxNameLength)], reason, maxNameLength)
}
