// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// keeper is a service manager's file descriptor store.
type keeper struct {
	t     *testing.T
	files map[string]*os.File
}

func newKeeper(t *testing.T) *keeper {
	k := &keeper{t, make(map[string]*os.File)}
	t.Cleanup(k.forgetAll)
	return k
}

func (k *keeper) Take(prefix string) (*os.File, string) {
	for name, file := range k.files {
		if strings.HasPrefix(name, prefix) {
			delete(k.files, name)
			return file, name
		}
	}
	return nil, ""
}

func (k *keeper) Keep(file *os.File, name string) { k.files[name] = file }

func (k *keeper) Forget(name string) {
	if file := k.files[name]; file != nil {
		_ = file.Close()
		delete(k.files, name)
	}
}

func (k *keeper) forgetAll() {
	for name := range k.files {
		k.Forget(name)
	}
}

// process opens a volume and fills it. It ends as if it was killed: nothing is flushed. It returns
// the write verifier.
func (k *keeper) process(path string, bytes uint64) uint64 {
	k.t.Helper()
	spec := fileSpec(path, bytes)
	spec.Keeper = k
	v := open(k.t, spec)
	volume.SetSync(v, func() error { return nil })
	queue := volumetest.NewQueue(k.t, v, 1)
	do(k.t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: bytes,
		Buffer: make([]byte, bytes)})
	if err := queue.Close(); err != nil {
		k.t.Fatal(err)
	}
	if err := v.Close(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
	return v.Info().WriteVerifier
}

func TestTheWriteVerifierOutlivesAKilledProcess(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "volume"), newKeeper(t)
	first := k.process(path, 1<<20)
	for range 3 {
		if again := k.process(path, 1<<20); again != first || first == 0 {
			t.Fatalf("write verifier %#x after %#x", again, first)
		}
	}
	if len(k.files) != 1 {
		t.Errorf("%d files are kept", len(k.files))
	}
	k.forgetAll()
	if again := k.process(path, 1<<20); again == first {
		t.Error("the write verifier is the same although nothing proves that nothing was lost")
	}
}

func TestWithoutKeeperEachOpeningHasItsWriteVerifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volume")
	seen := make(map[uint64]bool)
	for range 3 {
		v := open(t, fileSpec(path, 1<<20))
		seen[v.Info().WriteVerifier] = true
		if err := v.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 3 || seen[0] {
		t.Errorf("write verifiers: %v", seen)
	}
}

func TestAFailedFlushEndsTheWriteVerifier(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "volume"), newKeeper(t)
	first := k.process(path, 1<<20)
	spec := fileSpec(path, 1<<20)
	spec.Keeper = k
	v := open(t, spec)
	volume.SetSync(v, func() error { return unix.EIO })
	queue := volumetest.NewQueue(t, v, 1)
	r := volume.Request{Operation: iomsg.OpFlush}
	volumetest.Do(t, queue, &r)
	if !errors.Is(r.Err, unix.EIO) || len(k.files) != 0 {
		t.Errorf("flush: %v; %d files are kept", r.Err, len(k.files))
	}
	closeFailed(t, v, queue, unix.EIO)
	if again := k.process(path, 1<<20); again == first {
		t.Error("the write verifier is the same")
	}
}

func TestTheWitnessOfAnotherFileProvesNothing(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), "volume"), newKeeper(t)
	first := k.process(path, 1<<20)
	for name := range k.files {
		k.Forget(name)
		other, err := os.Create(filepath.Join(t.TempDir(), "other"))
		if err != nil {
			t.Fatal(err)
		}
		k.files[name] = other
		break
	}
	if again := k.process(path, 1<<20); again == first {
		t.Error("the write verifier is the same")
	}
}

// A page that the kernel could not write back after the process was killed is lost, and a process
// that opens the file later does not hear of it if another program has flushed the file meanwhile.
func TestALossBetweenTwoProcessesEndsTheWriteVerifier(t *testing.T) {
	// The device has less space than it says: its writes fail in the end.
	small, directory := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	device := loopDeviceOn(t, filepath.Join(small, "disk"), 32<<20)
	mkfsFlags["ext2"] = "-F"
	newFileSystem(t, "ext2", device)
	mountDevice(t, "ext2", device, directory)
	path, k := filepath.Join(directory, "volume"), newKeeper(t)
	const fits, exceeds = 1 << 20, 16 << 20
	other := filepath.Join(directory, "other")
	first := k.process(other, fits)
	if again := k.process(other, fits); again != first {
		t.Fatal("the write verifier has changed although everything was written")
	}
	first = k.process(path, exceeds)
	for i, fails := range []bool{true, false} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(file.Sync(), file.Close()); (err != nil) != fails {
			t.Fatalf("flush %d by another program: %v", i+1, err)
		}
	}
	if again := k.process(path, exceeds); again == first {
		t.Error("the write verifier is the same although writes are lost")
	}
	k.forgetAll() // so that the file system can be unmounted
}
