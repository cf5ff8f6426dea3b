// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !soak

package test

import "github.com/zc-relay/zc-relay/internal/testkit"

const (
	// storageOperations is how many blocks each thread of an initiator writes and verifies.
	storageOperations = 800
	// testTimeout bounds one test of a program, and the life of each process of a mixture.
	testTimeout = testkit.Patience
)
