// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// faulty makes an untrusted region of three pages. Accesses to the last two fault.
func faulty(t *testing.T) (r *Region, page int) {
	t.Helper()
	page = os.Getpagesize()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(int64(3 * page)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r, err = mapDescriptor(fd, uint64(3*page), unix.PROT_READ|unix.PROT_WRITE, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := file.Truncate(int64(page)); err != nil {
		t.Fatal(err)
	}
	return r, page
}

func TestMemoryTakenAwayByItsOwnerReturnsAnError(t *testing.T) {
	r, page := faulty(t)
	buffer := make([]byte, 2*page)
	for name, copy := range map[string]func() error{
		"CopyOut":              func() error { return r.CopyOut(buffer[:10], uint64(page)) },
		"CopyOut across pages": func() error { return r.CopyOut(buffer, uint64(page/2)) },
		"CopyIn":               func() error { return r.CopyIn(uint64(2*page), buffer[:1]) },
		"CopyIn across pages":  func() error { return r.CopyIn(uint64(page-1), buffer[:2]) },
	} {
		err := copy()
		if !errors.Is(err, status.IOFailed) ||
			!strings.Contains(err.Error(), "taken away by its owner") {
			t.Errorf("%s returned %v", name, err)
		}
	}
	if err := r.CopyOut(buffer[:page], 0); err != nil {
		t.Errorf("copying from the remaining page: %v", err)
	}
}

func TestACopyBetweenRegionsReportsTheFault(t *testing.T) {
	first, page := faulty(t)
	second, _ := faulty(t)
	sound := Wrap(make([]byte, 3*page))
	gone := uint64(page)
	for name, c := range map[string]struct {
		dst       *Region
		dstOffset uint64
		src       *Region
		srcOffset uint64
	}{
		"from untrusted memory":                {sound, 0, first, gone},
		"to untrusted memory":                  {first, gone, sound, 0},
		"from one untrusted memory to another": {first, 0, second, gone},
		"to one untrusted memory from another": {first, gone, second, 0},
		"within untrusted memory":              {first, 0, first, gone},
	} {
		err := Copy(c.dst, c.dstOffset, c.src, c.srcOffset, 8)
		if !errors.Is(err, status.IOFailed) ||
			!strings.Contains(err.Error(), "taken away by its owner") {
			t.Errorf("%s returned %v", name, err)
		}
	}
	copy(sound.bytes, "content")
	if err := Copy(first, 3, sound, 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := Copy(second, 5, first, 3, 7); err != nil || string(second.bytes[5:12]) != "content" {
		t.Errorf("copied %q, error %v", second.bytes[5:12], err)
	}
	if err := Copy(second, uint64(3*page), first, 0, 1); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a copy past the end gave %v", err)
	}
	if err := Copy(second, 0, first, 1, uint64(3*page)); !errors.Is(err, status.InvalidValue) {
		t.Errorf("a copy from past the end gave %v", err)
	}
	err := Copy(NewOpaque(noDevice{}, 0, 10, nil), 0, first, 0, 1)
	if !errors.Is(err, status.NotSupported) {
		t.Errorf("a copy to opaque memory gave %v", err)
	}
}

func TestFaultIsReportedWhereItHappened(t *testing.T) {
	r, page := faulty(t)
	err := r.CopyOut(make([]byte, 3*page), 0)
	if err == nil || !strings.Contains(err.Error(), "memory at offset ") {
		t.Fatalf("got %v", err)
	}
	if !r.contains(addressOf(r)) || r.offsetOf(addressOf(r)) != 0 || r.contains(addressOf(r)-1) ||
		r.contains(addressOf(r)+uintptr(r.Len())) {
		t.Error("contains or offsetOf is wrong at a boundary of the region")
	}
}

func TestFaultOfOtherMemoryIsNotBlamedOnTheRegion(t *testing.T) {
	r, page := faulty(t)
	other, _ := faulty(t)
	defer func() {
		fault, ok := recover().(interface{ Addr() uintptr })
		if !ok || !other.contains(fault.Addr()) {
			t.Errorf("recovered %v, want a fault in the other memory", fault)
		}
	}()
	// The destination faults, not the region.
	err := r.CopyOut(other.bytes[page:page+8], 0)
	t.Errorf("CopyOut returned %v", err)
}

func TestOtherPanicsPassThrough(t *testing.T) {
	r, _ := faulty(t)
	defer func() {
		if got := recover(); got != "other" {
			t.Errorf("recovered %v", got)
		}
	}()
	t.Errorf("faultError returned %v", r.faultError("other"))
}

func TestCopyingDoesNotAllocate(t *testing.T) {
	r, page := faulty(t)
	buffer := make([]byte, page)
	n := testing.AllocsPerRun(100, func() {
		if r.CopyOut(buffer, 0) != nil || r.CopyIn(0, buffer) != nil {
			t.Fatal("copying failed")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCopyOut(b *testing.B) {
	for name, untrusted := range map[string]bool{"trusted": false, "untrusted": true} {
		b.Run(name, func(b *testing.B) {
			r := &Region{bytes: make([]byte, 4096), length: 4096, untrusted: untrusted}
			buffer := make([]byte, 4096)
			b.SetBytes(4096)
			b.ReportAllocs()
			for b.Loop() {
				if err := r.CopyOut(buffer, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func addressOf(r *Region) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes))) }

// noDevice is the handle of memory that no provider knows.
type noDevice struct{}

func (noDevice) Device() Device { return Device{} }
