// Package dmatest is the conformance suite of the dma seam: what every
// provider must do, sentence by sentence of the guides (docs/dma-conformance.md
// names the test of each).
package dmatest

import (
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// Config says what is tested.
type Config struct {
	Provider dma.Provider
	// Device and OtherDevice are PCI addresses of two devices.
	Device, OtherDevice string
	// Import makes memory of a peer: as the peer, its owner, has it, and as it
	// is imported with the given rights.
	Import func(t testing.TB, length uint64, access memory.Access) (owner, imported *memory.Region)
	// Faulty makes imported memory whose last byte cannot be copied from or
	// to, although the rights to it allow that. It is nil if the provider
	// cannot be made to see such memory.
	Faulty func(t testing.TB, length uint64) *memory.Region
}

// conformanceTest is one promise of the seam.
type conformanceTest struct {
	name string
	run  func(*bench)
}

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, config Config) {
	t.Helper()
	groups := []struct {
		name  string
		tests []conformanceTest
	}{
		{"Device", deviceTests}, {"MemoryMap", memoryMapTests}, {"Inventory", inventoryTests}, {"Buffer", bufferTests},
		{"Context", contextTests}, {"Job", jobTests}, {"Refusal", refusalTests}, {"Import", importTests}, {"Wait", waitTests},
		{"Sequence", sequenceTests},
	}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					// A context belongs to one thread.
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					test.run(newBench(t, config))
				})
			}
		})
	}
}
