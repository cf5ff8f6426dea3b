// Package verbs is the RDMA provider for verbs devices: RoCE, InfiniBand and
// iWARP adapters, and the kernel's own Soft-RoCE (rdma_rxe) and Soft-iWARP
// (siw). It stands on libibverbs and librdmacm and is part of a build with
// cgo and the tag verbs; without it New fails with ErrAbsent.
//
// Connections are made by rdma_cm, in goroutines and under deadlines. One
// goroutine per opened device waits for the events of the connection manager
// and of the device. It touches connections only by leaving a note and
// ringing their completion queue; what belongs to the data path happens on
// the thread that polls the queue.
//
// Requests are kept in rings of this package as well as in the device: a
// device frees the slots of silent requests without a word, tells of a failed
// request only its id, and may forget what was outstanding when its queue pair
// is destroyed. From the rings every request completes exactly once, in
// order, with OpDisconnected as the last.
//
// A connection ends by the destruction of its queue pair. That, and not the
// error state, is what guarantees that the device touches no memory on the
// peer's behalf any more. What has not completed by then is completed as
// flushed from the rings.
package verbs

import (
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ProviderName is the provider's name in configuration.
const ProviderName = "verbs"

// ErrAbsent is why New fails in a build without the provider. It matches
// status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"rdma provider verbs is not part of this build: build with cgo and `-tags verbs`, or use the provider iwarp")

// Options tune the provider. The zero value is ready for use.
type Options struct {
	// Device restricts the provider to one device: the name of an RDMA device
	// ("mlx5_0"), or of a network interface that has one ("eth0"). Empty: the
	// device that has the address.
	Device string
	// GIDIndex is the entry of the port's GID table to communicate with. The
	// address follows from it where none is given; where one is given, the
	// two must agree. nil: the entry of the address.
	GIDIndex *int
	// PathMTU is the largest payload of a packet: 256, 512, 1024, 2048 or 4096
	// bytes. Both sides must use the same. 0: as the route allows. It has no
	// meaning on iWARP.
	PathMTU int
	// TypeOfService of all packets (DSCP and ECN bits; on RoCE it selects the
	// traffic class). 0 leaves it to the system's default.
	TypeOfService uint8
	// RetryCount is how often a packet without acknowledgement is sent again,
	// 1 to 7. 0: DefaultRetryCount. Not on iWARP.
	RetryCount int
	// AckTimeout is the wait before that, rounded up to 4.096 µs × 2^n;
	// devices may wait up to four times as long. 0: DefaultAckTimeout.
	AckTimeout time.Duration
	// RNRRetryCount is how often a Send that finds no posted receive is
	// repeated, 1 to 7, of which 7 means without end. Receives are posted
	// before they are needed, so that more would only hide a fault. 0:
	// DefaultRNRRetryCount. Not on iWARP, where there is no repetition.
	RNRRetryCount int
	// Logger gets one line for each lost connection and each event of the
	// device; nil means silence.
	Logger *zap.Logger
}

// The defaults of Options. With them a peer that is gone is noticed after
// some two seconds of waiting for acknowledgements.
const (
	DefaultRetryCount    = 7
	DefaultAckTimeout    = 250 * time.Millisecond
	DefaultRNRRetryCount = 3
)

// maxCount is the largest retry count: both fields have three bits.
const maxCount = 7

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

// validate refuses what no device can do.
func (o *Options) validate() error {
	switch o.PathMTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return status.Errorf(status.InvalidValue, "path MTU %d is none of 256, 512, 1024, 2048 and 4096", o.PathMTU)
	}
	if o.GIDIndex != nil && *o.GIDIndex < 0 {
		return status.Errorf(status.InvalidValue, "GID index %d is negative", *o.GIDIndex)
	}
	if o.RetryCount < 1 || o.RetryCount > maxCount {
		return status.Errorf(status.InvalidValue, "retry count %d is not between 1 and %d", o.RetryCount, maxCount)
	}
	if o.RNRRetryCount < 1 || o.RNRRetryCount > maxCount {
		return status.Errorf(status.InvalidValue, "RNR retry count %d is not between 1 and %d", o.RNRRetryCount, maxCount)
	}
	if o.AckTimeout < 0 || ackTimeoutExponent(o.AckTimeout) > maxAckTimeout {
		return status.Errorf(status.InvalidValue, "acknowledgement time-out %v is not between 4.096µs and 2h", o.AckTimeout)
	}
	return nil
}

// maxAckTimeout is the largest value of the field's five bits.
const maxAckTimeout = 31

// ackTimeoutExponent is the smallest n with 4.096 µs × 2^n ≥ d. 0 would mean
// to wait without end (IBTA volume 1, 9.7.6.1.3).
func ackTimeoutExponent(d time.Duration) int {
	n := 1
	for n <= maxAckTimeout && 4096*time.Nanosecond<<n < d {
		n++
	}
	return n
}
