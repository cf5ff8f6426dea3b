package volume_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/volume"
)

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

func TestDiskIsIdentifiedByWhatItsHardwareSays(t *testing.T) {
	root := sysfs(t, map[string]string{
		"nvme/wwid": "eui.01", "nvme/serial": "S1", "nvme/p1/partition": "1", "nvme/p1/start": "2048",
		"nvme/p2/partition": "2", "nvme/p2/start": "4096", "scsi/device/serial": "S2", "dm/dm/uuid": "LVM-1", "virtual/serial": "",
	})
	seen := map[string]string{}
	for _, device := range []string{"nvme", "nvme/p1", "nvme/p2", "scsi", "dm"} {
		identity := volume.HardwareIdentity(t, filepath.Join(root, device))
		if identity == "" || seen[identity] != "" {
			t.Errorf("%s is identified by %q, and so is %q", device, identity, seen[identity])
		}
		seen[identity] = device
	}
	if got := volume.HardwareIdentity(t, filepath.Join(root, "nvme/p1")); !strings.Contains(got, "eui.01") {
		t.Errorf("a partition is identified by %q, without its disk", got)
	}
	if got := volume.HardwareIdentity(t, filepath.Join(root, "virtual")); got != "" {
		t.Errorf("a disk without a serial number is identified by %q", got)
	}
}
