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

// fsIOCGetVersion reads an inode's generation (FS_IOC_GETVERSION,
// linux/fs.h), which changes when a file system uses an inode again.
const fsIOCGetVersion = 0x80087601

// identify derives a UUID (version 8, RFC 9562 section 5.8) from what stays
// the same as long as a file or a device does. It survives renaming and
// restarts; a file that is put in its place has another one, also if it is a
// copy.
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
	return UUID(sum[:16]).withVersion(8), nil
}

// fileIdentity names a file by file system, inode, time of birth and
// generation, as far as the file system knows them.
func fileIdentity(file *os.File) (string, error) {
	fd := int(file.Fd())
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat); err != nil {
		return "", fmt.Errorf("statx: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return "", fmt.Errorf("statfs: %w", err)
	}
	// Derived from the file system's own UUID where it has one; the device
	// number may be another after a reboot.
	where := fmt.Sprintf("file system %x", system.Fsid.Val)
	if system.Fsid.Val == [2]int32{} {
		where = fmt.Sprintf("device %d:%d", stat.Dev_major, stat.Dev_minor)
	}
	born := ""
	if stat.Mask&unix.STATX_BTIME != 0 {
		born = fmt.Sprintf("%d.%09d", stat.Btime.Sec, stat.Btime.Nsec)
	}
	// Not every file system has generations: 0 then.
	generation, _ := unix.IoctlGetUint32(fd, fsIOCGetVersion)
	return fmt.Sprintf("%s inode %d born %s generation %d", where, stat.Ino, born, generation), nil
}

// deviceIdentity names a block device by what its hardware or its driver says
// of itself, and if they say nothing, by its number of this boot.
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
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("boot %s device %s sequence %s", strings.TrimSpace(string(boot)), number, attribute(directory, "diskseq")), nil
}

// hardwareIdentity looks in a block device's folder of sysfs, or for a
// partition in its disk's. It returns "" if there is nothing that lasts.
func hardwareIdentity(directory string) string {
	partition := attribute(directory, "partition")
	disk := directory
	if partition != "" {
		disk = filepath.Dir(directory)
		partition += " at " + attribute(directory, "start")
	}
	for _, name := range []string{"wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial"} {
		if value := attribute(disk, name); value != "" {
			return fmt.Sprintf("disk %s %s partition %s", name, value, partition)
		}
	}
	return ""
}

// attribute reads a file of sysfs; "" if there is none.
func attribute(directory, name string) string {
	value, err := os.ReadFile(filepath.Join(directory, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(value))
}
