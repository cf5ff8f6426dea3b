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
