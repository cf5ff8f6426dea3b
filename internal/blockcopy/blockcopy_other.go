// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

// Package blockcopy copies blocks to and from memory that is too large for the caches.
package blockcopy

import "github.com/zc-relay/zc-relay/internal/prefetch"

// beginning is how much of the next block is loaded ahead. The processor looks ahead by itself once
// a copy has begun.
const beginning = 512

// Store copies src, from the caches, to dst, as copy does.
func Store(dst, src []byte) { copy(dst, src) }

// Load copies src to dst, in the caches, as copy does, and before starts to load next, which it may
// copy next. Loading next never faults, so next need not be readable.
func Load(dst, src, next []byte) {
	prefetch.Memory(next[:min(len(next), beginning)])
	copy(dst, src)
}
