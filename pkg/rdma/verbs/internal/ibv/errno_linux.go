//go:build verbs

package ibv

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// wrap turns an errno of a verbs call into an error with its name and, where
// one is known, a remedy.
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

// errnoRemedies say what to do about the errors that set-up usually fails with.
var errnoRemedies = map[unix.Errno]string{
	unix.ENODEV:        "no RDMA device is there: see `rdma link`",
	unix.ENOENT:        "the RDMA modules are not loaded: modprobe rdma_ucm ib_uverbs",
	unix.EACCES:        "this user may not open /dev/infiniband: see its owner and mode",
	unix.EPERM:         "this user may not do that: see the owner and mode of /dev/infiniband",
	unix.EADDRNOTAVAIL: "the address is not one of an RDMA device: see `rdma link` and `ip address`",
	unix.EADDRINUSE:    "another process listens there",
	unix.ENETUNREACH:   "there is no route: see `ip route get`",
	unix.EHOSTUNREACH:  "there is no way there over RDMA: see `ip route get` and `rdma link`",
	unix.EFAULT:        "the memory is not mapped for the access that was asked for, or not backed",
}

// memoryRemedy explains the usual reason for ENOMEM: a device needs pinned
// memory, whose amount is limited per process.
func memoryRemedy() string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return "the device or the machine has no more of it"
	}
	return fmt.Sprintf("memory for RDMA is locked and RLIMIT_MEMLOCK allows %d KiB: "+
		"raise it by `ulimit -l`, /etc/security/limits.conf or LimitMEMLOCK= of the systemd unit", limit.Cur>>10)
}

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

// errnoOf is the errno of a C call; libraries that fail without setting it
// count as EIO.
func errnoOf(err error) unix.Errno {
	if errno, ok := err.(unix.Errno); ok && errno != 0 {
		return errno
	}
	return unix.EIO
}
