// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package dma tests the provider of DMA over libdoca, on its emulation.
package dma_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/dmatest"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	dpuDevice  = "03:00.0"
	hostDevice = "b1:00.0"
)

// emulate makes the emulation of libdoca answer as a release, and fails the test for each misuse
// and each object that is left.
func emulate(t *testing.T, release libdoca.Release) *doca.Loader {
	t.Helper()
	err := libdoca.Configure(libdoca.Config{Release: release, Directory: t.TempDir(),
		Report: func(m libdoca.Misuse) { t.Errorf("misuse of %s: %s", m.Function, m.Rule) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := libdoca.Objects(); len(left) > 0 {
			t.Errorf("objects are left: %v", left)
		}
	})
	return doca.Resolved(libdoca.Lookup)
}

func TestConformance(t *testing.T) {
	for name, release := range map[string]libdoca.Release{
		"2.9": libdoca.Release2_9, "3.3": libdoca.Release3_3,
	} {
		t.Run(name, func(t *testing.T) {
			loader := emulate(t, release)
			dmatest.Run(t, dmatest.Config{
				Provider: dmadoca.New(dmadoca.Options{Loader: loader}),
				Device:   dpuDevice, OtherDevice: hostDevice, CopiesInPoll: true,
				Import: func(t testing.TB, length uint64,
					access memory.Access) (owner, imported *memory.Region) {
					return exported(t, loader, length, access)
				},
			})
		})
	}
}

func TestForeignMemoryIsRejected(t *testing.T) {
	loader := emulate(t, libdoca.Release3_3)
	_, imported := exported(t, loader, 4096, memory.PCIRead|memory.PCIWrite)
	device := must[dma.Device](t)(dmadoca.New(dmadoca.Options{Loader: loader}).Open(hostDevice))
	t.Cleanup(func() { _ = device.Close() })
	_, err := device.Register(imported, memory.LocalWrite)
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("registered memory that another device has imported: %v", err)
	}
}

func TestOldReleasesAreNoObstacleForDMA(t *testing.T) {
	loader := emulate(t, libdoca.Release2_7)
	if _, err := dmadoca.New(dmadoca.Options{Loader: loader}).Devices(); err != nil {
		t.Error(err)
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// exported returns memory of the host, and as the DPU imports it.
func exported(t testing.TB, loader *doca.Loader, length uint64,
	access memory.Access) (owner, imported *memory.Region) {
	t.Helper()
	library := must[*doca.Library](t)(loader.Library())
	host := must[*doca.Device](t)(library.OpenDevice(hostDevice))
	dpu := must[*doca.Device](t)(library.OpenDevice(dpuDevice))
	owner = must[*memory.Region](t)(memory.Alloc("dmatest", length))
	granted := access
	if granted&(memory.PCIRead|memory.PCIWrite) == 0 {
		granted |= memory.PCIRead // DOCA does not export memory that cannot be used
	}
	local := must[*doca.MemoryMap](t)(host.MapMemory(owner.Bytes(), granted))
	blob := must[[]byte](t)(local.Export())
	remote := must[*doca.MemoryMap](t)(dpu.ImportMemory(blob))
	imported, _ = remote.Region(remote.Close)
	t.Cleanup(func() {
		for _, closer := range []interface{ Close() error }{imported, local, dpu, host, owner} {
			if err := closer.Close(); err != nil {
				t.Errorf("close %T: %v", closer, err)
			}
		}
	})
	return owner, imported
}
