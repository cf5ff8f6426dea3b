package volume_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

func openMemory(bytes uint64) func(testing.TB) volume.Volume {
	return func(t testing.TB) volume.Volume {
		return open(t, volume.Spec{Name: "v", BlockSize: 4096, Backend: volume.MemoryBackend{Size: bytes}})
	}
}

func openFile(bytes uint64) func(testing.TB) volume.Volume {
	return func(t testing.TB) volume.Volume {
		path := filepath.Join(t.TempDir(), "volume")
		return open(t, volume.Spec{Name: "v", BlockSize: 4096, Backend: volume.FileBackend{Path: path, Size: bytes}})
	}
}

func open(t testing.TB, spec volume.Spec) volume.Volume {
	t.Helper()
	v, err := volume.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func BenchmarkMemory(b *testing.B) { volumetest.Benchmark(b, openMemory(32<<20)) }

func BenchmarkFile(b *testing.B) { volumetest.Benchmark(b, openFile(32<<20)) }

// openDirect skips the test where direct IO does not exist.
func openDirect(bytes uint64) func(testing.TB) volume.Volume {
	return func(t testing.TB) volume.Volume {
		path := filepath.Join(t.TempDir(), "volume")
		v, err := volume.Open(volume.Spec{Name: "v", BlockSize: 4096, Backend: volume.FileBackend{Path: path, Size: bytes, Direct: true}})
		if errors.Is(err, status.NotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func BenchmarkDirect(b *testing.B) { volumetest.Benchmark(b, openDirect(32<<20)) }
