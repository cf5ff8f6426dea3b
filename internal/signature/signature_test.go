// SPDX-License-Identifier: Apache-2.0

package signature_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/signature"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

const size = 384 << 20 // the least that every file system accepts

// TestFindRecognizesWhatToolsMake runs the tools that users run.
func TestFindRecognizesWhatToolsMake(t *testing.T) {
	for _, test := range []struct {
		command string // without the path of the device
		stdin   string
		want    string
	}{
		{"mkfs.ext2 -q", "", "an ext2, ext3 or ext4 file system"},
		{"mkfs.ext4 -q", "", "an ext2, ext3 or ext4 file system"},
		{"mkfs.xfs -q", "", "an XFS file system"},
		{"mkfs.btrfs -q", "", "a Btrfs file system"},
		{"mkfs.f2fs -q", "", "an F2FS file system"},
		{"mkfs.vfat -F 16", "", "a FAT file system"},
		{"mkfs.vfat -F 32", "", "a FAT file system"},
		{"mkswap -q", "", "swap space"},
		{"sfdisk -q --label gpt", ",,L\n", "a GPT partition table"},
		{"sfdisk -q --label dos", ",,L\n", "an MBR partition table"},
		{"cryptsetup -q luksFormat --pbkdf pbkdf2 --pbkdf-force-iterations 1000", "secret",
			"LUKS encrypted data"},
	} {
		t.Run(test.command, func(t *testing.T) {
			words := strings.Fields(test.command)
			testkit.RequireTools(t, words[0])
			path := filepath.Join(t.TempDir(), "device")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			tool := exec.CommandContext(t.Context(), words[0], append(words[1:], path)...)
			tool.Stdin = strings.NewReader(test.stdin)
			if output, err := tool.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", tool, err, output)
			}
			expect(t, path, test.want)
		})
	}
}

// TestFindRecognizesTheBackupOfAPartitionTable wipes the beginning of a disk, as a careless copy
// does.
func TestFindRecognizesTheBackupOfAPartitionTable(t *testing.T) {
	device := make([]byte, 1<<20)
	copy(device[len(device)-512:], "EFI PART")
	expectBytes(t, device, "the backup of a GPT partition table")
}

func TestFindRecognizesMagicNumbers(t *testing.T) {
	const deviceSize = 1<<20 + 12345
	for _, test := range []struct {
		offset int
		value  string
		want   string
	}{
		{0, "bluestore block device", "a Ceph BlueStore device"},
		{0x200, "LABELONE", "an LVM physical volume"},
		{0x1000, "\xfc\x4e\x2b\xa9", "a member of a Linux RAID"},
		{(deviceSize - 8<<10) &^ 4095, "\xfc\x4e\x2b\xa9", "a member of a Linux RAID"},
		{deviceSize&^(64<<10-1) - 64<<10, "\xfc\x4e\x2b\xa9", "a member of a Linux RAID"},
		{128<<10 + 17<<10, "\x0c\xb1\xba\x00\x00\x00\x00\x00", "a ZFS file system"},
		{128<<10 + 17<<10, "\x00\x00\x00\x00\x00\xba\xb1\x0c", "a ZFS file system"},
		{0x8001, "CD001", "an ISO 9660 file system"},
	} {
		device := make([]byte, deviceSize)
		copy(device[test.offset:], test.value)
		expectBytes(t, device, test.want)
	}
}

// TestFindTakesNoDataForASignature reads devices of every small size, and a boot sector that has no
// partitions.
func TestFindTakesNoDataForASignature(t *testing.T) {
	for size := range 20000 {
		expectBytes(t, bytes.Repeat([]byte{0xff}, size), "")
	}
	bootSector := make([]byte, 4096)
	for i := range 510 {
		bootSector[i] = byte(i)
	}
	bootSector[510], bootSector[511] = 0x55, 0xaa
	expectBytes(t, bootSector, "")
}

func TestFindReportsWhatItCannotRead(t *testing.T) {
	_, err := signature.Find(bytes.NewReader(make([]byte, 100)), 1<<20)
	if !errors.Is(err, io.EOF) {
		t.Errorf("a device that ends early: %v", err)
	}
}

func expect(t *testing.T, path, want string) {
	t.Helper()
	device, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if got, err := signature.Find(device, size); err != nil || got != want {
		t.Errorf("found %q, %v, want %q", got, err, want)
	}
}

func expectBytes(t *testing.T, device []byte, want string) {
	t.Helper()
	got, err := signature.Find(bytes.NewReader(device), uint64(len(device)))
	if err != nil || got != want {
		t.Errorf("%d bytes: found %q, %v, want %q", len(device), got, err, want)
	}
}
