package emulated

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peek looks at the next ring and leaves it where it is. The flags include
// MSG_CTRUNC if it carries descriptors, for which there is no room here. The
// system call is made directly because unix.Recvmsg allocates.
func (d *doorbell) peek() (flags int32, err error) {
	d.header = unix.Msghdr{}
	_, _, code := unix.Syscall(unix.SYS_RECVMSG, uintptr(d.descriptor), uintptr(unsafe.Pointer(&d.header)),
		unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if code != 0 {
		return 0, code
	}
	return d.header.Flags, nil
}
