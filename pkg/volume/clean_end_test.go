// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// openProven opens a volume as a process does that has its proofs of clean ends in a directory.
func openProven(t *testing.T, path, directory string) volume.Volume {
	t.Helper()
	ends, err := volume.NewCleanEnds(directory)
	if err != nil {
		t.Fatal(err)
	}
	spec := fileSpec(path, 0)
	spec.CleanEnds = ends
	return open(t, spec)
}

// writeBlock changes a volume, and flushes nothing.
func writeBlock(t *testing.T, v volume.Volume) {
	t.Helper()
	queue := volumetest.NewQueue(t, v, 1)
	defer volumetest.CloseQueue(t, queue)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 4096,
		Buffer: make([]byte, 4096)})
}

// storages returns paths of new files, and of a device, on storage of different kinds.
func storages(*testing.T) map[string]func(t *testing.T) string {
	newFile := func(t *testing.T, directory string) string {
		path := filepath.Join(directory, "volume")
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	on := func(kind string) func(t *testing.T) string {
		return func(t *testing.T) string {
			device, directory := loopDevice(t, 512<<20), t.TempDir()
			newFileSystem(t, kind, device)
			mountDevice(t, kind, device, directory)
			return newFile(t, directory)
		}
	}
	mkfsFlags["ext4"], mkfsFlags["xfs"] = "-F", "-f"
	return map[string]func(t *testing.T) string{
		"file": func(t *testing.T) string { return newFile(t, t.TempDir()) },
		"tmpfs": func(t *testing.T) string {
			directory := t.TempDir()
			if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size=8m"); err != nil {
				t.Skipf("mount tmpfs: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(directory, 0) })
			return newFile(t, directory)
		},
		"ext4":   on("ext4"),
		"xfs":    on("xfs"),
		"device": func(t *testing.T) string { return loopDevice(t, 1<<20) },
	}
}

func TestACleanEndKeepsTheWriteVerifier(t *testing.T) {
	for name, create := range storages(t) {
		t.Run(name, func(t *testing.T) {
			path, directory := create(t), t.TempDir()
			v := openProven(t, path, directory)
			first := v.Info().WriteVerifier
			for range 3 {
				writeBlock(t, v)
				volumetest.CloseVolume(t, v)
				v = openProven(t, path, directory)
				if again := v.Info().WriteVerifier; again != first || first == 0 {
					t.Fatalf("write verifier %#x after %#x", again, first)
				}
			}
			volumetest.CloseVolume(t, v)
		})
	}
}

// A process that is killed leaves the directory as it is at that moment.
func TestOnlyACleanEndKeepsTheWriteVerifier(t *testing.T) {
	for name, create := range storages(t) {
		t.Run(name, func(t *testing.T) {
			path, directory := create(t), t.TempDir()
			v := openProven(t, path, directory)
			first := v.Info().WriteVerifier
			volumetest.CloseVolume(t, v)

			v = openProven(t, path, directory)
			unchanged, changed := t.TempDir(), t.TempDir()
			copyDirectory(t, directory, unchanged)
			writeBlock(t, v)
			copyDirectory(t, directory, changed)
			if left, err := os.ReadDir(changed); err != nil || len(left) > 0 {
				t.Fatalf("while the volume changes, there is %v, %v", left, err)
			}
			volumetest.CloseVolume(t, v)

			v = openProven(t, path, changed)
			if v.Info().WriteVerifier == first {
				t.Error("the write verifier is the same although the volume was changed")
			}
			volumetest.CloseVolume(t, v)
		})
	}
}

func TestAProcessThatHasChangedNothingLosesNothing(t *testing.T) {
	path, directory, killed := storages(t)["file"](t), t.TempDir(), t.TempDir()
	v := openProven(t, path, directory)
	first := v.Info().WriteVerifier
	writeBlock(t, v)
	volumetest.CloseVolume(t, v)
	v = openProven(t, path, directory)
	copyDirectory(t, directory, killed)
	volumetest.CloseVolume(t, v)
	for _, from := range []string{killed, directory} {
		v = openProven(t, path, from)
		if again := v.Info().WriteVerifier; again != first {
			t.Errorf("write verifier %#x after %#x", again, first)
		}
		volumetest.CloseVolume(t, v)
	}
}

func copyDirectory(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func TestContentThatHasChangedSinceACleanEndHasAnotherWriteVerifier(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string){
		"written, with the old times": func(t *testing.T, path string) {
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			// The clock of change times is coarse.
			testkit.Eventually(t, "the change has a time of its own", func() bool {
				if err := errors.Join(os.WriteFile(path, make([]byte, 1<<20), 0o600),
					os.Chtimes(path, time.Time{}, before.ModTime())); err != nil {
					t.Fatal(err)
				}
				var stat unix.Stat_t
				return unix.Stat(path, &stat) == nil &&
					stat.Ctim.Nano() != before.Sys().(*syscall.Stat_t).Ctim.Nano()
			})
		},
		"extended": func(t *testing.T, path string) {
			if err := os.Truncate(path, 2<<20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, directory := storages(t)["file"](t), t.TempDir()
			v := openProven(t, path, directory)
			first := v.Info().WriteVerifier
			volumetest.CloseVolume(t, v)
			change(t, path)
			v = openProven(t, path, directory)
			second := v.Info().WriteVerifier
			volumetest.CloseVolume(t, v)
			v = openProven(t, path, directory)
			third := v.Info().WriteVerifier
			volumetest.CloseVolume(t, v)
			if second == first || third != second {
				t.Errorf("write verifiers %#x, %#x, and %#x", first, second, third)
			}
		})
	}
}

func TestADeviceThatWasAttachedAgainHasAnotherWriteVerifier(t *testing.T) {
	disk, directory := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	seen := map[uint64]bool{}
	device := loopDeviceOn(t, disk, 1<<20)
	for range 2 {
		v := openProven(t, device, directory)
		seen[v.Info().WriteVerifier] = true
		volumetest.CloseVolume(t, v)
		device = attach(t, disk)
	}
	if len(seen) != 2 {
		t.Error("the write verifier is the same")
	}
}

func TestAFailedFlushIsNoCleanEnd(t *testing.T) {
	path, directory := storages(t)["file"](t), t.TempDir()
	v := openProven(t, path, directory)
	first := v.Info().WriteVerifier
	volumetest.CloseVolume(t, v)
	v = openProven(t, path, directory)
	writeBlock(t, v)
	volume.SetSync(v, func() error { return unix.EIO })
	if err := v.Close(t.Context()); !errors.Is(err, unix.EIO) {
		t.Errorf("Close returned %v", err)
	}
	v = openProven(t, path, directory)
	if v.Info().WriteVerifier == first {
		t.Error("the write verifier is the same although a flush has failed")
	}
	volumetest.CloseVolume(t, v)
}

// While a proof cannot be removed, nothing may change: it would hide a loss.
func TestAVolumeDoesNotChangeWhileItsProofStands(t *testing.T) {
	path, directory := storages(t)["file"](t), t.TempDir()
	volumetest.CloseVolume(t, openProven(t, path, directory))
	v := openProven(t, path, directory)
	queue := volumetest.NewQueue(t, v, 1)
	proofs, err := filepath.Glob(filepath.Join(directory, "*"))
	if err != nil || len(proofs) != 1 {
		t.Fatalf("%v, %v", proofs, err)
	}
	obstacle := filepath.Join(proofs[0], "obstacle") // a directory with content stays
	if err := errors.Join(os.Remove(proofs[0]), os.MkdirAll(obstacle, 0o700)); err != nil {
		t.Fatal(err)
	}
	content := []byte(strings.Repeat("new ", 1024))
	write := volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: content}
	volumetest.Do(t, queue, &write)
	if file, err := os.ReadFile(path); !errors.Is(write.Err, status.IOFailed) ||
		!strings.Contains(write.Err.Error(), "state.directory") || err != nil || file[0] != 0 {
		t.Errorf("the write returned %v; the file begins with %q, %v", write.Err, file[:4], err)
	}
	if err := v.Resize(2<<20, false); !errors.Is(err, status.IOFailed) {
		t.Errorf("Resize returned %v", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	do(t, queue, &write)
	volumetest.CloseQueue(t, queue)
	volumetest.CloseVolume(t, v)
}

func TestWithoutADirectoryProofsLastAsLongAsTheProcess(t *testing.T) {
	path := storages(t)["file"](t)
	ends, err := volume.NewCleanEnds("")
	if err != nil {
		t.Fatal(err)
	}
	spec := fileSpec(path, 0)
	spec.CleanEnds = ends
	v := open(t, spec)
	first := v.Info().WriteVerifier
	writeBlock(t, v)
	volumetest.CloseVolume(t, v)
	v = open(t, spec)
	if again := v.Info().WriteVerifier; again != first {
		t.Errorf("write verifier %#x after %#x", again, first)
	}
	volumetest.CloseVolume(t, v)
	v = openProven(t, path, "")
	if v.Info().WriteVerifier == first {
		t.Error("another process has the same write verifier")
	}
	volumetest.CloseVolume(t, v)
}

func TestProofsOfVolumesThatNeverComeBackAreBounded(t *testing.T) {
	path, directory := storages(t)["file"](t), t.TempDir()
	for i := range volume.MaxCleanEnds + 10 {
		old := filepath.Join(directory, fmt.Sprintf("volume-%d.json", i))
		if err := os.WriteFile(old, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v := openProven(t, path, directory)
	first := v.Info().WriteVerifier
	volumetest.CloseVolume(t, v)
	left, err := os.ReadDir(directory)
	if err != nil || len(left) != volume.MaxCleanEnds {
		t.Errorf("%d proofs are left, %v", len(left), err)
	}
	v = openProven(t, path, directory)
	if v.Info().WriteVerifier != first {
		t.Error("the newest proof is gone")
	}
	volumetest.CloseVolume(t, v)
}
