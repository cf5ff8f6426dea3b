// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// newOutbox allocates this side's outbox. Peers can only read it.
func newOutbox() (outbox, error) {
	region, err := memory.AllocReadOnly("zc-relay-rdma-outbox", outboxBytes)
	if err != nil {
		return outbox{}, fmt.Errorf("allocate outbox: %w", err)
	}
	if err := region.Prefault(); err != nil {
		return outbox{}, errors.Join(fmt.Errorf("allocate outbox: %w", err), region.Close())
	}
	return viewOutbox(region), nil
}

// importOutbox maps the peer's outbox. It owns descriptor only if it succeeds. The file must
// consist of ordinary pages, so that touching one never faults, and its seals must keep the peer
// from shrinking it and from punching holes.
func importOutbox(descriptor int) (outbox, error) {
	seals, err := unix.FcntlInt(uintptr(descriptor), unix.F_GET_SEALS, 0)
	if err != nil {
		return outbox{}, status.Errorf(status.InvalidValue,
			"import outbox: it is not from memfd_create: %w", err)
	}
	if seals&unix.F_SEAL_FUTURE_WRITE == 0 {
		return outbox{}, status.Errorf(status.InvalidValue,
			"import outbox: seals %#x lack F_SEAL_FUTURE_WRITE", seals)
	}
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(descriptor, &filesystem); err != nil {
		return outbox{}, status.Errorf(status.OperatingSystem, "import outbox: statfs: %w", err)
	}
	if filesystem.Type != unix.TMPFS_MAGIC {
		return outbox{}, status.Errorf(status.InvalidValue,
			"import outbox: it has huge pages (file system type %#x)", filesystem.Type)
	}
	region, err := memory.Import(descriptor, 0, outboxBytes, outboxBytes, memory.PCIRead)
	if err != nil {
		return outbox{}, fmt.Errorf("import outbox: %w", err)
	}
	if err := region.CloseDescriptor(); err != nil {
		return outbox{}, fmt.Errorf("import outbox: close its descriptor: %w", err)
	}
	return viewOutbox(region), nil
}

// importLent maps memory that the peer lends. It owns descriptor only if it succeeds.
func importLent(descriptor int, offer lentOffer) (*memory.Region, error) {
	access := memory.PCIRead
	if offer.writable {
		access |= memory.PCIWrite
	}
	region, err := memory.Import(descriptor, 0, offer.length, math.MaxInt64, access)
	if err != nil {
		return nil, fmt.Errorf("import lent memory: %w", err)
	}
	// Mapped memory needs no descriptor, and there may be many connections.
	if err := region.CloseDescriptor(); err != nil {
		return nil, fmt.Errorf("import lent memory: close its descriptor: %w", err)
	}
	return region, nil
}

// canLend reports whether memory can be lent: it has a file and, if the peer may only read it,
// seals that keep the peer from mapping the file for writing.
func canLend(region *memory.Region, writable bool) bool {
	if region.Descriptor() < 0 || region.Untrusted() {
		return false
	}
	seals, err := unix.FcntlInt(uintptr(region.Descriptor()), unix.F_GET_SEALS, 0)
	return err == nil && (writable || seals&unix.F_SEAL_FUTURE_WRITE != 0)
}
