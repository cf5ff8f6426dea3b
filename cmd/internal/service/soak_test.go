//go:build soak

package service_test

// All pairs run.
func init() { sampledPairs = -1 }
