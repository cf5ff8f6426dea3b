// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// sysfs creates a directory with the given files, as in sysfs.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDiskIsIdentifiedByItsHardware(t *testing.T) {
	root := sysfs(t, map[string]string{
		"nvme/wwid": "eui.01", "nvme/serial": "S1",
		"nvme/p1/partition": "1", "nvme/p1/start": "2048",
		"nvme/p2/partition": "2", "nvme/p2/start": "4096",
		"scsi/device/serial": "S2", "dm/dm/uuid": "LVM-1", "virtual/serial": "",
	})
	seen := map[string]string{}
	for _, device := range []string{"nvme", "nvme/p1", "nvme/p2", "scsi", "dm"} {
		identity := volume.HardwareIdentity(t, filepath.Join(root, device))
		if identity == "" || seen[identity] != "" {
			t.Errorf("%s has the identity %q, also used by %q", device, identity, seen[identity])
		}
		seen[identity] = device
	}
	got := volume.HardwareIdentity(t, filepath.Join(root, "nvme/p1"))
	if !strings.Contains(got, "eui.01") {
		t.Errorf("the identity %q of a partition does not include its disk", got)
	}
	if got := volume.HardwareIdentity(t, filepath.Join(root, "virtual")); got != "" {
		t.Errorf("a disk without a serial number has the identity %q", got)
	}
}

func TestBlockDeviceHasItsOwnLastingUUID(t *testing.T) {
	device := loopDevice(t, 1<<20)
	var uuids []volume.UUID
	for range 2 {
		v := open(t, fileSpec(device, 0))
		uuids = append(uuids, v.Info().UUID)
		if _, err := volume.Open(fileSpec(device, 0)); !errors.Is(err, status.InUse) {
			t.Errorf("opening the device twice returned %v", err)
		}
		volumetest.CloseVolume(t, v)
	}
	other := open(t, fileSpec(loopDevice(t, 1<<20), 0))
	defer volumetest.CloseVolume(t, other)
	if uuids[0] != uuids[1] || uuids[0] == other.Info().UUID {
		t.Errorf("UUIDs are %v, that of another device is %v", uuids, other.Info().UUID)
	}
}

// The number of a device depends on the order in which devices are found.
func TestTheUUIDOfAFileDoesNotDependOnTheNumberOfItsDevice(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "disk")
			devices := [2]string{loopDeviceOn(t, image, 512<<20), attach(t, image)}
			newFileSystem(t, kind, devices[0])
			var uuids [3]volume.UUID
			for i, device := range []string{devices[0], devices[1], devices[1]} {
				directory := t.TempDir()
				unmount := mountDevice(t, kind, device, directory)
				path := filepath.Join(directory, "volume")
				if i == 2 { // a copy in its place
					if output, err := exec.Command("sh", "-c", "cd $0 && cp -a volume copy && "+
						"mv copy volume", directory).CombinedOutput(); err != nil {
						t.Fatalf("copy: %v: %s", err, output)
					}
				}
				v := open(t, fileSpec(path, mib))
				uuids[i] = v.Info().UUID
				volumetest.CloseVolume(t, v)
				unmount()
			}
			if uuids[0] != uuids[1] || uuids[1] == uuids[2] {
				t.Errorf("the UUIDs of a file at two devices, and of a copy, are %v", uuids)
			}
		})
	}
}

func TestAFileSystemIsFoundByTheUUIDOfItsDevice(t *testing.T) {
	device, other := loopDevice(t, 1<<20), loopDevice(t, 1<<20)
	directory := t.TempDir()
	for name, target := range map[string]string{"0815-4711": device, "broken": "/nonexistent",
		"character": "/dev/null"} {
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{device: "0815-4711", other: "", "/dev/null": ""} {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		if got := volume.DeviceUUID(directory, stat.Rdev); got != want {
			t.Errorf("the UUID of %s is %q, want %q", path, got, want)
		}
	}
}

func TestAFileIsIdentifiedByItsHandle(t *testing.T) {
	identity := func(path string) string {
		t.Helper()
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		text, err := volume.HandleIdentity(file)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the file system has no handles")
		}
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	path, moved := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := identity(path)
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if after, copied := identity(moved), identity(path); before != after || copied == before {
		t.Errorf("a file is %q, moved %q, and its copy %q", before, after, copied)
	}
}

func TestBlockSizeBelowTheSectorSizeIsRejected(t *testing.T) {
	device := loopDevice(t, 1<<20, "--sector-size", "4096")
	spec := fileSpec(device, 0)
	spec.BlockSize = 512
	if _, err := volume.Open(spec); !errors.Is(err, status.InvalidValue) ||
		!strings.Contains(err.Error(), "sectors of 4KiB") {
		t.Errorf("Open returned %v", err)
	}
}

// loopDevice attaches a new file of the given size as a block device. It skips the test where that
// is impossible.
func loopDevice(t testing.TB, bytes int64, arguments ...string) string {
	t.Helper()
	return loopDeviceOn(t, filepath.Join(t.TempDir(), "disk"), bytes, arguments...)
}

// loopDeviceOn attaches a new file of the given path and size.
func loopDeviceOn(t testing.TB, path string, bytes int64, arguments ...string) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, bytes); err != nil {
		t.Fatal(err)
	}
	return attach(t, path, arguments...)
}

// attach attaches a file that exists.
func attach(t testing.TB, path string, arguments ...string) string {
	t.Helper()
	output, err := exec.Command("losetup",
		append(arguments, "--find", "--show", path)...).CombinedOutput()
	if err != nil {
		t.Skipf("attach a loop device: %v: %s", err, output)
	}
	device := strings.TrimSpace(string(output))
	t.Cleanup(func() {
		if output, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, output)
		}
	})
	return device
}

// What keeps two programs from serving a file is the lock of that file, under whatever name.
func TestTheLockOfAFileHasANameOfItsOwn(t *testing.T) {
	directory := t.TempDir()
	sole := func(name string) string {
		t.Helper()
		v, err := volume.Open(volume.Spec{Name: "disk", BlockSize: 512,
			Backend: volume.FileBackend{Path: filepath.Join(directory, name), Size: 512}})
		if err != nil {
			t.Fatal(err)
		}
		defer volumetest.CloseVolume(t, v)
		return v.Info().Sole
	}
	one, two := sole("one"), sole("two")
	if err := os.Link(filepath.Join(directory, "one"), filepath.Join(directory, "also-one")); err != nil {
		t.Fatal(err)
	}
	if one == "" || one == two || sole("also-one") != one {
		t.Errorf("the locks are %q, %q, and %q", one, two, sole("also-one"))
	}
}
