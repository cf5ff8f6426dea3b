// SPDX-License-Identifier: Apache-2.0

// Package blockio is the seam between front ends, which offer a block device to others, and what
// carries out their requests. A front end speaks a protocol: pkg/nbd that of NBD clients, pkg/ublk
// that of the Linux kernel's block devices. It uses the interfaces Export, Disk, and Session, and
// does not know what a disk is. pkg/gateway implements them with a volume.
package blockio

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Info describes an export to its user.
type Info struct {
	// Description is shown to people; it may be empty.
	Description string
	// Size is in bytes.
	Size uint64
	// BlockSize is what the disk changes as a whole, in bytes, a power of two: a write of a part of
	// a block reads the block first.
	BlockSize uint32
	// PreferredBlock is the block size in bytes for the best performance, a power of two from 512
	// to 32 MiB. Requests may have any offset and length all the same.
	PreferredBlock uint32
	// LargestAligned is the most bytes of a Read or Write of whole blocks that one operation
	// carries out (Session.Claim), and LargestAny that of any Read or Write.
	LargestAligned, LargestAny uint32
	// ReadOnly makes the front end reject all commands that change content.
	ReadOnly bool
	// CanTrim and CanWriteZeroes report which optional commands a Session carries out.
	CanTrim        bool
	CanWriteZeroes bool
	// CanReportExtents is set if a Session carries out BlockStatus.
	CanReportExtents bool
}

// Export is a disk that front ends serve. Any goroutine may call its methods.
type Export interface {
	// Info describes the disk to a user that connects now.
	Info() Info
	// Attach opens the disk for worker number i, which counts from 0. The caller is the worker's
	// thread, which will sleep in the engine.
	Attach(i int, engine *progress.Engine) (Disk, error)
	// Barrier returns when no operation of a session that has been closed is in progress, so that
	// what a new session does is not undone. It fails when ctx ends before that.
	Barrier(ctx context.Context) error
}

// Disk is an export as one worker uses it. Only the worker's thread calls its methods.
type Disk interface {
	// Source makes progress and reports each operation that has completed to its session's Handler.
	progress.Source
	// Open makes room for another session. It fails if there is none.
	Open(handler Handler) (Session, error)
	// Ring starts what has been submitted since the last call, in all sessions.
	Ring()
	// Close undoes Attach. All sessions have been closed, but operations may be in progress.
	Close() error
}

// Handler learns about the completion of operations.
type Handler interface {
	// Completed is called once for each submitted operation, on the worker's thread, from within
	// Disk.Poll or Session.Submit. Operation.Error is the outcome.
	Completed(operation *Operation)
	// MadeRoom is called when a session may have room again although no operation was released. The
	// caller is the worker's thread, within any method of Disk or Session.
	MadeRoom()
}

// Session is one user's share of a disk: an NBD connection, or a queue of a kernel's device. Only
// the worker's thread calls its methods.
type Session interface {
	// Claim returns an operation that carries out a command on the range of length bytes at offset,
	// or as much from its start as fits into one buffer, if it is a Read or Write. It returns nil
	// if there is no room now; there will be after Release of an operation in use, or when the disk
	// calls Handler.MadeRoom. Claim does not move the data of other operations.
	Claim(command Command, flags CommandFlags, offset, length uint64) *Operation
	// Submit starts a claimed operation.
	Submit(operation *Operation)
	// Release gives back an operation that has completed, or was not submitted.
	Release(operation *Operation)
	// Close ends the session and releases its operations. It drops those that have no effect yet.
	// While others are in progress, operations of other sessions on the same range wait for them,
	// and so do flushes. Handler.Completed is not called any more.
	Close()
}

// Extent is a range of a disk that is data, or a hole, which takes up no space and reads as zeroes.
type Extent struct {
	Length uint64 // bytes, not 0
	Hole   bool
}

// Operation is a command, or a part of one, on its way through a Session.
type Operation struct {
	Command Command
	// Flags may contain FUA, NoHole, FastZero, and RequestOne.
	Flags CommandFlags
	// Offset and Length are the range of the disk, in bytes.
	Offset, Length uint64
	// Data is the buffer of a Read or Write, of Length bytes. The session may move it, with its
	// content, during Disk.Poll and Submit of any operation.
	Data []byte
	// Extents is the outcome of a successful BlockStatus: at least one extent from Offset on. They
	// may end before the range, but not behind it.
	Extents []Extent
	// Error is the outcome.
	Error Errno
	// Slot belongs to the session.
	Slot uint32

	// Request and Next belong to the front end from Claim on: the request that the operation is a
	// part of, and a list of operations.
	Request uint32
	Next    *Operation
}

// Command is what an operation does. Its numbers are those of the NBD protocol, in which 2 is no
// command of a disk.
type Command uint16

// The commands.
const (
	Read        Command = 0
	Write       Command = 1
	Flush       Command = 3
	Trim        Command = 4
	Cache       Command = 5
	WriteZeroes Command = 6
	BlockStatus Command = 7
	// CommandCount is above all commands.
	CommandCount = 8
)

// String returns the name that metrics use.
func (c Command) String() string {
	names := [CommandCount]string{"read", "write", "disconnect", "flush", "trim", "cache",
		"write_zeroes", "block_status"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// MovesData reports whether the command reads or writes content by Operation.Data.
func (c Command) MovesData() bool { return c == Read || c == Write }

// CommandFlags modify a command. Their bits are those of the NBD protocol.
type CommandFlags uint16

// The flags.
const (
	// FUA makes a change durable before the operation completes.
	FUA CommandFlags = 1 << 0
	// NoHole makes WriteZeroes keep the space allocated.
	NoHole CommandFlags = 1 << 1
	// RequestOne asks BlockStatus for one extent.
	RequestOne CommandFlags = 1 << 3
	// FastZero makes WriteZeroes fail if it would take as long as a write.
	FastZero CommandFlags = 1 << 4
)

// Errno is an error as users see it, with the number of Linux, which the NBD protocol also has.
type Errno uint32

// The errors.
const (
	Success      Errno = 0
	NotPermitted Errno = 1
	IOError      Errno = 5
	NoMemory     Errno = 12
	Invalid      Errno = 22
	NoSpace      Errno = 28
	Overflow     Errno = 75
	NotSupported Errno = 95
	Shutdown     Errno = 108
)

// Error returns the name.
func (e Errno) Error() string {
	switch e {
	case Success:
		return "success"
	case NotPermitted:
		return "EPERM"
	case IOError:
		return "EIO"
	case NoMemory:
		return "ENOMEM"
	case Invalid:
		return "EINVAL"
	case NoSpace:
		return "ENOSPC"
	case Overflow:
		return "EOVERFLOW"
	case NotSupported:
		return "ENOTSUP"
	case Shutdown:
		return "ESHUTDOWN"
	}
	return fmt.Sprintf("error %d", uint32(e))
}
