// SPDX-License-Identifier: Apache-2.0

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
