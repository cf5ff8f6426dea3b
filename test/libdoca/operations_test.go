//go:build cgo && !soak

package libdoca_test

import "time"

const (
	// storageOperations is how many blocks each thread of an initiator writes and verifies.
	storageOperations = 800
	// testTimeout bounds one test of a program, and the life of each process of a mixture. They
	// wait for conditions, for two minutes at most.
	testTimeout = 3 * time.Minute
)
