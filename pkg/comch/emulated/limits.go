// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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

// errFull returns the error for exceeding the limit of a kind of object.
func errFull(what string, limit int) error {
	return status.Errorf(status.Full, "connection has reached its limit of %d %s", limit, what)
}

// Defaults of server and client configurations, if the limits allow them.
const (
	defaultReceiveQueue = 64
	defaultMaxClients   = 128
)
