// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func alloc(t testing.TB, length uint64) *memory.Region {
	t.Helper()
	r, err := memory.Alloc("memory_test", length)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestAllocatedRegionIsZeroedAndMapped(t *testing.T) {
	for _, length := range []uint64{1, 4096, 4097, 1 << 20} {
		r := alloc(t, length)
		b := r.Bytes()
		if uint64(len(b)) != length || uint64(cap(b)) != length || r.Len() != length ||
			!r.Mapped() || r.Untrusted() || r.Base() != address(b) || r.Handle() != nil {
			t.Errorf("region of %d bytes has %d bytes with room for %d, mapped %v", length, len(b),
				cap(b), r.Mapped())
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d is %d", i, b[i])
			}
			b[i] = 1
		}
	}
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func TestAllocatedRegionCannotBeResizedByAnyone(t *testing.T) {
	r := alloc(t, 8192)
	for _, length := range []int64{0, 4096, 16384} {
		if err := unix.Ftruncate(r.Descriptor(), length); !errors.Is(err, unix.EPERM) {
			t.Errorf("resizing to %d bytes returned %v", length, err)
		}
	}
	_, err := unix.FcntlInt(uintptr(r.Descriptor()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("adding a seal returned %v", err)
	}
	flags, err := unix.FcntlInt(uintptr(r.Descriptor()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor would be inherited: flags %#x, %v", flags, err)
	}
}

func TestImpossibleLengthsAreRejected(t *testing.T) {
	for _, length := range []uint64{0, math.MaxInt + 1, math.MaxUint64} {
		if _, err := memory.Alloc("memory_test", length); !errors.Is(err, status.InvalidValue) {
			t.Errorf("Alloc of %d bytes returned %v", length, err)
		}
	}
	if _, err := memory.Alloc("memory_test", math.MaxInt); err == nil {
		t.Error("the whole address space was allocated")
	}
}

func TestLongNamesAreTruncated(t *testing.T) {
	r, err := memory.Alloc(strings.Repeat("n", 300), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPrefaultAllocatesEveryPage(t *testing.T) {
	const length = 20<<20 + 1 // more than one step, and not whole pages
	r := alloc(t, length)
	if got := allocated(t, r); got != 0 {
		t.Errorf("a new region uses %d bytes", got)
	}
	if err := r.Prefault(); err != nil {
		t.Fatal(err)
	}
	if got := allocated(t, r); got < length {
		t.Errorf("%d of %d bytes are allocated", got, length)
	}
}

func TestPrefaultingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := alloc(t, 20<<20)
	if err := r.PrefaultUntil(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("PrefaultUntil returned %v", err)
	}
	if got := allocated(t, r); got != 0 {
		t.Errorf("%d bytes are allocated", got)
	}
}

func allocated(t *testing.T, r *memory.Region) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(r.Descriptor(), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}

func TestPrefaultLeavesOtherMemoryAlone(t *testing.T) {
	opaque := memory.NewOpaque(handle{}, 0, 4096, nil)
	for _, r := range []*memory.Region{memory.Wrap(make([]byte, 10)), opaque} {
		if err := r.Prefault(); err != nil {
			t.Errorf("Prefault returned %v", err)
		}
	}
}

func TestRangesAreCheckedWithoutWrappingAround(t *testing.T) {
	r := memory.Wrap(make([]byte, 100))
	for _, c := range []struct {
		offset, length uint64
		fits           bool
	}{
		{0, 100, true}, {100, 0, true}, {99, 1, true}, {0, 0, true},
		{0, 101, false}, {101, 0, false}, {100, 1, false}, {math.MaxUint64, 1, false},
		{1, math.MaxUint64, false},
	} {
		err := r.CheckRange(c.offset, c.length)
		if (err == nil) != c.fits || err != nil && !errors.Is(err, status.InvalidValue) {
			t.Errorf("%d bytes at %d gave %v", c.length, c.offset, err)
		}
	}
}

// handle is the handle of memory that no provider knows.
type handle struct{ device memory.Device }

func (h handle) Device() memory.Device { return h.device }

func TestDevicesAreTheSameUnlessTheirNamesDiffer(t *testing.T) {
	full := memory.Device{PCI: "03:00.0", RDMA: "mlx5_0"}
	for _, c := range []struct {
		other memory.Device
		canBe bool
	}{
		{full, true},
		{memory.Device{}, true},
		{memory.Device{PCI: "03:00.0"}, true},
		{memory.Device{RDMA: "mlx5_0"}, true},
		{memory.Device{PCI: "03:00.1"}, false},
		{memory.Device{RDMA: "mlx5_1"}, false},
		{memory.Device{PCI: "03:00.0", RDMA: "mlx5_2"}, false}, // a sub-function
	} {
		if full.CanBe(c.other) != c.canBe || c.other.CanBe(full) != c.canBe {
			t.Errorf("%v can be %v: got %v, want %v", full, c.other, !c.canBe, c.canBe)
		}
	}
	if (memory.Device{}).String() == "" || full.String() != "03:00.0 (mlx5_0)" {
		t.Errorf("devices are printed as %q and %q", memory.Device{}, full)
	}
}

func TestOpaqueRegionShowsItsHandleAndNoBytes(t *testing.T) {
	released := 0
	h := handle{memory.Device{PCI: "03:00.0", RDMA: "mlx5_0"}}
	r := memory.NewOpaque(h, 0x1000, 64, func() error { released++; return os.ErrClosed })
	if r.Mapped() || r.Bytes() != nil || r.Handle() != h || r.Device() != h.device ||
		r.Base() != 0x1000 ||
		r.Len() != 64 || r.Descriptor() != -1 {
		t.Errorf("got %+v", r)
	}
	if err := r.CopyOut(make([]byte, 1), 0); !errors.Is(err, status.NotSupported) {
		t.Errorf("CopyOut gave %v", err)
	}
	if err := r.CopyIn(0, make([]byte, 1)); !errors.Is(err, status.NotSupported) {
		t.Errorf("CopyIn gave %v", err)
	}
	first, second := r.Close(), r.Close()
	if released != 1 || !errors.Is(first, os.ErrClosed) || !errors.Is(second, os.ErrClosed) {
		t.Errorf("released %d times, Close returned %v, then %v", released, first, second)
	}
}

func TestCloseReleasesMappingAndDescriptor(t *testing.T) {
	r, err := memory.Alloc("memory_test_close", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if n := mappings(t, "memory_test_close"); n != 1 {
		t.Fatalf("%d mappings", n)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if n := mappings(t, "memory_test_close"); n != 0 {
		t.Errorf("%d mappings remain", n)
	}
}

func mappings(t *testing.T, name string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:"+name+" ")
}

func TestAccessRightsAreSets(t *testing.T) {
	both := memory.RemoteRead | memory.PCIWrite
	if !both.Has(memory.RemoteRead) || both.Has(memory.RemoteRead|memory.LocalWrite) ||
		!both.Has(0) {
		t.Error("Has is not set inclusion")
	}
	if !both.Valid() || memory.Access(1<<5).Valid() || !memory.Access(0).Valid() {
		t.Error("Valid does not distinguish defined bits from others")
	}
}

// copier is the handle of memory that only functions reach.
type copier struct {
	handle
	content []byte
}

func (c copier) CopyOut(dst []byte, offset uint64) error {
	copy(dst, c.content[offset:])
	return nil
}

func (c copier) CopyIn(offset uint64, src []byte) error {
	copy(c.content[offset:], src)
	return nil
}

func TestOpaqueMemoryIsCopiedByItsHandle(t *testing.T) {
	held := copier{content: []byte("0123456789")}
	opaque := memory.NewOpaque(held, 0x1000, 10, nil)
	mapped := memory.Wrap([]byte("abcdefghij"))
	if opaque.Mapped() || !opaque.Copyable() || !mapped.Copyable() ||
		memory.NewOpaque(handle{}, 0, 8, nil).Copyable() {
		t.Error("Mapped or Copyable is wrong")
	}
	out := make([]byte, 2)
	if err := opaque.CopyOut(out, 3); err != nil || string(out) != "34" {
		t.Errorf("copied %q out, error %v", out, err)
	}
	for _, step := range []struct {
		copy         func() error
		opaque, wrap string
	}{
		{func() error { return opaque.CopyIn(0, []byte("xy")) }, "xy23456789", "abcdefghij"},
		{func() error { return memory.Copy(mapped, 8, opaque, 1, 2) }, "xy23456789", "abcdefghy2"},
		{func() error { return memory.Copy(opaque, 7, mapped, 0, 3) }, "xy23456abc", "abcdefghy2"},
		{func() error { return memory.Copy(opaque, 2, opaque, 0, 4) }, "xyxy236abc", "abcdefghy2"},
	} {
		if err := step.copy(); err != nil || string(held.content) != step.opaque ||
			string(mapped.Bytes()) != step.wrap {
			t.Errorf("got %q and %q, error %v; want %q and %q", held.content, mapped.Bytes(), err,
				step.opaque, step.wrap)
		}
	}
	for name, err := range map[string]error{
		"out": opaque.CopyOut(out, 9), "in": opaque.CopyIn(9, out),
		"from": memory.Copy(mapped, 0, opaque, 5, 6), "to": memory.Copy(opaque, 5, mapped, 0, 6),
	} {
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("a copy %s beyond the end: %v", name, err)
		}
	}
}
