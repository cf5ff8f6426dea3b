//go:build cgo && soak

package libdoca_test

const storageOperations = 100_000
