// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// misalignment returns the distance in bytes from the last multiple of alignment, a power of two,
// to the start of buffer. An alignment of 0 means that none is required.
func misalignment(buffer []byte, alignment int) int {
	if alignment == 0 {
		return 0
	}
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) & uintptr(alignment-1))
}

// readNowait reads what the page cache has at offset without waiting for a device (preadv2(2) with
// RWF_NOWAIT). It fails with EAGAIN if nothing is cached, and with EOPNOTSUPP if the file system
// does not support RWF_NOWAIT.
//
// The call bypasses the Go scheduler, because it does not block and involving the scheduler would
// cost about as much as a small read.
func readNowait(fd int, buffer []byte, offset uint64) (int, unix.Errno) {
	vector := unix.Iovec{Base: unsafe.SliceData(buffer)}
	vector.SetLen(len(buffer))
	// On a 64-bit kernel the low word of the position holds all of it.
	n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&vector)),
		1, uintptr(offset), 0, unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// fsIOCGetFSUUID is FS_IOC_GETFSUUID (linux/fs.h), since Linux 6.9.
const fsIOCGetFSUUID = 0x80111500

// fileSystemUUID returns the UUID that a file system has on its device, nil if it has none or the
// kernel does not say.
func fileSystemUUID(fd int) []byte {
	var id struct {
		length uint8
		uuid   [16]byte
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIOCGetFSUUID,
		uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return nil
	}
	return id.uuid[:min(int(id.length), len(id.uuid))]
}

// blkGetDiskSequence is BLKGETDISKSEQ (linux/fs.h).
const blkGetDiskSequence = 0x80081280

// diskSequence returns the number of a block device that is unique to it until the next boot, even
// among devices that take each other's place.
func diskSequence(fd int) (uint64, error) {
	var sequence uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), blkGetDiskSequence,
		uintptr(unsafe.Pointer(&sequence)))
	if errno != 0 {
		return 0, fmt.Errorf("get sequence number of device: %w", errno)
	}
	return sequence, nil
}

// statEntry describes what has a name, which ends with a zero, in an open directory. Unlike
// unix.Statx, it does not allocate.
func statEntry(directory int, name []byte, found *entry) error {
	var stat unix.Statx_t
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(directory),
		uintptr(unsafe.Pointer(unsafe.SliceData(name))), unix.AT_SYMLINK_NOFOLLOW,
		unix.STATX_INO|unix.STATX_NLINK, uintptr(unsafe.Pointer(&stat)), 0)
	if errno != 0 {
		return errno
	}
	*found = entry{major: stat.Dev_major, minor: stat.Dev_minor, inode: stat.Ino, links: stat.Nlink}
	return nil
}
