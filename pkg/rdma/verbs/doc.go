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

import "github.com/zc-relay/zc-relay/pkg/status"

// ProviderName is the provider's name in configuration.
const ProviderName = "verbs"

// ErrAbsent is why New fails in a build without the provider. It matches
// status.NotSupported.
var ErrAbsent = status.Errorf(status.NotSupported,
	"rdma provider verbs is not part of this build: build with cgo and `-tags verbs`, or use the provider iwarp")
