//go:build cgo && !soak

package libdoca_test

// storageOperations is how many blocks each thread of an initiator writes and verifies.
const storageOperations = 800
