// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fsIOCGetVersion reads an inode's generation (FS_IOC_GETVERSION, linux/fs.h), which changes when a
// file system reuses an inode.
const fsIOCGetVersion = 0x80087601

// identify derives a UUID (version 8, RFC 9562, section 5.8) from properties that stay the same for
// the lifetime of a file or device. The UUID survives renaming and restarts. Another file in the
// same place has a different UUID, even if it is a copy.
func identify(file *os.File) (UUID, error) {
	stat, err := file.Stat()
	if err != nil {
		return UUID{}, err
	}
	identity := ""
	if stat.Mode()&fs.ModeDevice != 0 {
		identity, err = deviceIdentity(file)
	} else {
		identity, err = fileIdentity(file)
	}
	if err != nil {
		return UUID{}, err
	}
	sum := sha256.Sum256([]byte("zc-relay volume\n" + identity))
	return NewUUID(sum[:]), nil
}

// fileIdentity identifies a file by file system, inode, and, if the file system has them, birth
// time and generation. A copy has another inode; only a copy of a whole file system is the same.
func fileIdentity(file *os.File) (string, error) {
	fd := int(file.Fd())
	var stat unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat)
	if err != nil {
		return "", fmt.Errorf("statx: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return "", fmt.Errorf("statfs: %w", err)
	}
	if system.Type == unix.NFS_SUPER_MAGIC {
		// What the server calls the file is the same at every client, other properties are not.
		return handleIdentity(fd)
	}
	born := ""
	if stat.Mask&unix.STATX_BTIME != 0 {
		born = fmt.Sprintf("%d.%09d", stat.Btime.Sec, stat.Btime.Nsec)
	}
	// 0 if the file system has no generations.
	generation, _ := unix.IoctlGetUint32(fd, fsIOCGetVersion)
	return fmt.Sprintf("%s inode %d born %s generation %d", fileSystemIdentity(fd, &stat, &system),
		stat.Ino, born, generation), nil
}

// fileSystemIdentity identifies a file system. Its Fsid does, unless it is just the number of the
// device, as that of XFS and F2FS, which changes with the order in which devices are found.
func fileSystemIdentity(fd int, stat *unix.Statx_t, system *unix.Statfs_t) string {
	major, minor := stat.Dev_major, stat.Dev_minor
	number := minor&0xff | major<<8 | minor&^0xff<<12 // as the kernel encodes it in an Fsid
	fsid := system.Fsid.Val
	if fsid != [2]int32{} && fsid != [2]int32{int32(number)} {
		return fmt.Sprintf("file system %x", fsid)
	}
	if uuid := fileSystemUUID(fd); len(uuid) > 0 {
		return fmt.Sprintf("file system %x", uuid)
	}
	if uuid := deviceUUID("/dev/disk/by-uuid", unix.Mkdev(major, minor)); uuid != "" {
		return "file system " + uuid
	}
	return fmt.Sprintf("device %d:%d", major, minor)
}

// deviceUUID returns the name of a block device in a directory where udev names devices by the
// UUIDs of their file systems, "" if it has none.
func deviceUUID(directory string, device uint64) string {
	names, _ := os.ReadDir(directory)
	for _, name := range names {
		var stat unix.Stat_t
		err := unix.Stat(filepath.Join(directory, name.Name()), &stat)
		if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFBLK && stat.Rdev == device {
			return name.Name()
		}
	}
	return ""
}

// handleIdentity identifies a file by the handle for which its file system would find it again.
func handleIdentity(fd int) (string, error) {
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return "", fmt.Errorf("name_to_handle_at: %w", err)
	}
	return fmt.Sprintf("handle %d %x", handle.Type(), handle.Bytes()), nil
}

// deviceIdentity identifies a block device by what its hardware or driver reports, or else by its
// number, which is valid until the next boot.
func deviceIdentity(file *os.File) (string, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return "", fmt.Errorf("stat: %w", err)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	directory, err := filepath.EvalSymlinks(filepath.Join("/sys/dev/block", number))
	if err != nil {
		return "", err
	}
	if identity := hardwareIdentity(directory); identity != "" {
		return identity, nil
	}
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("boot %s device %s sequence %s", boot, number,
		attribute(directory, "diskseq")), nil
}

// bootID returns what tells this boot of the system from every other.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// lockedHere returns the Info.Sole of a file that is locked. The kernel keeps the lock until the
// last IO on the file has ended, even if the program is killed, but other machines may not know of
// it. Nor does the lock of a disk's device exclude another path to the same disk. lockedHere
// returns "" if machine or lock cannot be told from others.
func lockedHere(file *os.File) string {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return ""
	}
	boot, err := bootID()
	if err != nil {
		return ""
	}
	locked := fmt.Sprintf("boot %s file %d on %d", boot, stat.Ino, stat.Dev)
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		locked = fmt.Sprintf("boot %s device %d", boot, stat.Rdev)
	}
	sum := sha256.Sum256([]byte(locked))
	return fmt.Sprintf("locked on %x", sum[:8])
}

// hardwareIdentity identifies a block device by the attributes in its sysfs directory or, for a
// partition, in that of its disk. It returns "" if there is no permanent one.
func hardwareIdentity(directory string) string {
	partition := attribute(directory, "partition")
	disk := directory
	if partition != "" {
		disk = filepath.Dir(directory)
		partition += " at " + attribute(directory, "start")
	}
	for _, name := range []string{
		"wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial",
	} {
		if value := attribute(disk, name); value != "" {
			return fmt.Sprintf("disk %s %s partition %s", name, value, partition)
		}
	}
	return ""
}

// attribute reads a file of sysfs; it returns "" if there is none.
func attribute(directory, name string) string {
	value, err := os.ReadFile(filepath.Join(directory, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(value))
}
