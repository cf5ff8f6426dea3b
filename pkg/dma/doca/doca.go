// SPDX-License-Identifier: Apache-2.0

// Package doca is the DMA provider for BlueField hardware, over NVIDIA's libdoca.
package doca

import "github.com/zc-relay/zc-relay/pkg/doca"

const providerName = "doca"

// Options configures a provider. The zero value is usable.
type Options struct {
	// Loader opens libdoca when it is first needed; nil means doca.System().
	Loader *doca.Loader
	// NeverWait makes threads poll with pauses instead of sleeping on descriptors.
	NeverWait bool
}
