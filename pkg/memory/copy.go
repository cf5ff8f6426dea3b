// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime/debug"

	"github.com/zc-relay/zc-relay/internal/blockcopy"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Copier is the Handle of an opaque region that can be copied all the same, by system calls. The
// ranges lie within the region. The memory to copy to or from may be that of an Untrusted region.
type Copier interface {
	Handle
	CopyOut(dst []byte, offset uint64) error
	CopyIn(offset uint64, src []byte) error
}

// Copyable reports whether the CPU can copy from and to the region: it is mapped, or its Handle is
// a Copier.
func (r *Region) Copyable() bool {
	if r.Mapped() {
		return true
	}
	_, can := r.handle.(Copier)
	return can
}

// CopyOut copies from the region, starting at offset, into dst. A fault in an Untrusted region
// becomes an IOFailed error; part of dst may then have been written. Copying from a region that is
// not Copyable fails with NotSupported. CopyOut does not allocate unless it fails.
func (r *Region) CopyOut(dst []byte, offset uint64) error {
	if err := r.checkCopy(offset, uint64(len(dst))); err != nil {
		return err
	}
	if !r.Mapped() {
		return r.handle.(Copier).CopyOut(dst, offset)
	}
	return r.copyGuarded(dst, r.bytes[offset:offset+uint64(len(dst))], nil)
}

// CopyIn copies src into the region, starting at offset. Errors are as for CopyOut.
func (r *Region) CopyIn(offset uint64, src []byte) error {
	if err := r.checkCopy(offset, uint64(len(src))); err != nil {
		return err
	}
	if !r.Mapped() {
		return r.handle.(Copier).CopyIn(offset, src)
	}
	return r.copyGuarded(r.bytes[offset:offset+uint64(len(src))], src, nil)
}

// Copy copies length bytes between two regions, which may be the same. A fault in either becomes an
// error as for CopyOut. Overlapping ranges are copied correctly.
func Copy(dst *Region, dstOffset uint64, src *Region, srcOffset, length uint64) error {
	return CopyAhead(dst, dstOffset, src, srcOffset, length, nil)
}

// CopyAhead is like Copy, and meanwhile loads next into the caches, which is probably copied next.
// Next need not be readable.
func CopyAhead(
	dst *Region, dstOffset uint64, src *Region, srcOffset, length uint64, next []byte,
) error {
	if err := dst.checkCopy(dstOffset, length); err != nil {
		return err
	}
	if err := src.checkCopy(srcOffset, length); err != nil {
		return err
	}
	if !dst.Mapped() || !src.Mapped() {
		return copyThrough(dst, dstOffset, src, srcOffset, length)
	}
	to, from := dst.bytes[dstOffset:dstOffset+length], src.bytes[srcOffset:srcOffset+length]
	if dst.untrusted && src.untrusted {
		return copyBetween(dst, to, src, from, next)
	}
	if dst.untrusted {
		return dst.copyGuarded(to, from, next)
	}
	return src.copyGuarded(to, from, next)
}

// copyThrough copies between two regions, of which at least one is opaque.
func copyThrough(dst *Region, dstOffset uint64, src *Region, srcOffset, length uint64) error {
	switch {
	case dst.Mapped():
		return src.handle.(Copier).CopyOut(dst.bytes[dstOffset:dstOffset+length], srcOffset)
	case src.Mapped():
		return dst.handle.(Copier).CopyIn(dstOffset, src.bytes[srcOffset:srcOffset+length])
	}
	whole := make([]byte, length) // because the ranges may overlap
	if err := src.handle.(Copier).CopyOut(whole, srcOffset); err != nil {
		return err
	}
	return dst.handle.(Copier).CopyIn(dstOffset, whole)
}

// copyBetween copies between two Untrusted regions: either side may fault.
func copyBetween(dst *Region, to []byte, src *Region, from, next []byte) (err error) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		fault := recover()
		if fault == nil {
			return
		}
		if addressed, ok := fault.(interface{ Addr() uintptr }); ok &&
			src.contains(addressed.Addr()) {
			err = src.faultError(fault)
			return
		}
		err = dst.faultError(fault)
	}()
	copyBlock(to, from, next)
	return nil
}

func (r *Region) checkCopy(offset, length uint64) error {
	if !r.Copyable() {
		return status.Errorf(status.NotSupported,
			"region of %d bytes is opaque: only its provider can copy it", r.length)
	}
	return r.CheckRange(offset, length)
}

// copyGuarded copies between the region and trusted memory.
func (r *Region) copyGuarded(dst, src, next []byte) (err error) {
	if !r.untrusted {
		copyBlock(dst, src, next)
		return nil
	}
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			err = r.faultError(fault)
		}
	}()
	copyBlock(dst, src, next)
	return nil
}

func copyBlock(dst, src, next []byte) {
	if len(next) > 0 {
		blockcopy.Load(dst, src, next)
		return
	}
	blockcopy.Store(dst, src)
}

// faultError turns a memory fault inside the region into an error and re-raises every other panic.
func (r *Region) faultError(fault any) error {
	addressed, ok := fault.(interface{ Addr() uintptr })
	if !ok || !r.contains(addressed.Addr()) {
		panic(fault)
	}
	return status.Errorf(status.IOFailed,
		"memory at offset %d was taken away by its owner", r.offsetOf(addressed.Addr()))
}
