// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const readWrite = memory.PCIRead | memory.PCIWrite

// memfd creates a file of the given size, as a peer might.
func memfd(t *testing.T, length int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("peer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, length); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestImportedRegionIsTheSameMemory(t *testing.T) {
	owner := alloc(t, 8192)
	twin, err := unix.FcntlInt(uintptr(owner.Descriptor()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := memory.Import(twin, 0x1000, 5000, 8192, readWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if !r.Untrusted() || r.Len() != 5000 || len(r.Bytes()) != 5000 || cap(r.Bytes()) != 5000 ||
		r.Base() != 0x1000 || r.Descriptor() != twin {
		t.Errorf("untrusted %v, length %d, capacity %d", r.Untrusted(), len(r.Bytes()),
			cap(r.Bytes()))
	}
	if err := r.CopyIn(4990, []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	if got := owner.Bytes()[4990:5000]; string(got) != "0123456789" {
		t.Errorf("the owner sees %q", got)
	}
	copy(owner.Bytes(), "from the owner")
	got := make([]byte, 14)
	if err := r.CopyOut(got, 0); err != nil || string(got) != "from the owner" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := r.Prefault(); err != nil {
		t.Errorf("Prefault of imported memory: %v", err)
	}
}

func TestUnsafeMemoryIsNotImported(t *testing.T) {
	const shrink, seal = unix.F_SEAL_SHRINK, unix.F_SEAL_SEAL
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1])) }()
	for name, c := range map[string]struct {
		fd     int
		length uint64
		code   status.Code
	}{
		"no seals at all":            {memfd(t, 8192, 0), 8192, status.InvalidValue},
		"may be shrunk":              {memfd(t, 8192, seal), 8192, status.InvalidValue},
		"seals may be changed":       {memfd(t, 8192, shrink), 8192, status.InvalidValue},
		"smaller than announced":     {memfd(t, 4096, shrink|seal), 8192, status.InvalidValue},
		"file larger than the limit": {memfd(t, 1<<20, shrink|seal), 4096, status.TooBig},
		"length beyond the limit":    {memfd(t, 1<<20, shrink|seal), 16385, status.TooBig},
		"no bytes":                   {memfd(t, 8192, shrink|seal), 0, status.TooBig},
		"sealed against writing": {memfd(t,
			8192, shrink|seal|unix.F_SEAL_WRITE), 8192, status.NotPermitted},
		"regular file":      {int(file.Fd()), 8192, status.InvalidValue},
		"pipe":              {pipe[0], 8192, status.InvalidValue},
		"closed descriptor": {-1, 8192, status.InvalidValue},
	} {
		r, err := memory.Import(c.fd, 0, c.length, 16384, readWrite)
		if status.CodeOf(err) != c.code {
			t.Errorf("%s: got %v, %v, want %v", name, r, err, c.code)
		}
		if r != nil {
			_ = r.Close()
			continue
		}
		if c.fd > 2 && name != "regular file" && name != "pipe" {
			// A failed import leaves the descriptor with the caller.
			if err := unix.Close(c.fd); err != nil {
				t.Errorf("%s: the descriptor was closed: %v", name, err)
			}
		}
	}
}

func TestMemoryImportedForReadingCannotBeWritten(t *testing.T) {
	sealed := memfd(t, 4096, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL|unix.F_SEAL_WRITE)
	r, err := memory.Import(sealed, 0,
		4096, 4096, memory.PCIRead)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	got := bytes.Repeat([]byte{1}, 100)
	if err := r.CopyOut(got, 0); err != nil || !bytes.Equal(got, make([]byte, 100)) {
		t.Errorf("read %v, %v", got[:4], err)
	}
	if err := r.CopyIn(0, got); !errors.Is(err, status.IOFailed) {
		t.Errorf("CopyIn gave %v", err)
	}
}

func TestHugePagesAreImportedAndReleased(t *testing.T) {
	const hugePage = 2 << 20
	fd, err := unix.MemfdCreate("huge",
		unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("no huge pages: %v", err)
	}
	if err := unix.Ftruncate(fd, hugePage); err != nil {
		t.Fatal(err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	if err != nil {
		t.Fatal(err)
	}
	r, err := memory.Import(fd, 0, 5000, hugePage, readWrite)
	if err != nil {
		_ = unix.Close(fd)
		t.Skipf("no huge page is free: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("close a region on a part of a huge page: %v", err)
	}
}
