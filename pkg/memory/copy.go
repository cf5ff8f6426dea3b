package memory

import (
	"runtime/debug"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// CopyOut copies from the region, starting at offset, into dst. A fault on an
// Untrusted region becomes an IOFailed error; part of dst may have been
// written. An opaque region gives a NotSupported error. It does not allocate
// on success.
func (r *Region) CopyOut(dst []byte, offset uint64) error {
	if err := r.checkCopy(offset, uint64(len(dst))); err != nil {
		return err
	}
	return r.copyGuarded(dst, r.bytes[offset:offset+uint64(len(dst))])
}

// CopyIn copies src into the region, starting at offset. Faults are reported
// as by CopyOut.
func (r *Region) CopyIn(offset uint64, src []byte) error {
	if err := r.checkCopy(offset, uint64(len(src))); err != nil {
		return err
	}
	return r.copyGuarded(r.bytes[offset:offset+uint64(len(src))], src)
}

// Copy copies length bytes from one region, starting at srcOffset, to another
// or the same, starting at dstOffset. Faults in either are reported as by
// CopyOut. Ranges that overlap are copied as if over a third place.
func Copy(dst *Region, dstOffset uint64, src *Region, srcOffset, length uint64) error {
	if err := dst.checkCopy(dstOffset, length); err != nil {
		return err
	}
	if err := src.checkCopy(srcOffset, length); err != nil {
		return err
	}
	to, from := dst.bytes[dstOffset:dstOffset+length], src.bytes[srcOffset:srcOffset+length]
	if dst.untrusted && src.untrusted {
		return copyBetween(dst, to, src, from)
	}
	if dst.untrusted {
		return dst.copyGuarded(to, from)
	}
	return src.copyGuarded(to, from)
}

// copyBetween copies where both sides may fault.
func copyBetween(dst *Region, to []byte, src *Region, from []byte) (err error) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		fault := recover()
		if fault == nil {
			return
		}
		if addressed, ok := fault.(interface{ Addr() uintptr }); ok && src.contains(addressed.Addr()) {
			err = src.faultError(fault)
			return
		}
		err = dst.faultError(fault)
	}()
	copy(to, from)
	return nil
}

func (r *Region) checkCopy(offset, length uint64) error {
	if !r.Mapped() {
		return status.Errorf(status.NotSupported, "region of %d bytes is opaque: only its provider can copy", r.length)
	}
	return r.CheckRange(offset, length)
}

func (r *Region) copyGuarded(dst, src []byte) (err error) {
	if !r.untrusted {
		copy(dst, src)
		return nil
	}
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			err = r.faultError(fault)
		}
	}()
	copy(dst, src)
	return nil
}

// faultError turns a memory fault inside the region into an error and lets
// every other panic continue.
func (r *Region) faultError(fault any) error {
	addressed, ok := fault.(interface{ Addr() uintptr })
	if !ok || !r.contains(addressed.Addr()) {
		panic(fault)
	}
	return status.Errorf(status.IOFailed, "memory at offset %d was taken away by its owner", r.offsetOf(addressed.Addr()))
}
