package volume_test

import (
	"errors"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryVolumeConforms(t *testing.T) { volumetest.Run(t, openMemory(1<<20)) }

func TestFileVolumeConforms(t *testing.T) { volumetest.Run(t, openFile(1<<20)) }

func TestFileVolumeConformsWithoutFileSystemSupport(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		return volume.WithoutFileSystemSupport(mustOpen(t, openFile(1<<20))), nil
	})
}

func TestDirectVolumeConforms(t *testing.T) { volumetest.Run(t, openDirect(1<<20)) }

func TestBlockDeviceVolumeConforms(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) (volume.Volume, error) {
		return volume.Open(fileSpec(loopDevice(t), 0))
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

// mustOpen opens a volume for a test, and skips the test where this machine does
// not support the volume.
func mustOpen(t testing.TB, open volumetest.Open) volume.Volume {
	t.Helper()
	v, err := open(t)
	if errors.Is(err, status.NotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func open(t testing.TB, spec volume.Spec) volume.Volume {
	t.Helper()
	return mustOpen(t, func(testing.TB) (volume.Volume, error) { return volume.Open(spec) })
}

func openQueue(t testing.TB, v volume.Volume, depth int) volume.Queue {
	t.Helper()
	queue, err := v.NewQueue(depth)
	if err != nil {
		t.Fatal(err)
	}
	return queue
}

func closeQueue(t testing.TB, queue volume.Queue) {
	t.Helper()
	if err := queue.Close(); err != nil {
		t.Error(err)
	}
}

func closeVolume(t testing.TB, v volume.Volume) {
	t.Helper()
	if err := v.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// do runs one request that must succeed.
func do(t testing.TB, queue volume.Queue, r *volume.Request) {
	t.Helper()
	volumetest.Do(t, queue, r)
	if r.Err != nil {
		t.Fatalf("%v of %d bytes at %d: %v", r.Operation, r.Length, r.Offset, r.Err)
	}
}
