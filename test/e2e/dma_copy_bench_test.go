package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BenchmarkFileCopy compares dma-copy with cp, on files in memory. Each
// iteration starts the processes.
func BenchmarkFileCopy(b *testing.B) {
	const size = 512 << 20
	base := "/dev/shm"
	if about, err := os.Stat(base); err != nil || !about.IsDir() {
		b.Skipf("there is no file system in memory: %v", err)
	}
	b.Setenv("TMPDIR", base)
	b.Run("cp", func(b *testing.B) {
		dir := b.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		writeFile(b, from, someContent(size))
		b.SetBytes(size)
		for b.Loop() {
			if output, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, output)
			}
			_ = os.Remove(to)
		}
	})
	for name, toDPU := range map[string]bool{"dma-copy/host_to_dpu": true, "dma-copy/dpu_to_host": false} {
		b.Run(name, func(b *testing.B) {
			s := newCopySite(b)
			from, to := s.ends(toDPU)
			writeFile(b, from, someContent(size))
			b.SetBytes(size)
			for b.Loop() {
				host, dpu := s.start(false)
				if h, d := host.wait(), dpu.wait(); h != 0 || d != 0 {
					b.Fatalf("the host ended with %d, the DPU with %d", h, d)
				}
				_ = os.Remove(to)
			}
		})
	}
}
