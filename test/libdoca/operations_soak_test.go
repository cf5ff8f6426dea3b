//go:build cgo && soak

package libdoca_test

const (
	storageOperations = 100_000
	clientOperations  = 100_000
)
