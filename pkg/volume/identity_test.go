package volume_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
