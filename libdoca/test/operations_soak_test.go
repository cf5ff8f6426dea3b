// SPDX-License-Identifier: Apache-2.0

//go:build cgo && soak

package test

import "time"

const (
	storageOperations = 100_000
	testTimeout       = time.Hour
)
