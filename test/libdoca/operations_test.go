//go:build cgo && !soak

package libdoca_test

const (
	// storageOperations is how many blocks each thread of an initiator writes and verifies.
	storageOperations = 2000
	// clientOperations is the same for our client, which does one after the other.
	clientOperations = 400
)
