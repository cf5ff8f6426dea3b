// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// wrap turns the errno of a verbs call into an error that names the errno and, if known, a remedy.
func wrap(operation string, errno unix.Errno) error {
	remedy := errnoRemedies[errno]
	if errno == unix.ENOMEM {
		remedy = memoryRemedy()
	}
	name := unix.ErrnoName(errno)
	if remedy == "" {
		return status.Errorf(codeOf(errno), "%s: %s: %w", operation, name, errno)
	}
	return status.Errorf(codeOf(errno), "%s: %s: %w (%s)", operation, name, errno, remedy)
}

// errnoRemedies suggests what to do about the usual set-up errors.
var errnoRemedies = map[unix.Errno]string{
	unix.ENODEV:        "no RDMA device found: check `rdma link`",
	unix.ENOENT:        "the RDMA modules are not loaded: run `modprobe -a rdma_ucm ib_uverbs`",
	unix.EACCES:        "this user cannot open /dev/infiniband: check its owner and mode",
	unix.EPERM:         "permission denied: check the owner and mode of /dev/infiniband",
	unix.EADDRNOTAVAIL: "no RDMA device has the address: check `rdma link` and `ip address`",
	unix.EADDRINUSE:    "another process is listening there",
	unix.ENETUNREACH:   "there is no route: check `ip route get`",
	unix.EHOSTUNREACH:  "host unreachable over RDMA: check `ip route get` and `rdma link`",
	unix.EFAULT:        "the memory is unmapped or unbacked, or forbids the requested access",
}

// memoryRemedy explains the usual cause of ENOMEM: RDMA needs locked memory, which is limited per
// process.
func memoryRemedy() string {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
	if err != nil || limit.Cur == unix.RLIM_INFINITY {
		return "the device or the machine has run out of memory"
	}
	return fmt.Sprintf("RDMA memory is locked, and RLIMIT_MEMLOCK allows %d KiB: "+
		"raise it with `ulimit -l`, in /etc/security/limits.conf, or by LimitMEMLOCK= in the unit",
		limit.Cur>>10)
}

// codeOf returns the status code under which an errno is reported.
func codeOf(errno unix.Errno) status.Code {
	switch errno {
	case unix.ENODEV, unix.ENOENT, unix.EADDRNOTAVAIL, unix.ENXIO:
		return status.NotFound
	case unix.EACCES, unix.EPERM:
		return status.NotPermitted
	case unix.ENOMEM, unix.EAGAIN:
		return status.NoMemory
	case unix.EINVAL, unix.EFAULT:
		return status.InvalidValue
	case unix.EADDRINUSE, unix.EBUSY:
		return status.InUse
	case unix.EOPNOTSUPP, unix.ENOSYS, unix.EPROTONOSUPPORT:
		return status.NotSupported
	case unix.ETIMEDOUT:
		return status.TimeOut
	case unix.ECONNREFUSED:
		return status.ConnectionAborted
	case unix.ECONNRESET, unix.ENOTCONN:
		return status.ConnectionReset
	}
	return status.OperatingSystem
}

// errnoOf returns the errno of a failed C call, or EIO if the library did not set it.
func errnoOf(err error) unix.Errno {
	if errno, ok := err.(unix.Errno); ok && errno != 0 {
		return errno
	}
	return unix.EIO
}
