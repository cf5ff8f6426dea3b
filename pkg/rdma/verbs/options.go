// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "verbs"

// ErrAbsent is the error of New in a build without the provider. It matches status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"rdma provider verbs is not part of this build: build with cgo (`make build-hardware`), "+
		"or use provider iwarp")

// Options configures the provider. The zero value is ready for use.
type Options struct {
	// Device restricts the provider to one device: the name of an RDMA device ("mlx5_0"), or of a
	// network interface that has one ("eth0"). If empty, the address selects the device.
	Device string
	// GIDIndex is the entry to use in the port's GID table. If the address is unspecified, the
	// entry determines it; otherwise the two must agree. If nil, the address determines the entry.
	GIDIndex *int
	// PathMTU is the largest payload of a packet: 256, 512, 1024, 2048, or 4096 bytes. Both sides
	// must use the same value. 0 uses what the route allows. Ignored on iWARP.
	PathMTU int
	// TypeOfService sets the DSCP and ECN bits of all packets; on RoCE it selects the traffic
	// class. 0 uses the system's default.
	TypeOfService uint8
	// RetryCount is how often the device resends an unacknowledged packet, 1 to 7. 0 means
	// DefaultRetryCount. Ignored on iWARP.
	RetryCount int
	// AckTimeout is how long the device waits for an acknowledgement before it resends, rounded up
	// to 4.096 µs × 2^n. Devices may wait up to four times as long. 0 means DefaultAckTimeout.
	AckTimeout time.Duration
	// RNRRetryCount is how often the device repeats a Send that finds no posted receive, 1 to 7,
	// where 7 means forever. The relay and the target post receives before they are needed, so a
	// higher count only hides faults. 0 means DefaultRNRRetryCount. Ignored on iWARP, which never
	// repeats a Send.
	RNRRetryCount int
	// Logger records lost connections, rejected requests, device events, and failures that no call
	// can return. If nil, nothing is logged.
	Logger *zap.Logger
}

// The defaults of Options. With them, the device gives up on a silent peer after waiting about two
// seconds for acknowledgements.
const (
	DefaultRetryCount    = 7
	DefaultAckTimeout    = 250 * time.Millisecond
	DefaultRNRRetryCount = 3
)

func (o Options) withDefaults() Options {
	if o.RetryCount == 0 {
		o.RetryCount = DefaultRetryCount
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = DefaultAckTimeout
	}
	if o.RNRRetryCount == 0 {
		o.RNRRetryCount = DefaultRNRRetryCount
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// The maxima of the queue pair attributes: three bits for either retry count, and five for the
// exponent of the acknowledgement timeout.
const (
	maxRetryCount         = 7
	maxAckTimeoutExponent = 31
)

// validate rejects values that no device can use.
func (o *Options) validate() error {
	switch o.PathMTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return status.Errorf(status.InvalidValue,
			"invalid path MTU %d: must be 256, 512, 1024, 2048, or 4096", o.PathMTU)
	}
	if o.GIDIndex != nil && *o.GIDIndex < 0 {
		return status.Errorf(status.InvalidValue, "invalid GID index %d: must not be negative",
			*o.GIDIndex)
	}
	if o.RetryCount < 1 || o.RetryCount > maxRetryCount {
		return status.Errorf(status.InvalidValue,
			"invalid retry count %d: must be between 1 and %d", o.RetryCount, maxRetryCount)
	}
	if o.RNRRetryCount < 1 || o.RNRRetryCount > maxRetryCount {
		return status.Errorf(status.InvalidValue,
			"invalid RNR retry count %d: must be between 1 and %d", o.RNRRetryCount, maxRetryCount)
	}
	if o.AckTimeout < 0 || ackTimeoutExponent(o.AckTimeout) > maxAckTimeoutExponent {
		return status.Errorf(status.InvalidValue,
			"invalid acknowledgement timeout %v: must be between 4.096µs and 2h", o.AckTimeout)
	}
	return nil
}

// ackTimeoutExponent returns the smallest n ≥ 1 with 4.096 µs × 2^n ≥ d. An exponent of 0 would
// mean an infinite timeout (IBTA volume 1, 9.7.6.1.3).
func ackTimeoutExponent(d time.Duration) int {
	n := 1
	for n <= maxAckTimeoutExponent && 4096*time.Nanosecond<<n < d {
		n++
	}
	return n
}
