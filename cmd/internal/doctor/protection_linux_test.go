// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/rbd"
)

func protectionOf(t *testing.T, m *machine) string {
	t.Helper()
	findings := m.protection()
	if len(findings) != 1 || findings[0].Verdict != OK {
		t.Fatalf("findings %+v, want one that is ok", findings)
	}
	return findings[0].Detail
}

func TestProtectionSaysWhoReachesClientsMemory(t *testing.T) {
	const direct = "clients' memory is open to the target for the time of a session (isolation direct)"
	m := machineWith(t, nil)
	m.Channels = []string{"a"}
	m.Servers = []Server{{Channel: 0}}
	want := "; " + direct + ", and clients are root and the relay's user"
	if got := protectionOf(t, m); !strings.HasSuffix(got, want) {
		t.Errorf("one channel: %q, want %q at the end", got, want)
	}
	m.Channels = []string{"a", "b", "c", "d", "e", "f", "g"}
	m.Servers = []Server{{Channel: 0}, {Channel: 1, AdmitsOthers: true},
		{Channel: 2, AdmitsOthers: true, AdmitsAll: true}, {Channel: 3}, {Channel: 4}, {Channel: 5},
		{Channel: 6}}
	m.DMADevices = []StagedDevice{{Channel: 1}}
	got := protectionOf(t, m)
	for _, want := range []string{
		"channels a, d, e, and 2 more: " + direct + ", and clients are root and the relay's user",
		"channel b: clients' memory is open only to the relay, which copies the data (isolation " +
			"staged), and clients are root, the relay's user, and those of access.users",
		"channel c: " + direct + ", and clients are all users",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	m.Doca, m.DMADevices = true, nil
	want = "channels a, b, c, and 4 more: " + direct + ", and clients are whoever has the host's function"
	if got := protectionOf(t, m); !strings.HasSuffix(got, want) {
		t.Errorf("doca: %q, want %q at the end", got, want)
	}
}

func TestProtectionSaysWhichVolumesAreEncrypted(t *testing.T) {
	m := machineWith(t, nil)
	directory := t.TempDir()
	var stat unix.Stat_t
	if err := unix.Stat(directory, &stat); err != nil {
		t.Fatal(err)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	file := func(name string) volume.Spec {
		return volume.Spec{Name: name, Backend: volume.FileBackend{
			Path: filepath.Join(directory, name), Size: 1 << 20}}
	}
	m.Volumes = []volume.Spec{
		{Name: "ram", Backend: volume.MemoryBackend{Size: 1}},
		file("disk"), {Name: "again", Backend: volume.Alias{Of: "disk"}},
		{Name: "secret", Backend: rbd.Backend{Pool: "p", Image: "i", PassphraseFile: "/x"}},
		{Name: "open", Backend: rbd.Backend{Pool: "p", Image: "j"}},
		file("2"), file("3"), file("4"),
	}
	const plain = "not encrypted by this target or a dm-crypt under it"
	device := filepath.Join(m.Sysfs, "dev", "block", number)
	for _, c := range []struct {
		name  string
		files map[string]string // below the device in sysfs
		want  string
	}{
		{"nothing", nil, "stored data of volume secret: encrypted by RBD (LUKS); " +
			"stored data of volumes disk, open, 2, and 2 more: " + plain},
		{"a mapping", map[string]string{"dm/uuid": "CRYPT-LUKS2-0123-disk"},
			"stored data of volume secret: encrypted by RBD (LUKS); stored data of volumes disk, 2, " +
				"3, and 1 more: encrypted by dm-crypt; stored data of volume open: " + plain},
		{"a mapping that only checks", map[string]string{"dm/uuid": "CRYPT-INTEGRITY-0-disk"},
			"volumes disk, open, 2, and 2 more: " + plain},
		{"a logical volume on mappings", map[string]string{"dm/uuid": "LVM-1",
			"slaves/dm-1/dm/uuid": "CRYPT-LUKS1-1", "slaves/dm-2/dm/uuid": "CRYPT-PLAIN-2"},
			"volumes disk, 2, 3, and 1 more: encrypted by dm-crypt; stored data of volume open: " +
				plain},
		{"one of two disks in plain text", map[string]string{"dm/uuid": "LVM-1",
			"slaves/dm-1/dm/uuid": "CRYPT-LUKS1-1", "slaves/sda/size": "1"},
			"volumes disk, open, 2, and 2 more: " + plain},
	} {
		if err := os.RemoveAll(device); err != nil {
			t.Fatal(err)
		}
		for path, content := range c.files {
			sysfstest.Write(t, m.Sysfs, filepath.Join("dev", "block", number, path), content)
		}
		if got := protectionOf(t, m); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q at the end", c.name, got, c.want)
		}
	}
}
