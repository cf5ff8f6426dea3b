package e2e

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"testing"
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
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
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

func TestPartsOfAVolumeHaveAnySizeAndOffset(t *testing.T) {
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=8MiB")
	for _, piece := range []struct{ offset, size int }{
		{0, 8 << 20}, {12345, 1}, {4096, 5000}, {8<<20 - 777, 777}, {100, 3<<20 + 17}, {0, 0},
	} {
		original, content := randomFile(t, c.dir, piece.size)
		copied := filepath.Join(c.dir, "copy")
		offset, length := strconv.Itoa(piece.offset), strconv.Itoa(piece.size)
		c.mustRun("put", original, "--offset", offset)
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
	volume := filepath.Join(t.TempDir(), "volume.img")
	c := startChain(t, "disk=file:"+volume+",size=1MiB")
	original, _ := randomFile(t, c.dir, 1<<20+1)
	if code := c.initiator("put", original).wait(); code == 0 {
		t.Error("put of a file larger than the volume succeeded")
	}
	if !bytes.Equal(readFile(t, volume), make([]byte, 1<<20)) {
		t.Error("something was written")
	}
}
