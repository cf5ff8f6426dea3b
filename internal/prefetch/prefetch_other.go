// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

// Package prefetch asks the processor to bring memory into its caches.
package prefetch

// Memory does nothing on this architecture.
func Memory([]byte) {}
