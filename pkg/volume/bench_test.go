package volume_test

import (
	"path/filepath"
	"testing"

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
