// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// LateConfig configures a Late volume.
type LateConfig struct {
	// Spec describes the volume.
	Spec Spec
	// Open opens it; nil means the function Open.
	Open func(Spec) (Volume, error)
	// Pauses has the pauses between attempts, of which there is no end.
	Pauses retry.Policy
	// Silence is how long an attempt may take until the volume counts as failed. The attempt goes
	// on, and no other one begins.
	Silence time.Duration
	// OnOpen is called when the volume is open. It may be nil.
	OnOpen func(Volume)
	// Refuses reports whether the volume's user reports the error of the first attempt and gives up
	// on the volume. The log does not have the error then, and no attempt follows until Retry. If
	// it is nil, attempts follow any error.
	Refuses func(error) bool
}

// Late is a volume that is opened when its storage allows that. Until then its state is Opening or
// Failed, and it has no queues.
type Late struct {
	config LateConfig
	log    *zap.Logger
	wake   chan struct{} // has an element when the next attempt is not to wait
	stop   context.CancelFunc
	tried  chan struct{} // closed when the outcome of the first attempt is known
	ended  chan struct{} // closed when run has returned
	inner  atomic.Pointer[Volume]

	mu     sync.Mutex // guards what follows
	status Status     // until the volume is open
}

// OpenLate returns a volume that is opened in the background, now and after rising pauses, until
// that succeeds.
func OpenLate(config LateConfig) *Late {
	if config.Open == nil {
		config.Open = Open
	}
	if config.OnOpen == nil {
		config.OnOpen = func(Volume) {}
	}
	if config.Refuses == nil {
		config.Refuses = func(error) bool { return false }
	}
	log := config.Spec.Logger
	if log == nil {
		log = zap.NewNop()
	}
	ctx, stop := context.WithCancel(context.Background())
	v := &Late{config: config, log: log.With(zap.String("volume", config.Spec.Name)),
		wake: make(chan struct{}, 1), stop: stop,
		tried: make(chan struct{}), ended: make(chan struct{}),
		status: Status{State: Opening, Since: time.Now()}}
	go v.run(ctx)
	return v
}

// run opens the volume, unless ctx ends before.
func (v *Late) run(ctx context.Context) {
	defer close(v.ended)
	isTried := sync.OnceFunc(func() { close(v.tried) })
	defer isTried()
	policy := v.config.Pauses
	policy.Attempts, policy.Total = retry.AnyNumber(), retry.Forever()
	schedule := policy.Begin(time.Now())
	_, _ = schedule.Next(time.Now()) // the first attempt follows at once
	never := func(error) bool { return false }
	refuses := v.config.Refuses
	for {
		opened, err := v.attempt(ctx, func(err error) {
			v.failed(err, schedule.Attempt(), 0)
			refuses = never
			isTried()
		})
		if err == nil {
			v.inner.Store(&opened)
			v.config.OnOpen(opened)
			return
		}
		if ctx.Err() != nil {
			return
		}
		attempt := schedule.Attempt()
		var due <-chan time.Time
		if refuses(err) {
			_ = v.setFailed(err, attempt, 0)
		} else {
			pause, _ := schedule.Next(time.Now()) // has no end
			v.failed(err, attempt, pause)
			due = time.After(pause)
		}
		refuses = never
		isTried()
		select {
		case <-ctx.Done():
			return
		case <-v.wake:
			schedule = policy.Begin(time.Now())
			_, _ = schedule.Next(time.Now())
		case <-due:
		}
	}
}

// attempt opens the volume once. It calls isSilent if that takes long. A volume that is opened
// after the end of ctx is closed again.
func (v *Late) attempt(ctx context.Context, isSilent func(error)) (Volume, error) {
	type outcome struct {
		volume Volume
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		o.volume, o.err = v.config.Open(v.config.Spec)
		ended <- o
	}()
	silence := time.NewTimer(v.config.Silence)
	defer silence.Stop()
	for {
		select {
		case o := <-ended:
			return o.volume, o.err
		case <-silence.C:
			isSilent(status.Errorf(status.TimeOut, "open volume %q: its storage has not answered within "+
				"%v: look at the kernel's log, and at the mount or the device", v.config.Spec.Name,
				v.config.Silence))
		case <-ctx.Done():
			go func() {
				if o := <-ended; o.err == nil {
					if err := o.volume.Close(context.Background()); err != nil {
						v.log.Error("close volume that was opened too late", zap.Error(err))
					}
				}
			}()
			return nil, ctx.Err()
		}
	}
}

// failed notes a failed attempt, and when the next one follows, if the failed one has ended. The
// log has each reason once, until it changes.
func (v *Late) failed(reason error, attempt int, pause time.Duration) {
	former := v.setFailed(reason, attempt, pause)
	level := zap.ErrorLevel
	if former != nil && former.Error() == reason.Error() {
		level = zap.DebugLevel
	}
	v.log.Log(level, "volume cannot be opened: the target tries again, and serves the others",
		zap.Error(reason), zap.Int("attempt", attempt), zap.Duration("next_in", pause))
}

// setFailed is failed without the log. It returns the reason of the failure before, or nil.
func (v *Late) setFailed(reason error, attempt int, pause time.Duration) (former error) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.status
	v.status = Status{State: Failed, Reason: reason, Since: now, Attempt: attempt}
	if before.State == Failed {
		v.status.Since = before.Since
	}
	if pause > 0 {
		v.status.NextTry = now.Add(pause)
	}
	return before.Reason
}

// Retry makes the next attempt follow at once. It has no effect on a volume that is open.
func (v *Late) Retry() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Tried returns a channel that is closed when the first attempt has ended, or takes long.
func (v *Late) Tried() <-chan struct{} { return v.tried }

// Opened returns the volume, nil until it is open.
func (v *Late) Opened() Volume {
	if inner := v.inner.Load(); inner != nil {
		return *inner
	}
	return nil
}

// Info returns the description of the volume; until it is open, only its name and block size.
func (v *Late) Info() Info {
	if inner := v.Opened(); inner != nil {
		return inner.Info()
	}
	return Info{Name: v.config.Spec.Name, BlockSize: v.config.Spec.BlockSize}
}

// Memory returns the region that holds the content, nil until the volume is open.
func (v *Late) Memory() *memory.Region {
	if inner := v.Opened(); inner != nil {
		return inner.Memory()
	}
	return nil
}

// Ownership tells whether this program owns the volume; nil until it is open.
func (v *Late) Ownership() *Ownership {
	if inner := v.Opened(); inner != nil {
		return inner.Ownership()
	}
	return nil
}

// CheckOwner fails until the volume is open.
func (v *Late) CheckOwner(ctx context.Context) error {
	inner := v.Opened()
	if inner == nil {
		return fmt.Errorf("check the owner of volume %q: %w", v.config.Spec.Name, v.absence())
	}
	return inner.CheckOwner(ctx)
}

// NewQueue opens a queue for one thread. It fails until the volume is open.
func (v *Late) NewQueue(depth int) (Queue, error) {
	inner := v.Opened()
	if inner == nil {
		return nil, fmt.Errorf("open queue of volume %q: %w", v.config.Spec.Name, v.absence())
	}
	return inner.NewQueue(depth)
}

// Resize changes the size. It fails until the volume is open.
func (v *Late) Resize(bytes uint64, shrink bool) error {
	inner := v.Opened()
	if inner == nil {
		return fmt.Errorf("resize volume %q: %w", v.config.Spec.Name, v.absence())
	}
	return inner.Resize(bytes, shrink)
}

// absence returns why the volume cannot be used.
func (v *Late) absence() error {
	now := v.Status()
	if now.State == Closed {
		return status.ErrClosed
	}
	if now.Reason == nil {
		return status.Errorf(status.BadState, "it is %s", now.State)
	}
	return status.Errorf(status.BadState, "it is %s: %w", now.State, now.Reason)
}

// Failures returns how many requests have failed.
func (v *Late) Failures() []Failure {
	if inner := v.Opened(); inner != nil {
		return inner.Failures()
	}
	return nil
}

// Status returns the state of the volume.
func (v *Late) Status() Status {
	if inner := v.Opened(); inner != nil {
		return inner.Status()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.status
}

// Close makes everything durable and releases the volume. One that is not open yet is not opened
// any more.
func (v *Late) Close(ctx context.Context) error {
	v.stop()
	<-v.ended // at once: it waits for nothing that ctx does not end
	if inner := v.Opened(); inner != nil {
		return inner.Close(ctx)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.status.State != Closed {
		v.status = Status{State: Closed, Since: time.Now()}
	}
	return nil
}
