// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryVolumeConforms(t *testing.T) { volumetest.Run(t, openMemory(1<<20)) }

func TestFileVolumeConforms(t *testing.T) { volumetest.Run(t, openFile(1<<20)) }

func TestFileVolumeConformsWithoutFileSystemSupport(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		return volume.WithoutFileSystemSupport(volumetest.MustOpen(t, openFile(1<<20))), nil
	})
}

func TestDirectVolumeConforms(t *testing.T) { volumetest.Run(t, openDirect(1<<20)) }

func TestBlockDeviceVolumeConforms(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		return volume.Open(fileSpec(loopDevice(t, 1<<20), 0))
	})
}

func BenchmarkMemory(b *testing.B) { volumetest.Benchmark(b, openMemory(32<<20)) }

func BenchmarkFile(b *testing.B) { volumetest.Benchmark(b, openFile(32<<20)) }

func BenchmarkDirect(b *testing.B) { volumetest.Benchmark(b, openDirect(32<<20)) }

func openMemory(bytes uint64) volumetest.Open {
	return func(testing.TB) (volume.Volume, error) {
		return volume.Open(volume.Spec{Name: "v", BlockSize: 4096,
			Backend: volume.MemoryBackend{Size: bytes}})
	}
}

func openFile(bytes uint64) volumetest.Open {
	return func(t testing.TB) (volume.Volume, error) {
		return volume.Open(fileSpec(filepath.Join(t.TempDir(), "volume"), bytes))
	}
}

func openDirect(bytes uint64) volumetest.Open {
	return func(t testing.TB) (volume.Volume, error) {
		backend := volume.FileBackend{Path: filepath.Join(t.TempDir(), "volume"), Size: bytes,
			Direct: true}
		return volume.Open(volume.Spec{Name: "v", BlockSize: 4096, Backend: backend})
	}
}

func fileSpec(path string, bytes uint64) volume.Spec {
	return volume.Spec{Name: "v", BlockSize: 4096,
		Backend: volume.FileBackend{Path: path, Size: bytes}}
}

func open(t testing.TB, spec volume.Spec) volume.Volume {
	t.Helper()
	return volumetest.MustOpen(t, func(testing.TB) (volume.Volume, error) {
		return volume.Open(spec)
	})
}

// do runs one request that must succeed.
func do(t testing.TB, queue volume.Queue, r *volume.Request) {
	t.Helper()
	volumetest.Do(t, queue, r)
	if r.Err != nil {
		t.Fatalf("%v of %d bytes at %d: %v", r.Operation, r.Length, r.Offset, r.Err)
	}
}
