// SPDX-License-Identifier: Apache-2.0

package software_test

import (
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/dma/dmatest"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, options := range map[string]software.Options{
		"thread per engine": {}, "inline": {Inline: true},
	} {
		t.Run(name, func(t *testing.T) {
			dmatest.Run(t, dmatest.Config{
				Provider: software.New(options),
				Device:   software.DefaultDevice, OtherDevice: software.DefaultHostDevice,
				Import: exported,
				// The mapping is read-only, although the test imports it with more rights.
				Faulty: func(t testing.TB, length uint64) *memory.Region {
					_, imported := exported(t, length, memory.PCIRead)
					return imported
				},
			})
		})
	}
}

// exported returns memory as its owner sees it, and as a peer imports it.
func exported(t testing.TB, length uint64, access memory.Access) (owner, imported *memory.Region) {
	t.Helper()
	owner, err := memory.Alloc("dmatest", length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close() })
	twin, err := unix.FcntlInt(uintptr(owner.Descriptor()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	imported, err = memory.Import(twin, owner.Base(), length, 1<<30, access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = imported.Close() })
	return owner, imported
}
