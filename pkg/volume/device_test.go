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

// loopDevice attaches a new file as a block device, or skips the test.
func loopDevice(t testing.TB, arguments ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command("losetup", append(arguments, "--find", "--show", path)...).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device can be had: %v: %s", err, output)
	}
	device := strings.TrimSpace(string(output))
	t.Cleanup(func() {
		if output, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, output)
		}
	})
	return device
}

func TestBlockDeviceVolumeConforms(t *testing.T) {
	volumetest.Run(t, func(t testing.TB) volume.Volume { return open(t, fileSpec(loopDevice(t), 0)) })
}

func TestBlockDeviceIsIdentifiedUntilItIsAnother(t *testing.T) {
	device := loopDevice(t)
	var uuids []volume.UUID
	for range 2 {
		v := open(t, fileSpec(device, 0))
		uuids = append(uuids, v.Info().UUID)
		if _, err := volume.Open(fileSpec(device, 0)); !errors.Is(err, status.InUse) {
			t.Errorf("opening the device twice gave %v", err)
		}
		closeVolume(t, v)
	}
	other := open(t, fileSpec(loopDevice(t), 0))
	defer closeVolume(t, other)
	if uuids[0] != uuids[1] || uuids[0] == other.Info().UUID {
		t.Errorf("UUIDs are %v, and of another device %v", uuids, other.Info().UUID)
	}
}

func TestBlocksSmallerThanTheSectorsOfADeviceAreRefused(t *testing.T) {
	device := loopDevice(t, "--sector-size", "4096")
	spec := fileSpec(device, 0)
	spec.BlockSize = 512
	if _, err := volume.Open(spec); !errors.Is(err, status.InvalidValue) || !strings.Contains(err.Error(), "sectors of 4KiB") {
		t.Errorf("Open returned %v", err)
	}
}
