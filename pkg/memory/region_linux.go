// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// requiredSeals keep a peer from shrinking a shared file below its mapping, which would make every
// access fault, and from removing that seal.
const requiredSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL

// maxNameLength is the longest memfd name that the kernel accepts, in bytes.
const maxNameLength = 249

// Alloc allocates a zeroed region of length bytes that can be shared with another process through
// its descriptor. name appears in /proc/PID/maps, truncated if it is long.
//
// The file is sealed so that nobody can resize it. Pages are allocated on first touch unless
// Prefault is called.
func Alloc(name string, length uint64) (*Region, error) {
	return alloc(name, length, 0)
}

// AllocReadOnly is like Alloc, but other processes can only read the region: they can neither map
// nor open it for writing, and nobody can punch holes into it. Where the kernel has no such seal
// (before Linux 5.1), it is Alloc.
func AllocReadOnly(name string, length uint64) (*Region, error) {
	r, err := alloc(name, length, unix.F_SEAL_FUTURE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		return Alloc(name, length)
	}
	return r, err
}

func alloc(name string, length uint64, seals int) (*Region, error) {
	if length == 0 || length > math.MaxInt {
		return nil, status.Errorf(status.InvalidValue,
			"allocate memory region %q: invalid length %d", name, length)
	}
	fd, err := unix.MemfdCreate(name[:min(len(name), maxNameLength)],
		unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, status.Errorf(status.NoMemory, "create shared memory %q: %w", name, err)
	}
	wrap := func(err error) error {
		return fmt.Errorf("allocate memory region %q of %d bytes: %w", name, length, err)
	}
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		return nil, errors.Join(wrap(status.Errorf(status.NoMemory, "set size: %w", err)),
			unix.Close(fd))
	}
	r, err := mapDescriptor(fd, length, unix.PROT_READ|unix.PROT_WRITE, false)
	if err != nil {
		return nil, errors.Join(wrap(err), unix.Close(fd))
	}
	// After the mapping, which a seal against writing spares.
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, requiredSeals|unix.F_SEAL_GROW|seals)
	if err != nil {
		return nil, errors.Join(wrap(status.Errorf(status.OperatingSystem, "seal: %w", err)),
			r.Close())
	}
	return r, nil
}

// Map maps the first length bytes of a file in shared memory that the caller has made with
// memfd_create(2), also with huge pages, so that it can be shared with other processes. The region
// has a descriptor of its own; fd stays the caller's.
//
// Peers accept the memory only if nobody can shrink the file, and count all of it. So Map seals it
// against that, and against other seals, which requires that the file was made with
// MFD_ALLOW_SEALING.
func Map(fd int, length uint64) (*Region, error) {
	wrap := func(err error) error {
		return fmt.Errorf("map descriptor %d, made with memfd_create and MFD_ALLOW_SEALING: %w", fd,
			err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, wrap(status.Errorf(status.InvalidValue, "duplicate it: %w", err))
	}
	// If this fails, the file may have the seals already.
	_, _ = unix.FcntlInt(uintptr(own), unix.F_ADD_SEALS, requiredSeals)
	r, err := Import(own, 0, length, math.MaxInt64, PCIRead|PCIWrite)
	if err != nil {
		return nil, errors.Join(wrap(err), unix.Close(own))
	}
	r.base, r.untrusted = baseOf(r.bytes), false
	return r, nil
}

// Import maps a file that a peer sent. On success the region owns fd; on failure the caller still
// owns it. access limits the mapping: without PCIWrite it is read-only. base becomes the region's
// Base: the address that the peer knows.
//
// The file must be sealed against shrinking, have at least length bytes, and be no larger than
// limit. No seal prevents punching holes without also preventing writes, so the region is
// Untrusted.
func Import(fd int, base, length, limit uint64, access Access) (*Region, error) {
	if length == 0 || length > limit || length > math.MaxInt {
		return nil, status.Errorf(status.TooBig,
			"import memory: length %d is not between 1 and %d bytes", length, limit)
	}
	if base > math.MaxUint64-length {
		return nil, status.Errorf(status.InvalidValue,
			"import memory: %d bytes at address %#x exceed the address space", length, base)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, status.Errorf(status.InvalidValue,
			"import memory: descriptor has no seals (is it a memfd?): %w", err)
	}
	if seals&requiredSeals != requiredSeals {
		return nil, status.Errorf(status.InvalidValue,
			"import memory: seals %#x lack F_SEAL_SHRINK and F_SEAL_SEAL", seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, status.Errorf(status.OperatingSystem, "import memory: stat: %w", err)
	}
	if stat.Size < 0 || uint64(stat.Size) < length {
		return nil, status.Errorf(status.InvalidValue,
			"import memory: the file has %d bytes, but the peer announced %d", stat.Size, length)
	}
	if uint64(stat.Size) > limit {
		return nil, status.Errorf(status.TooBig,
			"import memory: the file has %d bytes, the limit is %d", stat.Size, limit)
	}
	protection := unix.PROT_READ
	if access.Has(PCIWrite) {
		protection |= unix.PROT_WRITE
	}
	r, err := mapDescriptor(fd, length, protection, true)
	if err != nil {
		return nil, fmt.Errorf("import memory of %d bytes: %w", length, err)
	}
	r.base = base
	return r, nil
}

// mapDescriptor maps whole pages of the file's page size, because the kernel does not unmap a part
// of a huge page.
func mapDescriptor(fd int, length uint64, protection int, untrusted bool) (*Region, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, status.Errorf(status.OperatingSystem, "stat: %w", err)
	}
	page := uint64(max(stat.Blksize, 1))
	rounded := (length + page - 1) / page * page
	if rounded < length || rounded > math.MaxInt {
		return nil, status.Errorf(status.TooBig, "%d bytes cannot be mapped", length)
	}
	b, err := unix.Mmap(fd, 0, int(rounded), protection, unix.MAP_SHARED)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, status.Errorf(status.NotPermitted,
			"map: %w (is the file sealed against writing or opened read-only?)", err)
	}
	if err != nil {
		return nil, status.Errorf(status.NoMemory, "map: %w", err)
	}
	r := &Region{bytes: b[:length:length], length: length, base: baseOf(b), descriptor: fd,
		untrusted: untrusted}
	addMapping(b)
	r.release = func() error {
		removeMapping(b)
		return errors.Join(unix.Munmap(b), r.CloseDescriptor())
	}
	return r, nil
}

// CloseDescriptor closes the file descriptor early; the mapping stays. It must not overlap other
// uses of the region.
func (r *Region) CloseDescriptor() error {
	if r.descriptor < 0 {
		return nil
	}
	fd := r.descriptor
	r.descriptor = -1
	return unix.Close(fd)
}

// prefaultStep is how many bytes one system call allocates. When a signal interrupts fallocate(2)
// on shared memory, the call frees what it has allocated: a step must be short enough to finish
// between two signals, such as those of a profiler.
const prefaultStep = 8 << 20

// Prefault allocates and maps all pages of a region that Alloc or Map made, so that the data path
// neither runs out of memory nor takes page faults. It does nothing for other regions.
func (r *Region) Prefault() error { return r.PrefaultUntil(context.Background()) }

// PrefaultUntil is Prefault, and fails when ctx ends before: gigabytes take seconds.
func (r *Region) PrefaultUntil(ctx context.Context) error {
	if r.descriptor < 0 || r.untrusted {
		return nil
	}
	for offset := uint64(0); offset < r.length; offset += prefaultStep {
		if ctx.Err() != nil {
			return fmt.Errorf("prefault memory region of %d bytes: %w", r.length,
				status.ContextError(ctx))
		}
		if err := r.prefault(offset, min(prefaultStep, r.length-offset)); err != nil {
			return status.Errorf(status.NoMemory,
				"prefault memory region of %d bytes at offset %d: %w", r.length, offset, err)
		}
	}
	return nil
}

func (r *Region) prefault(offset, length uint64) error {
	err := retryInterrupted(func() error {
		return unix.Fallocate(r.descriptor, 0, int64(offset), int64(length))
	})
	if err != nil {
		return err
	}
	err = retryInterrupted(func() error {
		return unix.Madvise(r.bytes[offset:offset+length], unix.MADV_POPULATE_WRITE)
	})
	if errors.Is(err, unix.EINVAL) {
		return nil // before Linux 5.14: the pages are allocated but not mapped
	}
	return err
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
