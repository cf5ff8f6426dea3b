//go:build faultinject

package volume

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// faultVolume is another volume that fails.
type faultVolume struct {
	Volume
	backend FaultBackend
	written atomic.Uint64 // bytes, on all queues
	queues  atomic.Uint64 // ever made
}

// Memory hides the content, so that no read goes past the faults.
func (v *faultVolume) Memory() *memory.Region { return nil }

// NewQueue implements Volume.
func (v *faultVolume) NewQueue(depth int) (Queue, error) {
	inner, err := v.Volume.NewQueue(depth)
	if err != nil {
		return nil, err
	}
	wait, err := newFaultWait(inner)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	l := &faultQueue{
		volume: v, inner: inner, wait: wait, info: v.Info(),
		random: rand.New(rand.NewPCG(v.backend.Seed, v.queues.Add(1))),
		slots:  make([]faultSlot, depth), completed: make([]*Request, depth),
		free: make([]*faultSlot, 0, depth), delayed: make([]*faultSlot, 0, depth),
	}
	for i := range l.slots {
		l.slots[i].inner.UserData = uint64(i)
		l.free = append(l.free, &l.slots[i])
	}
	return l, nil
}

// outOfSpace counts the bytes of a write and reports whether they no longer
// fit.
func (v *faultVolume) outOfSpace(r *Request) bool {
	if r.Operation != iomsg.OpWrite || !v.backend.LimitSpace {
		return false
	}
	return v.written.Add(r.Length) > v.backend.NoSpaceAfter
}

// errInjected tells injected failures from real ones.
var errInjected = errors.New("injected fault")

func injected(r *Request, cause error) error {
	return status.Errorf(status.IOFailed, "%v %d bytes at offset %d: %w: %w", r.Operation, r.Length, r.Offset, errInjected, cause)
}
