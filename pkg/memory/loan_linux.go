// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Loan shows whether a peer that a region was exported to still holds it. It belongs to one export.
//
// The peer gets an open file description of its own, with a lock on it. Its descriptors and its
// mappings keep that description open, so the kernel drops the lock when the last of them is gone,
// whether the peer has released the region or has died. A peer whose process is stopped keeps the
// lock. A hostile peer can drop the lock early, but such a peer could as well spoil the data while
// it has the memory.
//
// No peer can map a region without a descriptor. Its loan lasts until whoever lets a device reach
// the memory has released what KeepLoan returned.
type Loan struct {
	region  *Region
	view    *Region
	number  int64        // the byte that is locked
	keepers atomic.Int64 // if the region has no descriptor
}

// Lend starts a loan of a region that Alloc, Map, or Wrap made. Export Loan.Region in place of the
// region, and close that as soon as the peer has it.
func (r *Region) Lend() (*Loan, error) {
	if r.untrusted || !r.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"lend memory region of %d bytes: it belongs to a peer or to a device", r.length)
	}
	if r.descriptor < 0 {
		l := &Loan{region: r}
		l.view = &Region{bytes: r.bytes, length: r.length, base: r.base, descriptor: -1,
			keepers: &l.keepers}
		return l, nil
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", r.descriptor),
		unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem,
			"lend memory region of %d bytes: open its file again: %w (is /proc mounted?)",
			r.length, err)
	}
	l := &Loan{region: r, number: r.loans.Add(1)}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: l.number, Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		return nil, errors.Join(status.Errorf(status.OperatingSystem,
			"lend memory region of %d bytes: lock its file: %w", r.length, err), unix.Close(fd))
	}
	l.view = &Region{bytes: r.bytes, length: r.length, base: r.base, descriptor: fd,
		release: func() error { return unix.Close(fd) }}
	return l, nil
}

// Region returns the region to export. It is the same memory, so closing it does not unmap it.
func (l *Loan) Region() *Region { return l.view }

// KeepLoan keeps the loan from ending until release is called, although the region is closed
// before. It is for whoever lets a device reach the memory of a region that Loan.Region returned.
// Any other region has no loan to keep. Call release once.
func (r *Region) KeepLoan() (release func() error, err error) {
	switch {
	case r.keepers != nil:
		r.keepers.Add(1)
		return func() error {
			r.keepers.Add(-1)
			return nil
		}, nil
	case r.descriptor < 0:
		return func() error { return nil }, nil
	}
	fd, err := unix.FcntlInt(uintptr(r.descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem,
			"hold memory region of %d bytes: duplicate its descriptor: %w", r.length, err)
	}
	return func() error { return unix.Close(fd) }, nil
}

// Returned reports whether nobody holds the exported region any more: no process has a descriptor
// of it, or a mapping, and no device reaches it. The region that was lent must be open.
func (l *Loan) Returned() (bool, error) {
	if l.view.keepers != nil {
		return l.keepers.Load() == 0, nil
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: l.number, Len: 1}
	err := unix.FcntlFlock(uintptr(l.region.descriptor), unix.F_OFD_GETLK, &lock)
	if err != nil {
		return false, status.Errorf(status.OperatingSystem,
			"check the loan of a memory region of %d bytes: %w", l.region.length, err)
	}
	return lock.Type == unix.F_UNLCK, nil
}
