// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func lend(t *testing.T, r *memory.Region) *memory.Loan {
	t.Helper()
	l, err := r.Lend()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func expectReturned(t *testing.T, when string, l *memory.Loan, want bool) {
	t.Helper()
	if got, err := l.Returned(); err != nil || got != want {
		t.Errorf("%s: returned is %v, error %v", when, got, err)
	}
}

func closeRegion(t *testing.T, r *memory.Region) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// importOf imports a lent region as a peer does, through a descriptor that it was sent.
func importOf(t *testing.T, l *memory.Loan) *memory.Region {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(l.Region().Descriptor()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := memory.Import(fd, l.Region().Base(), l.Region().Len(), l.Region().Len(),
		memory.PCIRead|memory.PCIWrite)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestALoanEndsWithTheLastUseOfThePeer(t *testing.T) {
	r := alloc(t, 8192)
	first, second := lend(t, r), lend(t, r)
	imported := importOf(t, first)
	closeRegion(t, first.Region())
	expectReturned(t, "while the peer has it", first, false)
	if err := imported.CopyIn(4096, []byte("peer")); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(r.Bytes()[4096:], []byte("peer")) {
		t.Error("the lent region is not the same memory")
	}
	closeRegion(t, imported)
	expectReturned(t, "when the peer has released it", first, true)
	expectReturned(t, "although another loan has ended", second, false)
	closeRegion(t, second.Region())
	expectReturned(t, "when nobody has imported it", second, true)
	r.Bytes()[0] = 1 // still mapped
}

func TestAMappingAloneKeepsALoan(t *testing.T) {
	r := alloc(t, 8192)
	l := lend(t, r)
	b, err := unix.Mmap(l.Region().Descriptor(), 0, 8192, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	closeRegion(t, l.Region())
	expectReturned(t, "while it is mapped", l, false)
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	expectReturned(t, "when it is not mapped any more", l, true)
}

func TestADeviceKeepsALoan(t *testing.T) {
	l := lend(t, alloc(t, 8192))
	release, err := l.Region().KeepLoan()
	if err != nil {
		t.Fatal(err)
	}
	closeRegion(t, l.Region())
	expectReturned(t, "while a device reaches it", l, false)
	if err := release(); err != nil {
		t.Fatal(err)
	}
	expectReturned(t, "when no device reaches it any more", l, true)
}

// No peer can map a region without a file. What lets a device reach it keeps the loan.
func TestADeviceKeepsTheLoanOfMemoryWithoutAFile(t *testing.T) {
	r := memory.Wrap(make([]byte, 8192))
	l, other := lend(t, r), lend(t, r)
	if view := l.Region(); view.Base() != r.Base() || view.Len() != 8192 || view.Descriptor() >= 0 {
		t.Errorf("the lent region is %+v", view)
	}
	expectReturned(t, "before anybody has it", l, true)
	first, err := l.Region().KeepLoan()
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.Region().KeepLoan()
	if err != nil {
		t.Fatal(err)
	}
	closeRegion(t, l.Region())
	for _, release := range []func() error{first, second} {
		expectReturned(t, "while a device reaches it", l, false)
		expectReturned(t, "of another loan", other, true)
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
	expectReturned(t, "when no device reaches it any more", l, true)
	r.Bytes()[0] = 1
}

func TestMemoryOfPeersAndDevicesCannotBeLent(t *testing.T) {
	r := alloc(t, 8192)
	l := lend(t, r)
	imported := importOf(t, l)
	defer closeRegion(t, imported)
	defer closeRegion(t, l.Region())
	for name, region := range map[string]*memory.Region{
		"opaque":   memory.NewOpaque(handle{}, 0, 8, nil),
		"imported": imported,
	} {
		if _, err := region.Lend(); !errors.Is(err, status.NotSupported) {
			t.Errorf("lend a region that is %s: %v", name, err)
		}
	}
}
