package volume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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

// instance is the Volume of every kind; its store is what differs.
type instance struct {
	info   Info
	store  store
	memory *memory.Region // nil unless the content lies in memory
	queues atomic.Int32   // open ones

	closing  sync.Once
	closed   chan struct{}
	closeErr error // valid once closed is closed
}

func newInstance(info Info, s store) *instance {
	return &instance{info: info, store: s, closed: make(chan struct{})}
}

// Info implements Volume.
func (v *instance) Info() Info { return v.info }

// Memory implements Volume.
func (v *instance) Memory() *memory.Region { return v.memory }

// NewQueue implements Volume.
func (v *instance) NewQueue(depth int) (Queue, error) {
	l, err := newQueue(v.info, v.store, &v.queues, depth)
	if err != nil {
		return nil, fmt.Errorf("open queue of volume %q: %w", v.info.Name, err)
	}
	return l, nil
}

// Close implements Volume.
func (v *instance) Close(ctx context.Context) error {
	if n := v.queues.Load(); n > 0 {
		return status.Errorf(status.InUse, "close volume %q: %d queues are open", v.info.Name, n)
	}
	// A device that hangs holds up the last flush for as long as it likes, so
	// that runs aside, and a later Close may wait for it once more.
	v.closing.Do(func() { go v.shutdown() })
	select {
	case <-v.closed:
		return v.closeErr
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "close volume %q: its content is not known to be durable: %w", v.info.Name, ctx.Err())
	}
}

func (v *instance) shutdown() {
	defer close(v.closed)
	if err := v.store.close(); err != nil {
		v.closeErr = fmt.Errorf("close volume %q: %w", v.info.Name, err)
	}
}
