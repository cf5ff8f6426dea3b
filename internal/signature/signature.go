// SPDX-License-Identifier: Apache-2.0

// Package signature recognizes what a block device is used for: file systems, partition tables, and
// members of arrays, volume groups, and encrypted containers. It knows what is common on Linux
// hosts, not everything that blkid does.
package signature

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// headSize is how much of the beginning of a device Find reads, and tailSize of the end, in bytes.
const (
	headSize = 256 << 10
	tailSize = 128 << 10
)

// A magic number at a fixed offset from the beginning of the device.
type magic struct {
	what   string
	offset int
	value  string
}

var magics = []magic{
	{"LUKS encrypted data", 0, "LUKS\xba\xbe"},
	{"an XFS file system", 0, "XFSB"},
	{"a Btrfs file system", 0x10040, "_BHRfS_M"},
	{"an ext2, ext3 or ext4 file system", 0x438, "\x53\xef"},
	{"an F2FS file system", 0x400, "\x10\x20\xf5\xf2"},
	{"a bcachefs or bcache device", 0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca"},
	{"a bcachefs file system", 0x1018, "\xc6\x85\x73\xf6\x66\xce\x90\xa9"},
	{"a GFS2 file system", 0x10000, "\x01\x16\x19\x70"},
	{"an OCFS2 file system", 0x2000, "OCFSV2"},
	{"an EROFS file system", 0x400, "\xe2\xe1\xf5\xe0"},
	{"a SquashFS file system", 0, "hsqs"},
	{"an ISO 9660 file system", 0x8001, "CD001"},
	{"a UDF file system", 0x8001, "BEA01"},
	{"an NTFS file system", 3, "NTFS    "},
	{"an exFAT file system", 3, "EXFAT   "},
	{"a FAT file system", 0x36, "FAT1"},
	{"a FAT file system", 0x52, "FAT32   "},
	{"an LVM physical volume", 0, "LABELONE"},
	{"an LVM physical volume", 0x200, "LABELONE"},
	{"an LVM physical volume", 0x400, "LABELONE"},
	{"an LVM physical volume", 0x600, "LABELONE"},
	{"a member of a Linux RAID", 0, "\xfc\x4e\x2b\xa9"},
	{"a member of a Linux RAID", 0x1000, "\xfc\x4e\x2b\xa9"},
	{"a Ceph BlueStore device", 0, "bluestore block device"},
	{"swap space", 1<<12 - 10, "SWAPSPACE2"},
	{"swap space", 1<<13 - 10, "SWAPSPACE2"},
	{"swap space", 1<<14 - 10, "SWAPSPACE2"},
	{"swap space", 1<<16 - 10, "SWAPSPACE2"},
	{"a GPT partition table", 512, "EFI PART"},
	{"a GPT partition table", 4096, "EFI PART"},
	{"a qcow2 image", 0, "QFI\xfb"},
}

// Find returns what a device of the given size in bytes is used for, for instance "an XFS file
// system", or "" if it recognizes nothing. It reads 384 KiB at most.
func Find(device io.ReaderAt, size uint64) (string, error) {
	head, err := read(device, 0, min(size, headSize))
	if err != nil {
		return "", err
	}
	for _, m := range magics {
		if m.offset < len(head) && bytes.HasPrefix(head[m.offset:], []byte(m.value)) {
			return m.what, nil
		}
	}
	switch {
	case hasZFSUberblock(head):
		return "a ZFS file system", nil
	case hasPartitions(head):
		return "an MBR partition table", nil
	}
	start := size - min(size, tailSize)
	tail, err := read(device, start, size-start)
	if err != nil {
		return "", err
	}
	return findInTail(tail, size), nil
}

func read(device io.ReaderAt, offset, length uint64) ([]byte, error) {
	b := make([]byte, length)
	n, err := device.ReadAt(b, int64(offset))
	if n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %d bytes at offset %d: %w", length, offset, err)
	}
	return b, nil
}

// hasZFSUberblock looks at the uberblocks of the first label, of which only some are in use. They
// have the byte order of the host that wrote them.
func hasZFSUberblock(head []byte) bool {
	const firstUberblock, uberblockSize, uberblockMagic = 128 << 10, 1 << 10, 0x00bab10c
	for at := firstUberblock; at+8 <= len(head); at += uberblockSize {
		if binary.LittleEndian.Uint64(head[at:]) == uberblockMagic ||
			binary.BigEndian.Uint64(head[at:]) == uberblockMagic {
			return true
		}
	}
	return false
}

// hasPartitions reports whether the first sector is a master boot record with a partition. Boot
// sectors of file systems end with the same two bytes, so the entries have to make sense as well.
func hasPartitions(head []byte) bool {
	const table, entrySize, entries = 446, 16, 4
	if len(head) < 512 || head[510] != 0x55 || head[511] != 0xaa {
		return false
	}
	used := 0
	for i := range entries {
		entry := head[table+i*entrySize:][:entrySize]
		boot, kind := entry[0], entry[4]
		first := binary.LittleEndian.Uint32(entry[8:])
		sectors := binary.LittleEndian.Uint32(entry[12:])
		switch {
		case boot != 0 && boot != 0x80:
			return false
		case kind != 0 && first > 0 && sectors > 0:
			used++
		}
	}
	return used > 0
}

// findInTail recognizes what keeps its superblock at the end of a device.
func findInTail(tail []byte, size uint64) string {
	at := func(offset uint64, value string) bool {
		start := size - uint64(len(tail))
		return offset >= start && bytes.HasPrefix(tail[offset-start:], []byte(value))
	}
	const raid = "\xfc\x4e\x2b\xa9"
	switch {
	case size >= 4096 && (at(size-512, "EFI PART") || at(size-4096, "EFI PART")):
		return "the backup of a GPT partition table"
	case size >= 128<<10 && at(size&^(64<<10-1)-64<<10, raid), // metadata 0.90
		size >= 16<<10 && at((size-8<<10)&^(4<<10-1), raid): // metadata 1.0
		return "a member of a Linux RAID"
	}
	return ""
}
