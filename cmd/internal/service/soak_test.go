//go:build soak

package service_test

// All pairs and all delays run.
func init() { sampledPairs, sampledDelays = -1, -1 }
