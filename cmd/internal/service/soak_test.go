// SPDX-License-Identifier: Apache-2.0

//go:build soak

package service_test

// All pairs and all delays run.
func init() { sampledPairs, sampledDelays, delayedOccurrences = -1, -1, 20 }
