// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func mustCopy(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// randomFile writes a file of random content and returns both.
func randomFile(t testing.TB, dir string, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	path = filepath.Join(dir, "original")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAFilePutThroughTheChainIsIdenticalEverywhere(t *testing.T) {
	t.Parallel()
	const size = 96 << 20 // more than what is in flight at a time
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=96MiB")
	original, content := randomFile(t, c.dir, size)
	for _, queues := range []int{1, 4} {
		copied := filepath.Join(c.dir, "copy"+strconv.Itoa(queues))
		c.mustRun("put", original, "--queues", strconv.Itoa(queues))
		c.mustRun("get", copied, "--queues", strconv.Itoa(queues))
		if !bytes.Equal(readFile(t, copied), content) {
			t.Errorf("with %d queues the copy differs from the original", queues)
		}
		if !bytes.Equal(readFile(t, volume), content) {
			t.Errorf("with %d queues the volume differs from the original", queues)
		}
		c.mustRun("verify", "--queues", strconv.Itoa(queues), "--passes", "1", "--length", "16MiB")
	}
}

// allocated returns how many bytes of disk space a file takes up.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	const unit = 512 // of st_blocks, on every file system
	return s.Blocks * unit
}

func TestHolesTakeUpNoSpaceInAVolumeAndACopy(t *testing.T) {
	t.Parallel()
	const size, dataSize = 128 << 20, 1 << 20
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=128MiB")
	original, content := randomFile(t, c.dir, dataSize)
	if err := os.Truncate(original, size); err != nil {
		t.Fatal(err)
	}
	content = append(content, make([]byte, size-dataSize)...)
	copied := filepath.Join(c.dir, "copy")
	c.mustRun("put", original)
	// The hole cannot be read.
	c.mustRun("get", copied, "--allow-faults", "--fault",
		"volume:read:range=4MiB+124MiB:error=EIO")
	for _, file := range []string{volume, copied} {
		if n := allocated(t, file); n < dataSize || n > 4*dataSize {
			t.Errorf("%s takes up %d bytes for %d bytes of data", file, n, dataSize)
		}
		if !bytes.Equal(readFile(t, file), content) {
			t.Errorf("%s differs from the original", file)
		}
	}
}

func TestPartsOfAVolumeHaveAnySizeAndOffset(t *testing.T) {
	t.Parallel()
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=8MiB")
	for _, piece := range []struct{ offset, size int }{
		{0, 8 << 20}, {12345, 1}, {4096, 5000}, {8<<20 - 777, 777}, {100, 3<<20 + 17}, {0, 0},
	} {
		original, content := randomFile(t, c.dir, piece.size)
		copied := filepath.Join(c.dir, "copy")
		offset, length := strconv.Itoa(piece.offset), strconv.Itoa(piece.size)
		c.mustRun("put", original, "--offset", offset, "--allow-empty")
		c.mustRun("get", copied, "--offset", offset, "--length", length)
		if !bytes.Equal(readFile(t, copied), content) {
			t.Errorf("%d bytes at %d come back changed", piece.size, piece.offset)
		}
		if !bytes.Equal(readFile(t, volume)[piece.offset:][:piece.size], content) {
			t.Errorf("%d bytes at %d are not what the volume holds", piece.size, piece.offset)
		}
	}
}

func TestAFileLargerThanTheVolumeIsRejectedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=1MiB")
	original, _ := randomFile(t, c.dir, 1<<20+1)
	if code := c.initiator("put", original).Wait(); code == 0 {
		t.Error("put of a file larger than the volume succeeded")
	}
	if !bytes.Equal(readFile(t, volume), make([]byte, 1<<20)) {
		t.Error("something was written")
	}
}

func TestAKilledTransferGoesOn(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=32MiB")
	original, content := randomFile(t, c.dir, size)
	for _, way := range []struct{ command, file, operation string }{
		{"put", original, "write"}, {"get", filepath.Join(c.dir, "copy"), "read"},
	} {
		file := way.file
		command := []string{way.command, file, "--resume", "--buffer-size", "64KiB",
			"--queue-depth", "2"}
		// It is slow, and stops in the middle.
		first := c.initiator(append(command, "--allow-faults", "--fault",
			"volume:"+way.operation+":after=200:freeze")...)
		var state struct {
			Done uint64 `json:"done_bytes"`
		}
		testkit.Eventually(t, "a checkpoint says how much is done", func() bool {
			text, err := os.ReadFile(file + ".resume")
			return err == nil && json.Unmarshal(text, &state) == nil && state.Done > size/4
		})
		first.Signal(syscall.SIGKILL)
		first.Wait()
		rest := c.initiator(append(command, "-o", "json")...)
		if code := rest.Wait(); code != 0 {
			t.Fatalf("%s ended with %d", way.command, code)
		}
		var report struct {
			Resumed uint64 `json:"resumed_bytes"`
			Bytes   uint64 `json:"bytes"`
		}
		if err := json.Unmarshal([]byte(rest.Stdout.String()), &report); err != nil ||
			report.Resumed < state.Done || report.Resumed+report.Bytes != size {
			t.Errorf("%s: %+v, error %v", way.command, report, err)
		}
		if !bytes.Equal(readFile(t, volume), content) || !bytes.Equal(readFile(t, file), content) {
			t.Errorf("%s: file and volume differ", way.command)
		}
		if _, err := os.Stat(file + ".resume"); err == nil {
			t.Errorf("%s: the state is still there", way.command)
		}
	}
}
