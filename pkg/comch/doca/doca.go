// SPDX-License-Identifier: Apache-2.0

// Package doca is the Comch provider for BlueField hardware, over NVIDIA's libdoca.
//
// Each server and each client connection has a thread, which alone uses its DOCA server or client:
// it makes progress, delivers messages and events, creates consumers and producers, and destroys
// them. A consumer or producer has its own progress engine, which belongs to the thread that
// polls it. Closing and aborting take it away from that thread.
//
// DOCA tells nothing of the peer's process, of the reason of a rejection, or of how a connection
// has ended. A message counts as sent when it is handed to the device; what fails later ends the
// consumer or producer.
package doca

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/doca"
)

const providerName = "doca"

// The devices that an empty name means: the first of a BlueField, on the DPU and on the host.
const (
	DefaultDevice      = "03:00.0"
	DefaultRepresentor = "b1:00.0"
	DefaultHostDevice  = "b1:00.0"
)

// Options configures a provider. The zero value is usable.
type Options struct {
	// Loader opens libdoca when it is first needed; nil means doca.System().
	Loader *doca.Loader
	// NeverWait makes all threads poll with pauses instead of sleeping on descriptors. NVIDIA's
	// guides up to 3.0 say that Comch does not signal completions; measurements on BlueField-3 say
	// that it does.
	NeverWait bool
	// Logger records what no call can return. nil disables logging.
	Logger *zap.Logger
}
