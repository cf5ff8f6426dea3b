package memory

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// prefaultStep is how many bytes are allocated per system call. When a signal
// interrupts fallocate(2) on shared memory it gives back what it had
// allocated: the step must be short enough to get through between two
// signals, for instance those of a profiler.
const prefaultStep = 8 << 20

// Prefault allocates all pages of a region that came from Alloc, so that
// neither running out of memory nor page faults surprise the data path later.
// It does nothing for other regions.
func (r *Region) Prefault() error {
	if r.descriptor < 0 || r.untrusted {
		return nil
	}
	for offset := uint64(0); offset < r.length; offset += prefaultStep {
		if err := r.prefault(offset, min(prefaultStep, r.length-offset)); err != nil {
			return status.Errorf(status.NoMemory, "allocate %d bytes of shared memory at offset %d: %w", r.length, offset, err)
		}
	}
	return nil
}

func (r *Region) prefault(offset, length uint64) error {
	err := retryInterrupted(func() error { return unix.Fallocate(r.descriptor, 0, int64(offset), int64(length)) })
	if err != nil {
		return err
	}
	err = retryInterrupted(func() error { return unix.Madvise(r.bytes[offset:offset+length], unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) {
		return nil // before Linux 5.14: the pages are allocated, if not mapped
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
