// SPDX-License-Identifier: Apache-2.0

// Package volume provides the volumes that a target serves.
//
// All sessions of a target share a volume. Its data path never blocks a worker: a Queue accepts
// requests and completes them later, when the thread that owns it polls.
package volume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// UUID identifies a volume for as long as its content exists. A memory volume gets a new one each
// time the target starts.
type UUID [16]byte

// String returns the canonical form: 8-4-4-4-12 hexadecimal digits.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// NewUUID returns the UUID (version 8, RFC 9562, section 5.8) of a hash of at least 16 bytes.
func NewUUID(hash []byte) UUID { return UUID(hash[:16]).withVersion(8) }

// withVersion sets the version and variant bits (RFC 9562, section 4).
func (u UUID) withVersion(version byte) UUID {
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	return u
}

// Info describes a volume.
type Info struct {
	Name      string
	UUID      UUID
	Size      uint64 // bytes, a multiple of BlockSize; may change while the volume is open
	BlockSize uint32 // bytes, a power of two; offsets and lengths are multiples of it
	ReadOnly  bool
	// WriteVerifier changes whenever writes that were not flushed may have been lost. It is 0 if
	// they may be lost whenever the program that serves the volume restarts.
	WriteVerifier uint64
	// Capabilities are the optional operations that the volume supports.
	Capabilities Capability
	// Fenced means that at most one program at a time can write to the content, and that nothing
	// that a former one had in flight takes effect any more.
	Fenced bool
	// Sole, if not empty, names what promises the same among the programs of one machine: those
	// with the same UUID and Sole cannot serve the content at the same time.
	Sole string
}

// Capability is a set of optional operations.
type Capability uint32

// The optional operations. Every volume supports read, write, and flush.
//
// The bits are those of OpenVolumeReply in the control protocol.
const (
	CanTrim Capability = 1 << iota
	CanWriteZeroes
	CanFUA
	// CanReportExtents means that Extents knows where holes are.
	CanReportExtents

	// KnownCapabilities are all of them.
	KnownCapabilities = CanReportExtents<<1 - 1
)

// Has reports whether c includes all of want.
func (c Capability) Has(want Capability) bool { return c&want == want }

// Volume is an opened volume. Its methods may be called concurrently.
type Volume interface {
	Info() Info
	// Memory returns the region that holds the content, or nil if the content is not in memory. It
	// may be read directly; only a Queue may write to it.
	Memory() *memory.Region
	// Ownership tells whether this program owns the volume; nil if no other one can take it over.
	Ownership() *Ownership
	// CheckOwner returns nil if, at some time since the call, no other program had what Info.Fenced
	// or Info.Sole promises. It fails with status.TimeOut if ctx ends before it knows.
	CheckOwner(ctx context.Context) error
	// NewQueue opens a queue for one thread. At most depth requests may be in flight on it.
	NewQueue(depth int) (Queue, error)
	// Resize changes the size in bytes; 0 means the size that the storage has, if something else
	// has changed it. Open queues accept requests for a new part at once. Resize fails with
	// NotSupported if the kind of volume cannot do that, InvalidValue if the size is not one,
	// BadState if it is smaller than now and shrink is not set, and InUse if it is smaller and
	// queues are open.
	Resize(bytes uint64, shrink bool) error
	// Failures returns how many requests have failed since the volume was opened, by operation and
	// cause, without those of which there were none.
	Failures() []Failure
	// Status returns the state of the volume.
	Status() Status
	// Close makes everything durable and releases the volume. If ctx ends first, Close fails with
	// status.TimeOut, and continues in the background. It fails with status.InUse, and has no
	// effect, unless all queues are closed. Close may be called again, by any goroutine: it waits
	// for the first, and returns its result. Everything else that uses a closed volume fails with
	// status.ErrClosed, and Memory returns nil: its content is no longer mapped.
	Close(ctx context.Context) error
}

// Failure is a number of requests that have failed in the same way.
type Failure struct {
	Operation iomsg.Operation
	// Cause is the symbolic name of an error number, such as "ENOSPC"; "truncated" if the file has
	// become shorter than the volume; "volume_failed" if the volume rejected the requests because
	// of an earlier failure; "injected" if a fault rule made them fail; or "other".
	Cause string
	Count uint64
}

// Request is one operation on a volume. The caller allocates it once and reuses it. From Submit
// until completion it belongs to the queue.
type Request struct {
	// Operation is what the request does. A flush covers every request that completed, on any
	// queue, before the flush was submitted. After a trim, each block of the range holds either
	// zeroes or its old content; after write zeroes, it holds zeroes.
	Operation iomsg.Operation
	// ForceUnitAccess makes a Write, Trim, or WriteZeroes durable before it completes.
	ForceUnitAccess bool
	// Deallocate lets a WriteZeroes free the space of its range. Without it, the range stays
	// allocated where the volume can do that.
	Deallocate bool
	// Offset and Length are the range in the volume in bytes, multiples of the block size. Flush
	// ignores them.
	Offset uint64
	Length uint64
	// Buffer holds the Length bytes to write, or receives the bytes read. For Extents, it receives
	// a table (iomsg.EncodeExtents) that describes the start of the range, as far as it has room.
	// Operations that move no data ignore it.
	Buffer []byte
	// UserData belongs to the caller; the volume does not use it.
	UserData uint64
	// Err is the outcome, nil for success. It is valid after completion.
	Err error

	queue *queue   // completes the request
	next  *Request // link of the request lists of queue and pool
}

// Queue submits requests for one thread.
type Queue interface {
	// Waiter lets the thread sleep until a request completes.
	progress.Waiter
	// Submit starts a request. Requests complete in any order. If Submit fails, the queue has not
	// accepted the request: status.Again means that depth requests are in flight, status.ErrClosed
	// that the queue is closed; other errors are those of Info.Check.
	Submit(request *Request) error
	// Poll fills completed with requests that have completed and returns their number. A request
	// that only copies memory has completed when Submit returns.
	Poll(completed []*Request) int
	// Close fails with status.InUse while requests are in flight. It does nothing the second time.
	Close() error
}

// Check returns an error unless a volume described by i can carry out the request: InvalidValue for
// an unknown operation, a range that is outside the volume or not made of whole blocks, or a buffer
// of another length; NotSupported for an operation that the volume does not support; NotPermitted
// for a change to a read-only volume (ErrReadOnly).
func (i *Info) Check(request *Request) error {
	if request == nil {
		return status.Errorf(status.InvalidValue, "the Request is nil")
	}
	if request.Operation == iomsg.OpFlush {
		return nil
	}
	if i.ReadOnly && request.Operation.Changes() {
		return status.ErrReadOnly
	}
	block := uint64(i.BlockSize) - 1
	if request.Offset&block != 0 || request.Length&block != 0 {
		return status.InvalidValue
	}
	if request.Length > i.Size || request.Offset > i.Size-request.Length {
		return status.InvalidValue
	}
	switch request.Operation {
	case iomsg.OpRead, iomsg.OpWrite:
		if uint64(len(request.Buffer)) != request.Length {
			return status.InvalidValue
		}
	case iomsg.OpTrim:
		if !i.Capabilities.Has(CanTrim) {
			return status.NotSupported
		}
	case iomsg.OpWriteZeroes:
		if !i.Capabilities.Has(CanWriteZeroes) {
			return status.NotSupported
		}
	case iomsg.OpExtents:
		switch size := len(request.Buffer); {
		case !i.Capabilities.Has(CanReportExtents):
			return status.NotSupported
		case request.Length == 0, size == 0, size%iomsg.ExtentSize != 0:
			return status.InvalidValue
		}
	default:
		return status.InvalidValue
	}
	return nil
}

// store is the part of a volume that differs from one kind to another.
type store interface {
	// start carries out a request that only copies memory on the calling thread, sets its Err, and
	// returns nil. For any other request it returns what will carry it out. The threads of all
	// queues call it concurrently.
	start(r *Request) carrier
	// inspect looks for damage that requests may not notice, and for growth. It is called about
	// every second, off the data path.
	inspect()
	// resize changes the size, in bytes, a multiple of the block size, or adopts that of the
	// storage if bytes is 0. The store sets the volume's size. If the size becomes smaller, no
	// queue is open.
	resize(bytes uint64) error
	// close makes everything durable and frees the store. It may block. No request is in flight.
	close() error
}

// carrier carries out requests that may block. submit itself does not block; the request completes
// later.
type carrier interface{ submit(r *Request) }

// storeVolume is the Volume of every kind; only the store differs.
type storeVolume struct {
	info   Info
	store  store
	health *health
	memory *memory.Region // nil unless the content is in memory
	queues atomic.Int32   // number of open queues
	size   *atomic.Uint64 // the current size in bytes
	opened time.Time

	// resizing keeps queues from being opened while the volume becomes smaller, or is being closed.
	resizing sync.Mutex

	watching  sync.WaitGroup
	stopWatch chan struct{}

	began    atomic.Pointer[time.Time] // when the volume began to close
	closed   chan struct{}
	closeErr error // valid once closed is closed
}

// newStoreVolume returns the volume of a store that reports its failures to h. The caller also
// calls watched.
func newStoreVolume(info Info, s store, h *health) *storeVolume {
	v := &storeVolume{info: info, store: s, health: h, size: new(atomic.Uint64),
		opened: time.Now(), stopWatch: make(chan struct{}), closed: make(chan struct{})}
	v.size.Store(info.Size)
	return v
}

// watched starts to log failures and inspect the store, and returns v.
func (v *storeVolume) watched() *storeVolume {
	v.watching.Go(func() { v.health.watch(v.store, v.stopWatch) })
	return v
}

// Info returns the description of the volume.
func (v *storeVolume) Info() Info {
	info := v.info
	info.Size = v.size.Load()
	return info
}

// Memory returns the region that holds the content, or nil if there is none.
func (v *storeVolume) Memory() *memory.Region {
	if v.isClosed() {
		return nil
	}
	return v.memory
}

// isClosed reports whether the volume has begun to close.
func (v *storeVolume) isClosed() bool { return v.began.Load() != nil }

// errClosed returns ErrClosed if the volume has begun to close. action is what it prevents.
func (v *storeVolume) errClosed(action string) error {
	if v.isClosed() {
		return fmt.Errorf("%s volume %q: %w", action, v.info.Name, status.ErrClosed)
	}
	return nil
}

// Ownership returns nil.
func (v *storeVolume) Ownership() *Ownership { return nil }

// CheckOwner succeeds until the volume is closed: the program has its lock until then.
func (v *storeVolume) CheckOwner(context.Context) error {
	return v.errClosed("check the owner of")
}

// Lost returns nil: the program owns the volume until it closes it.
func (v *storeVolume) Lost() <-chan struct{} { return nil }

// LossReason returns nil.
func (v *storeVolume) LossReason() error { return nil }

// NewQueue opens a queue for one thread.
func (v *storeVolume) NewQueue(depth int) (Queue, error) {
	v.resizing.Lock()
	defer v.resizing.Unlock()
	if err := v.errClosed("open queue of"); err != nil {
		return nil, err
	}
	q, err := newQueue(v, depth)
	if err != nil {
		return nil, fmt.Errorf("open queue of volume %q: %w", v.info.Name, err)
	}
	return q, nil
}

// Resize changes the size.
func (v *storeVolume) Resize(bytes uint64, shrink bool) error {
	v.resizing.Lock()
	defer v.resizing.Unlock()
	if err := v.errClosed("resize"); err != nil {
		return err
	}
	if err := v.checkResize(bytes, shrink); err != nil {
		return fmt.Errorf("resize volume %q: %w", v.info.Name, err)
	}
	if err := v.store.resize(bytes); err != nil {
		return fmt.Errorf("resize volume %q: %w", v.info.Name, err)
	}
	return nil
}

func (v *storeVolume) checkResize(bytes uint64, shrink bool) error {
	if bytes == 0 {
		return nil
	}
	if err := checkNewSize(bytes, v.info.BlockSize); err != nil {
		return err
	}
	now := v.size.Load()
	switch {
	case bytes >= now:
		return nil
	case !shrink:
		return status.Errorf(status.BadState,
			"%v is less than the size of %v: what is beyond would be lost; ask for that explicitly",
			size.Bytes(bytes), size.Bytes(now))
	case v.queues.Load() > 0:
		return status.Errorf(status.InUse, "it cannot become smaller while sessions have it open")
	}
	return nil
}

// Failures returns how many requests have failed.
func (v *storeVolume) Failures() []Failure { return v.health.failures() }

// Status returns the state of the volume.
func (v *storeVolume) Status() Status {
	if began := v.began.Load(); began != nil {
		return Status{State: Closed, Since: *began}
	}
	if f := v.health.failed.Load(); f != nil {
		return Status{State: Failed, Reason: f, Since: f.since, IsReadable: f.rejects < rejectAll}
	}
	return Status{State: Serving, Since: v.opened}
}

// Close makes everything durable and releases the volume.
func (v *storeVolume) Close(ctx context.Context) error {
	if err := v.beginClose(); err != nil {
		return err
	}
	select {
	case <-v.closed:
		return v.closeErr
	case <-ctx.Done():
		return status.Errorf(status.TimeOut,
			"close volume %q: its content may not be durable: %w", v.info.Name, ctx.Err())
	}
}

// beginClose closes the volume in the background, unless that has begun: a device that hangs can
// delay the last flush forever. It fails while queues are open.
func (v *storeVolume) beginClose() error {
	v.resizing.Lock()
	defer v.resizing.Unlock()
	if n := v.queues.Load(); n > 0 {
		return status.Errorf(status.InUse,
			"close volume %q: %d queues are still open", v.info.Name, n)
	}
	if v.isClosed() {
		return nil
	}
	v.began.Store(new(time.Now()))
	go func() {
		defer close(v.closed)
		close(v.stopWatch)
		v.watching.Wait()
		if err := v.store.close(); err != nil {
			v.closeErr = fmt.Errorf("close volume %q: %w", v.info.Name, err)
		}
		v.health.logNew()
		v.health.logRepeated()
	}()
	return nil
}
