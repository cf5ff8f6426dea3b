// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Contender is a Backend of which several programs can have a volume, while one of them owns it.
type Contender interface {
	Backend
	// Contends reports whether Open returns a volume that waits for the ownership. Otherwise the
	// other methods are not used.
	Contends() bool
	// Prepare keeps what attempts to become the owner have in common, until release. It is called
	// before each attempt, and replaces what a failed one has found to be of no use any more.
	Prepare() (release func(), err error)
	// Contend makes this program the owner, or fails with status.InUse while another one is. An
	// owner that o.IsIdle hands the volume over to a program where o.IsWanted, if the backend can
	// do that.
	Contend(spec *Spec, o *Ownership) (Owned, error)
}

// Owned is a volume that this program owns.
type Owned interface {
	Volume
	// Lost returns a channel that is closed when the program is not the owner any more; nil if the
	// program stays the owner until it closes the volume. LossReason then returns why.
	Lost() <-chan struct{}
	LossReason() error
}

// contendPause is the time between two attempts to become the owner, and between two attempts to
// close a volume that was lost.
var contendPause = time.Second

// contended is a volume that this program either owns, and then is inner, or waits to own.
type contended struct {
	spec      Spec
	backend   Contender
	log       *zap.Logger
	ownership *Ownership

	mu    sync.Mutex // guards what follows
	inner Owned      // nil of a stand-by
	info  Info       // when last owned

	stop  context.CancelFunc
	began atomic.Pointer[time.Time] // when the volume began to close
	ended chan struct{}             // closed when run has returned
}

// openContended opens a volume, as its owner if nobody else is. It fails if that is impossible for
// any other reason than the present owner.
func openContended(spec Spec, backend Contender) (Volume, error) {
	v := &contended{spec: spec, backend: backend,
		log:       spec.Logger.With(zap.String("volume", spec.Name)),
		info:      Info{Name: spec.Name, BlockSize: spec.BlockSize, Fenced: true},
		ownership: newOwnership(), ended: make(chan struct{})}
	inner, err := backend.Contend(&v.spec, v.ownership)
	if err != nil && !errors.Is(err, status.InUse) {
		return nil, err
	}
	v.ownership.set(standByError(err))
	if err == nil {
		v.inner, v.info = inner, inner.Info()
	} else {
		v.log.Info("stand-by: waiting to take the volume over", zap.Error(err))
	}
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go v.run(ctx)
	return v, nil
}

// standByError returns the error for those who want to use the volume of a stand-by.
func standByError(reason error) error {
	if reason == nil {
		return nil
	}
	return status.Errorf(status.NoLock, "this target is a stand-by: %w", reason)
}

// run keeps contending for the volume whenever this program does not own it.
func (v *contended) run(ctx context.Context) {
	defer close(v.ended)
	for ctx.Err() == nil {
		v.mu.Lock()
		inner := v.inner
		v.mu.Unlock()
		if inner == nil {
			v.contend(ctx)
			continue
		}
		select {
		case <-inner.Lost():
			v.leave(ctx, inner)
		case <-ctx.Done():
		}
	}
}

// contend tries to become the owner until it succeeds or ctx ends.
func (v *contended) contend(ctx context.Context) {
	release := func() {}
	defer func() { release() }()
	former := ""
	for {
		// What the last attempt used is kept, unless it has turned out to be of no use any more.
		next, err := v.backend.Prepare()
		if err != nil {
			v.log.Warn("cannot watch the volume's owner", zap.Error(err))
			sleep(ctx, contendPause)
			return
		}
		release()
		release = next
		inner, err := v.backend.Contend(&v.spec, v.ownership)
		if err == nil {
			v.mu.Lock()
			v.inner, v.info = inner, inner.Info()
			v.mu.Unlock()
			v.log.Warn("this target owns the volume, and serves it",
				zap.Uint64("size_bytes", inner.Info().Size))
			v.ownership.set(nil)
			return
		}
		text := err.Error()
		if errors.Is(err, status.InUse) {
			text = ""
		}
		if text != former {
			if text != "" {
				v.log.Warn("cannot take the volume over", zap.Error(err))
			}
			v.ownership.set(standByError(err))
			former = text
		}
		if !sleep(ctx, contendPause) {
			return
		}
	}
}

// leave turns the program into a stand-by, and closes the volume when nobody uses it any more.
func (v *contended) leave(ctx context.Context, inner Owned) {
	reason := inner.LossReason()
	v.log.Error("this target has lost the volume: stand-by", zap.Error(reason))
	v.ownership.set(standByError(reason))
	for {
		err := inner.Close(context.Background())
		if err != nil && errors.Is(err, status.InUse) {
			if !sleep(ctx, contendPause/10) {
				return // Close closes it
			}
			continue
		}
		if err != nil {
			v.log.Debug("closed the lost volume", zap.Error(err)) // it cannot be flushed
		}
		v.mu.Lock()
		v.inner = nil
		v.mu.Unlock()
		sleep(ctx, 2*contendPause) // a target that waits already goes first
		return
	}
}

// sleep returns false if ctx ends before the pause.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// Info returns the description of the volume; of a stand-by, what it was when last owned, with a
// size of 0 if it never was.
func (v *contended) Info() Info {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.inner != nil {
		return v.inner.Info()
	}
	return v.info
}

// Memory returns nil: the content is not in memory.
func (v *contended) Memory() *memory.Region { return nil }

// Ownership tells whether this program owns the volume.
func (v *contended) Ownership() *Ownership { return v.ownership }

// CheckOwner fails with status.NoLock at a stand-by.
func (v *contended) CheckOwner(ctx context.Context) error {
	inner, err := v.owned()
	if err != nil {
		return fmt.Errorf("check the owner of volume %q: %w", v.spec.Name, err)
	}
	return inner.CheckOwner(ctx)
}

// NewQueue opens a queue for one thread. It fails with status.NoLock at a stand-by.
func (v *contended) NewQueue(depth int) (Queue, error) {
	inner, err := v.owned()
	if err != nil {
		return nil, fmt.Errorf("open queue of volume %q: %w", v.spec.Name, err)
	}
	return inner.NewQueue(depth)
}

// Resize changes the size. It fails with status.NoLock at a stand-by.
func (v *contended) Resize(bytes uint64, shrink bool) error {
	inner, err := v.owned()
	if err != nil {
		return fmt.Errorf("resize volume %q: %w", v.spec.Name, err)
	}
	return inner.Resize(bytes, shrink)
}

// owned returns the volume that this program owns.
func (v *contended) owned() (Owned, error) {
	if v.began.Load() != nil {
		return nil, status.ErrClosed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	standBy, _ := v.ownership.State()
	if standBy == nil && v.inner == nil { // it is being lost
		standBy = standByError(status.InUse)
	}
	return v.inner, standBy
}

// Failures returns how many requests have failed since the volume was last taken over.
func (v *contended) Failures() []Failure {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.inner == nil {
		return nil
	}
	return v.inner.Failures()
}

// Status returns the state of the volume.
func (v *contended) Status() Status {
	if began := v.began.Load(); began != nil {
		return Status{State: Closed, Since: *began}
	}
	standBy, isStandBy := v.ownership.status()
	v.mu.Lock()
	defer v.mu.Unlock()
	if isStandBy || v.inner == nil {
		return standBy
	}
	return v.inner.Status()
}

// Close makes everything durable, releases the volume, and lets others own it.
func (v *contended) Close(ctx context.Context) error {
	v.began.CompareAndSwap(nil, new(time.Now()))
	v.stop()
	select {
	case <-v.ended:
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "close volume %q: %w", v.spec.Name, ctx.Err())
	}
	v.mu.Lock()
	inner := v.inner
	v.mu.Unlock()
	if inner == nil {
		return nil
	}
	err := inner.Close(ctx)
	select {
	case <-inner.Lost(): // what could not be flushed belongs to another owner
		return nil
	default:
		return err
	}
}
