// Package volume is what a target stores on.
//
// A volume is shared by all sessions of a target. Its data-path side never
// blocks a worker: a Queue takes requests and answers them later, when polled
// by the one thread that owns it.
package volume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// UUID identifies a volume for as long as its content lives. A memory volume
// gets a new one at every start of the target.
type UUID [16]byte

// String returns the canonical form, 8-4-4-4-12 hexadecimal digits.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// withVersion sets the version and the variant bits (RFC 9562, section 4).
func (u UUID) withVersion(version byte) UUID {
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	return u
}

// Info describes a volume.
type Info struct {
	Name      string
	UUID      UUID
	Size      uint64 // bytes, a multiple of BlockSize
	BlockSize uint32 // bytes, a power of two: offsets and lengths are multiples
	ReadOnly  bool
	// Capabilities are the operations beyond Read and Write that it offers.
	Capabilities Capability
}

// Capability is a set of optional operations.
type Capability uint32

// The optional operations. Flush is offered by every volume.
const (
	CanTrim Capability = 1 << iota
	CanWriteZeroes
	CanFUA
)

// Has reports whether c includes all of want.
func (c Capability) Has(want Capability) bool { return c&want == want }

// Volume is an opened volume. Its methods may be called concurrently.
type Volume interface {
	Info() Info
	// Memory is the volume's content if it lies in memory, nil otherwise. It
	// may be read from directly, but only be written by a Queue.
	Memory() *memory.Region
	// NewQueue makes the data-path side for one thread, for at most depth
	// requests at a time.
	NewQueue(depth int) (Queue, error)
	// Close waits for running requests until ctx ends, makes everything
	// durable and releases the volume. All queues must be closed before.
	Close(ctx context.Context) error
}

// Request is one operation on a volume. The caller allocates it once and uses
// it again and again; between Submit and its completion it belongs to the
// queue.
type Request struct {
	// Operation is what the request does. A flush covers all requests that
	// were completed, on any queue, before it was submitted. After a trim,
	// each block of the range holds either zeroes or what it held before;
	// after write zeroes, it holds zeroes.
	Operation iomsg.Operation
	// ForceUnitAccess makes a Write, Trim or WriteZeroes durable before it
	// completes.
	ForceUnitAccess bool
	// Offset and Length name the range in the volume in bytes; both are
	// multiples of the block size. Unused by Flush.
	Offset uint64
	Length uint64
	// Buffer holds Length bytes to write, or receives them. Unused by the
	// operations that move no data.
	Buffer []byte
	// UserData is the caller's own.
	UserData uint64
	// Err is the outcome, nil for success. It is valid after completion.
	Err error

	queue *queue   // where to complete it
	next  *Request // links requests in the lists of queue and pool
}

// Queue submits requests on behalf of one thread.
type Queue interface {
	// Waiter lets the thread sleep until a request completes.
	progress.Waiter
	// Submit starts a request. Requests run in any order. A Submit that
	// fails has not taken the request: status.Full if depth requests are
	// running, status.InvalidValue for a range outside the volume.
	Submit(request *Request) error
	// Poll fills completed with requests that are done and returns their
	// number. Requests that only copy memory are done when Submit returns.
	Poll(completed []*Request) int
	// Close fails with status.InUse while requests are running.
	Close() error
}

// Check returns an error unless the request fits the volume described by
// info: InvalidValue for a range outside it or one that is not a multiple of
// blocks, NotSupported for an operation that it does not offer, NotPermitted
// for a change of a read-only volume.
func (i *Info) Check(request *Request) error {
	if request.Operation == iomsg.OpFlush {
		return nil
	}
	if i.ReadOnly && request.Operation != iomsg.OpRead {
		return status.NotPermitted
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
	default:
		return status.InvalidValue
	}
	return nil
}

// store is what tells the kinds of volume apart.
type store interface {
	// start carries out a request on the calling thread if that means no more
	// than copying memory, sets its Err and returns nil. Otherwise it returns
	// the pool that is to do it. It is called by the threads of all queues.
	start(r *Request) *pool
	// close makes everything durable and frees what the store has. It may
	// block; nothing is running any more.
	close() error
}

// storeVolume is the Volume of every kind; its store is what differs.
type storeVolume struct {
	info   Info
	store  store
	memory *memory.Region // nil unless the content lies in memory
	queues atomic.Int32   // open ones

	closing  sync.Once
	closed   chan struct{}
	closeErr error // valid once closed is closed
}

func newStoreVolume(info Info, s store) *storeVolume {
	return &storeVolume{info: info, store: s, closed: make(chan struct{})}
}

// Info implements Volume.
func (v *storeVolume) Info() Info { return v.info }

// Memory implements Volume.
func (v *storeVolume) Memory() *memory.Region { return v.memory }

// NewQueue implements Volume.
func (v *storeVolume) NewQueue(depth int) (Queue, error) {
	q, err := newQueue(v.info, v.store, &v.queues, depth)
	if err != nil {
		return nil, fmt.Errorf("open queue of volume %q: %w", v.info.Name, err)
	}
	return q, nil
}

// Close implements Volume.
func (v *storeVolume) Close(ctx context.Context) error {
	if n := v.queues.Load(); n > 0 {
		return status.Errorf(status.InUse, "close volume %q: %d queues are open", v.info.Name, n)
	}
	// A device that hangs holds up the last flush for as long as it likes, so
	// that runs aside, and a later Close may wait for it once more.
	v.closing.Do(func() {
		go func() {
			defer close(v.closed)
			if err := v.store.close(); err != nil {
				v.closeErr = fmt.Errorf("close volume %q: %w", v.info.Name, err)
			}
		}()
	})
	select {
	case <-v.closed:
		return v.closeErr
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "close volume %q: its content is not known to be durable: %w", v.info.Name, ctx.Err())
	}
}
