// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// Fifty targets start at the same moment with the same volume. One serves it; the others neither
// replace its file nor serve another one, and leave nothing behind.
func TestOneOfManyConcurrentStartsCreatesTheFile(t *testing.T) {
	for round := range 20 {
		directory := t.TempDir()
		path := filepath.Join(directory, "volume")
		if round%2 == 1 { // as a crash of an earlier version during creation left it
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		winner := startMany(t, path)
		created := inode(t, path)
		content := bytes.Repeat([]byte{byte(round + 1)}, 4096)
		write(t, winner, content)
		if again := startMany(t, path); again != nil {
			t.Error("a second volume serves the same path")
		}
		if now := inode(t, path); now != created {
			t.Errorf("inode %d replaced inode %d, which is being served", now, created)
		}
		volumetest.CloseVolume(t, winner)
		got, err := os.ReadFile(path)
		if err != nil || len(got) != 1<<20 || !bytes.Equal(got[:4096], content) {
			t.Errorf("the file has %d bytes or other content, error %v", len(got), err)
		}
		if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
			t.Errorf("the directory holds %v, error %v", entries, err)
		}
		if t.Failed() {
			return
		}
	}
}

// startMany opens a volume on path fifty times at once, and returns the only one that succeeded, or
// nil. All others must find the file in use.
func startMany(t *testing.T, path string) volume.Volume {
	t.Helper()
	const starters = 50
	var (
		all     sync.WaitGroup
		begin   = make(chan struct{})
		volumes [starters]volume.Volume
		errs    [starters]error
	)
	for i := range starters {
		all.Go(func() {
			<-begin
			volumes[i], errs[i] = volume.Open(fileSpec(path, 1<<20))
		})
	}
	close(begin)
	all.Wait()
	var winner volume.Volume
	for i, v := range volumes {
		switch {
		case v == nil && !errors.Is(errs[i], status.InUse):
			t.Errorf("a losing start failed with %v", errs[i])
		case v != nil && winner != nil:
			t.Error("two volumes serve the same path")
			volumetest.CloseVolume(t, v)
		case v != nil:
			winner = v
		}
	}
	return winner
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

func write(t *testing.T, v volume.Volume, content []byte) {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: uint64(len(content)),
		Buffer: content, ForceUnitAccess: true})
}

func TestFileThatCannotBeCreatedLeavesNothingBehind(t *testing.T) {
	full := mountTmpfs(t, "nr_inodes=1")
	readOnly := mountTmpfs(t, "size=1m,ro")
	disk := t.TempDir()
	for _, c := range []struct {
		name      string
		directory string
		size      uint64
		want      error
		hint      string
	}{
		{"full file system", full, 1 << 20, unix.ENOSPC, "free space or inodes"},
		{"read-only file system", readOnly, 1 << 20, unix.EROFS, "ReadWritePaths"},
		{"impossible size", disk, math.MaxInt64 &^ 4095, unix.EFBIG, "allows no file of"},
		{"no directory", filepath.Join(disk, "none"), 1 << 20, unix.ENOENT,
			"create the directory first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := volume.Open(fileSpec(filepath.Join(c.directory, "volume"), c.size))
			if v != nil {
				volumetest.CloseVolume(t, v)
				t.Skip("this file system can do it")
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.hint)
			}
			entries, _ := os.ReadDir(c.directory)
			if len(entries) > 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

// mountTmpfs mounts a new file system with the given options.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, options); err != nil {
		t.Skipf("mount a tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	return directory
}

func TestSymbolicLinksAreFollowedToFilesOnly(t *testing.T) {
	directory := t.TempDir()
	path := func(name string) string { return filepath.Join(directory, name) }
	if err := errors.Join(unix.Mkfifo(path("fifo"), 0o600), os.Symlink("fifo", path("to fifo")),
		os.Symlink("none", path("dangling")), os.Symlink("loop", path("loop")),
		os.Symlink("file", path("to file"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"to fifo":  "neither a regular file nor a block device",
		"dangling": "is a symbolic link to \"none\", which does not exist",
		"loop":     "too many levels of symbolic links",
	} {
		_, err := volume.Open(fileSpec(path(name), 1<<20))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	if uuid := uuidOf(t, path("file")); uuid != uuidOf(t, path("to file")) {
		t.Error("a link leads to another volume than its destination")
	}
}
