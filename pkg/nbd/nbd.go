// SPDX-License-Identifier: Apache-2.0

// Package nbd serves disks to clients of the Network Block Device protocol: Linux, qemu, libnbd,
// and the many tools that are built on them.
//
// The protocol is that of the document "The NBD protocol" (doc/proto.md of the repository
// NetworkBlockDevice/nbd). Comments name its sections. A Server negotiates in the fixed newstyle
// with each client on a separate goroutine, and then hands the connection to one of its workers:
// a thread that serves many connections without blocking. It receives data straight into the memory
// of the disk, except that of small writes, and sends it straight from there.
//
// What a disk is, the server does not know: it uses the interfaces Export, Disk, and Session.
package nbd

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// MaxPayload is the most bytes that one read or write may move. It is announced to clients as the
// maximum block size.
const MaxPayload = 32 << 20

// Info describes an export to a client.
type Info struct {
	// Description is shown to people; it may be empty.
	Description string
	// Size is in bytes.
	Size uint64
	// PreferredBlock is the block size in bytes for the best performance, a power of two from 512
	// to MaxPayload. Requests may have any offset and length all the same.
	PreferredBlock uint32
	// ReadOnly makes the server reject all commands that change content.
	ReadOnly bool
	// CanTrim and CanWriteZeroes report which optional commands a Session carries out.
	CanTrim        bool
	CanWriteZeroes bool
	// CanReportExtents is set if a Session carries out BlockStatus. Otherwise the server reports
	// everything as allocated.
	CanReportExtents bool
}

// Export is a disk that clients can use. Any goroutine may call its methods.
type Export interface {
	// Info describes the disk to a client that connects now.
	Info() Info
	// Attach opens the disk for worker number i, which counts from 0. The caller is the worker's
	// thread, which will sleep in the engine.
	Attach(i int, engine *progress.Engine) (Disk, error)
	// Barrier returns when no operation of a session that has been closed is in progress, so that
	// what a new connection does is not undone. It fails when ctx ends before that.
	Barrier(ctx context.Context) error
}

// Disk is an export as one worker uses it. Only the worker's thread calls its methods.
type Disk interface {
	// Source makes progress and reports each operation that has completed to its session's Handler.
	progress.Source
	// Open makes room for another connection. It fails if there is none.
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

// Session is one connection's use of a disk. Only the worker's thread calls its methods.
type Session interface {
	// Claim returns an operation that carries out a command on the range of length bytes at offset,
	// or as much from its start as fits into one buffer, if it is a Read or Write. It returns nil
	// if there is no room now; there will be after Release of an operation in use, or when the disk
	// calls Handler.MadeRoom.
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
	// Data is the buffer of a Read or Write, of Length bytes. The session may move it whenever it
	// makes progress, with its content.
	Data []byte
	// Extents is the outcome of a successful BlockStatus: at least one extent from Offset on. They
	// may end before the range, but not behind it.
	Extents []Extent
	// Error is the outcome.
	Error Errno
	// Slot belongs to the session.
	Slot uint32

	request *request
	next    *Operation // of the same request
}

// Errno is an error as clients see it (section "Error values").
type Errno uint32

// The errors of the protocol, with the numbers of Linux.
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

// Error returns the name in the protocol.
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
