// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// mountMemory mounts a file system of a size in memory, and unmounts it at the end of the test.
func mountMemory(t testing.TB, path, size string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("fleet", path, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("mount a tmpfs on %s (run the test as root): %v", path, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
}

// fill writes a file until its file system is full, and returns its path.
func fill(t testing.TB, directory string) (path string) {
	t.Helper()
	path = filepath.Join(directory, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return path
}
