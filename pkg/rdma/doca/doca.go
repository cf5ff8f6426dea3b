// Package doca is the RDMA provider over NVIDIA's libdoca (doca_rdma), with connections by details:
// each side describes its end of a connection, the descriptions are exchanged, and both connect.
//
// Between two providers of this package a TCP stream per connection carries the descriptions, and
// everything else that doca_rdma does not tell its peer: private data, read depths, and why a
// connection ends. It also carries the exports of memory. A peer names memory by a key, as
// everywhere in package rdma, and doca_rdma needs an export; so the first use of a key asks the
// peer for the export that belongs to it.
//
// Programs that were written for DOCA exchange descriptions and exports in their own protocols, so
// the device is also an rdma.DetailsDevice, whose connections have no such stream.
//
// libdoca has one protection domain per device. A key that is asked for on a connection is found
// only in that connection's domain, but a peer that guesses a key of the hardware is stopped only
// by the hardware.
package doca

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/doca"
)

// ProviderName is the provider's name in configuration, and its transport.
const ProviderName = "doca"

// Options configures a provider. The zero value is usable.
type Options struct {
	// Loader opens libdoca when it is first needed; nil means doca.System().
	Loader *doca.Loader
	// Device is the PCI address, IB name, or network interface of the device. If it is "", that is
	// the device whose interface has the address, or else the only one.
	Device string
	// GIDIndex is the entry to use in the device's GID table. If nil, it is the one with the
	// address for RoCE v2.
	GIDIndex *int
	// PathMTU is the largest payload of a packet: 256, 512, 1024, 2048, or 4096 bytes. 0 leaves it
	// to libdoca.
	PathMTU int
	// RNRRetryCount is how often the device repeats a Send that finds no posted receive, 1 to 7,
	// where 7 means forever. 0 leaves it to libdoca.
	RNRRetryCount int
	// NeverWait makes threads poll with pauses instead of sleeping on descriptors.
	NeverWait bool
	// Logger is for failures that nobody else can be told; nil means no log.
	Logger *zap.Logger
}
