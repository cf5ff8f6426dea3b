// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Request is one operation of a Queue.
type Request struct {
	// Type is Read, Write, Flush, Trim, WriteZeroes, or Extents. 0 is none of them.
	Type RequestType
	// Flags may contain FUA and Deallocate.
	Flags Flags
	// Length is in bytes, a multiple of the block size. A read or write moves at most
	// Info.BufferSize bytes. For Extents it is the size of the table, a multiple of
	// ExtentSize, which the request moves to the memory: see DecodeExtents.
	Length uint32
	// Range is how many bytes of the volume Extents describes, a multiple of the block size, as far
	// as the table has room. Other types ignore it.
	Range uint64
	// Offset is the position in the volume in bytes, a multiple of the block size.
	Offset uint64
	// Memory is the offset of the data in Volume.Memory.
	Memory uint64
	// Segments, if there are any, are where the data of a read or write is, one part after the
	// other, in place of Memory. Each has whole blocks, and at most Info.BufferSize bytes; Length
	// is their sum. There may be as many as Info.Depth. Submit does not keep the slice.
	//
	// Each segment travels to the target as a request of its own, so the whole is not atomic. It
	// has one Result, when nobody touches any of its memory any more. If segments have failed, that
	// is the result of the first of them by its place in the volume, and the others may have been
	// carried out.
	Segments []Segment
	// Tag is returned in the Result.
	Tag uint64
	// Timeout is how long this request may be outstanding before the session fails, in place of
	// Config.IOTimeout, which says why; 0 means that, and a negative value no limit. The client
	// measures it in steps of 0.1 s.
	Timeout time.Duration
	// Done, if not nil, is called by Queue.Process with the result. Queue.Poll ignores it.
	Done func(*Result)
	// Flusher is the user on whose behalf a Flush is submitted, which decides which losses it
	// reports. nil means a user of the queue's own. Other types ignore it.
	Flusher *Flusher
}

// Segment is a part of the data memory: see Request.Segments.
type Segment struct {
	Memory uint64 // offset in Volume.Memory
	Length uint32 // bytes
}

// Result is the outcome of the Request with the same tag. The transport does not touch the
// request's buffer any more, unless Quarantined is set.
type Result struct {
	Tag  uint64
	Code status.Code
	// Cause says why the target's volume has failed the request, if it has.
	Cause status.Cause
	// Quarantined is set if the request has failed with its session while the relay was silent. The
	// relay may use the buffer whenever it continues: its content after a read is undefined, and
	// stays so; the data of a write may still be read, by the application as well as by the relay,
	// so it must not be changed. The buffer, like all of the memory, cannot be used for requests
	// any more. It is accessible until the volume is closed or has new memory: see
	// Queue.SwitchMemory.
	Quarantined bool
}

// Err returns nil if the request has succeeded, and an error with its code if it has failed, which
// also matches its cause, such as syscall.ENOSPC, and ErrQuarantined if the buffer is in
// quarantine. The error of a change to a read-only volume matches os.ErrPermission.
func (r *Result) Err() error {
	switch {
	case r.Code == status.Success:
		return nil
	case r.Quarantined:
		return fmt.Errorf("%w: %w", r.Code, ErrQuarantined)
	case r.Code == status.NotPermitted:
		return status.ErrReadOnly
	case r.Cause != status.CauseUnknown:
		return fmt.Errorf("%w: %w", r.Code, r.Cause)
	}
	return r.Code
}

// isVolatile reports whether a restart of the target can undo the request after it has completed. A
// trim does not count, because the content that it leaves is undefined anyway.
func (r *Request) isVolatile() bool {
	return (r.Type == Write || r.Type == WriteZeroes) && r.Flags&FUA == 0
}

// check returns an error for a request that the protocol does not have, or that does not fit the
// volume or the memory, of which it may touch what is below memoryEnd. Relay and target check the
// same, but know neither which memory is the application's nor which messages only the client
// itself may send.
func (t *terms) check(r *Request, memoryEnd uint64) error {
	if r == nil {
		return status.Errorf(status.InvalidValue, "the Request is nil")
	}
	info := &t.info
	size, block := t.size.Load(), uint64(info.BlockSize)
	covered := uint64(r.Length)
	if r.Type == Extents {
		covered = r.Range
	}
	switch {
	case !r.Type.IsValid():
		return status.Errorf(status.InvalidValue, "Request.Type is %d, which is not a type of a "+
			"request: use client.Read and the like", uint32(r.Type))
	case r.Flags&^(FUA|Deallocate) != 0:
		return status.Errorf(status.InvalidValue,
			"%v with flags %#x: only FUA and Deallocate are for requests", r.Type, uint32(r.Flags))
	case r.Type == Flush && len(r.Segments) == 0:
		return nil
	case (r.Offset|covered)&(block-1) != 0:
		return status.Errorf(status.InvalidValue,
			"%v of %d bytes at offset %d: volume %q has blocks of %d bytes", r.Type, covered,
			r.Offset, info.Name, block)
	case covered > size, r.Offset > size-covered:
		return status.Errorf(status.InvalidValue,
			"%v of %d bytes at offset %d of volume %q, which has only %d bytes", r.Type, covered,
			r.Offset, info.Name, size)
	case len(r.Segments) > 0:
		return t.checkSegments(r, memoryEnd)
	case !r.Type.Operation().MovesData():
		return nil
	case r.Length > info.BufferSize:
		return status.Errorf(status.TooBig, "%v moves %d bytes, one request at most %d", r.Type,
			r.Length, info.BufferSize)
	case r.Length == 0, covered == 0, r.Type == Extents && r.Length%ExtentSize != 0:
		return status.Errorf(status.InvalidValue, "%v of %d bytes with %d bytes of memory", r.Type,
			covered, r.Length)
	case uint64(r.Length) > memoryEnd, r.Memory > memoryEnd-uint64(r.Length):
		return status.Errorf(status.InvalidValue,
			"%v uses %d bytes of memory at offset %d, of which there are only %d", r.Type,
			r.Length, r.Memory, memoryEnd)
	}
	return nil
}

// checkRange fails unless the range is within the volume.
func (t *terms) checkRange(operation RequestType, off, length int64) error {
	if off < 0 || length < 0 || uint64(off) > t.size.Load() ||
		uint64(length) > t.size.Load()-uint64(off) {
		return status.Errorf(status.InvalidValue, "%s, which has only %d bytes",
			t.describe(operation, off, length), t.size.Load())
	}
	return nil
}

// checkBlocks fails unless the range consists of whole blocks of the volume.
func (t *terms) checkBlocks(operation RequestType, off, length int64) error {
	if err := t.checkRange(operation, off, length); err != nil {
		return err
	}
	block := int64(t.info.BlockSize)
	if off%block != 0 || length%block != 0 {
		return status.Errorf(status.InvalidValue, "%s is not a range of whole blocks of %d bytes",
			t.describe(operation, off, length), block)
	}
	return nil
}

// describe describes a request for errors.
func (t *terms) describe(operation RequestType, off, length int64) string {
	if operation == Flush {
		return fmt.Sprintf("%v of volume %q", operation, t.info.Name)
	}
	return fmt.Sprintf("%v of %d bytes at offset %d of volume %q", operation, length, off,
		t.info.Name)
}
