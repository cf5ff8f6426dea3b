//go:build cgo && soak

package libdoca_test

import "time"

const (
	storageOperations = 100_000
	testTimeout       = time.Hour
)
