// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// mkfsFlags overwrites what is on the device.
var mkfsFlags = map[string]string{"ext4": "-F", "xfs": "-f"}

// newFileSystem makes a file system of the given type on a device.
func newFileSystem(t *testing.T, kind, device string) {
	t.Helper()
	output, err := exec.Command("mkfs."+kind, mkfsFlags[kind], "-q", device).CombinedOutput()
	if err != nil {
		t.Skipf("make a file system: %v: %s", err, output)
	}
}

// mountDevice mounts a file system until the test ends or the returned function is called.
func mountDevice(t *testing.T, kind, device, directory string) (unmount func()) {
	t.Helper()
	if err := unix.Mount(device, directory, kind, 0, ""); err != nil {
		t.Skipf("mount %s: %v", kind, err)
	}
	mounted := true
	unmount = func() {
		if !mounted {
			return
		}
		mounted = false
		if err := unix.Unmount(directory, 0); err != nil {
			t.Errorf("unmount %s: %v", kind, err)
		}
		// A mount namespace that another program has just created may still hold a copy.
		testkit.Eventually(t, "nobody else has the device", func() bool {
			fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL, 0)
			_ = unix.Close(fd)
			return err == nil
		})
	}
	t.Cleanup(unmount)
	return unmount
}

// What shutDown does with the log of the file system (EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN).
const (
	writeLog   = 1
	discardLog = 2
)

// shutDown does to a file system what it does itself after an error of its device.
func shutDown(t *testing.T, directory string, how int) {
	t.Helper()
	file, err := os.Open(directory)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = file.Close() }()
	const ioctlShutdown = 0x8004587d
	if err := unix.IoctlSetPointerInt(int(file.Fd()), ioctlShutdown, how); err != nil {
		t.Errorf("shut the file system down: %v", err)
	}
}

// A file system that shuts down gives up writes, and an fdatasync(2) that waits for them may return
// 0. No flush and no forced write may succeed then.
func TestNothingIsDurableOnAFileSystemThatShutsDown(t *testing.T) {
	for _, force := range []bool{false, true} {
		directory := t.TempDir()
		device := loopDevice(t, 16<<20)
		newFileSystem(t, "ext4", device)
		mountDevice(t, "ext4", device, directory)
		v := open(t, fileSpec(filepath.Join(directory, "volume"), 1<<20))
		volume.SetSync(v, func() error {
			shutDown(t, directory, writeLog)
			return nil
		})
		queue := volumetest.NewQueue(t, v, 1)
		r := volume.Request{Operation: iomsg.OpWrite, Length: 4096, Buffer: make([]byte, 4096),
			ForceUnitAccess: force}
		volumetest.Do(t, queue, &r)
		if !force && r.Err == nil {
			r = volume.Request{Operation: iomsg.OpFlush}
			volumetest.Do(t, queue, &r)
		}
		if !errors.Is(r.Err, unix.EIO) || status.CodeOf(r.Err) != status.IOFailed {
			t.Errorf("%v: %v", r.Operation, r.Err)
		}
		closeFailed(t, v, queue, unix.EIO)
	}
}

func TestDurableChangesSurviveTheShutdownOfTheFileSystem(t *testing.T) {
	directory, device := t.TempDir(), loopDevice(t, 16<<20)
	newFileSystem(t, "ext4", device)
	unmount := mountDevice(t, "ext4", device, directory)
	path := filepath.Join(directory, "volume")
	v := open(t, fileSpec(path, 1<<20))
	queue := volumetest.NewQueue(t, v, 1)
	old, want := bytes.Repeat([]byte{1}, 1<<20), bytes.Repeat([]byte{1}, 1<<20)
	do(t, queue, &volume.Request{Operation: iomsg.OpWrite, Length: 1 << 20, Buffer: old})
	do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	for i, r := range []volume.Request{
		{Operation: iomsg.OpWrite, ForceUnitAccess: true},
		{Operation: iomsg.OpWriteZeroes, ForceUnitAccess: true},
		{Operation: iomsg.OpTrim, ForceUnitAccess: true},
		{Operation: iomsg.OpWriteZeroes},
		{Operation: iomsg.OpWrite},
	} {
		r.Offset, r.Length, r.Buffer = uint64(i)*65536, 65536, bytes.Repeat([]byte{2}, 65536)
		do(t, queue, &r)
		changed := want[r.Offset:][:r.Length]
		if clear(changed); r.Operation == iomsg.OpWrite {
			copy(changed, r.Buffer)
		}
	}
	do(t, queue, &volume.Request{Operation: iomsg.OpFlush})
	shutDown(t, directory, discardLog)
	closeFailed(t, v, queue, unix.EIO)
	unmount()
	defer mountDevice(t, "ext4", device, directory)()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes or other content than what was durable, error %v",
			len(got), err)
	}
}
