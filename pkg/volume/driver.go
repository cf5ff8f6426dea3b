// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Driver carries out the requests of a volume whose kind is in another package: see NewDriven.
type Driver interface {
	// Start is called once, before any other method, with the volume that the driver serves.
	Start(v *Driven)
	// Reserve prepares for depth more requests in flight, for a new queue.
	Reserve(depth int) error
	// Release takes back what Reserve has prepared, after the queue has been closed.
	Release(depth int)
	// Submit starts a request that fits the volume. It neither blocks nor allocates. The driver
	// calls r.Complete once, from any goroutine. The threads of all queues call Submit
	// concurrently.
	Submit(r *Request)
	// Resize changes the size of the storage, in bytes, or adopts it if bytes is 0, and calls
	// v.Resized. It fails with NotSupported if the driver cannot do that.
	Resize(bytes uint64) error
	// Inspect looks for damage that requests may not notice. It is called about every second, off
	// the data path.
	Inspect()
	// Close makes everything durable and frees the driver. It may block. No request is in flight,
	// and none follows.
	Close() error
}

// OwnerChecker is a Driver whose volume another program can take over. After the program has stood
// still, requests wait for CheckOwner. Its calls may be concurrent, and precede Close.
type OwnerChecker interface {
	Driver
	// CheckOwner returns nil if this program still owns the volume. It waits until it knows. If it
	// fails, it has called Driven.Lose.
	CheckOwner() error
}

// Collector is a Driver whose requests end on foreign threads. The thread of each queue collects
// them there, so that no thread of Go stands between the two.
type Collector interface {
	Driver
	// NewCollection returns where the requests of one queue end, whose doorbell is an eventfd.
	NewCollection(doorbell int) (Collection, error)
}

// Collection is where the requests of one queue end. Only the thread of the queue uses it.
type Collection interface {
	// Collect calls Complete of every request that has ended.
	Collect()
	// Arm returns false if a request has ended. Otherwise the next one that does adds 1 to the
	// doorbell, unless Disarm is called before.
	Arm() bool
	Disarm()
	// Close waits until no thread uses the doorbell any more. No request is in flight.
	Close()
}

// Driven is a volume that a Driver serves. It provides the queues, counts and logs failures, and
// rejects requests after Fail.
type Driven struct {
	*storeVolume
	lose sync.Once
	lost chan struct{}
	loss error // valid once lost is closed
}

// NewDriven returns the volume that a driver serves, and owns the driver.
func NewDriven(spec *Spec, info Info, driver Driver) *Driven {
	store := &drivenStore{Driver: driver, health: newHealth(spec), checking: make(chan struct{}, 1)}
	v := &Driven{storeVolume: newStoreVolume(info, store, store.health), lost: make(chan struct{})}
	driver.Start(v)
	if checker, ok := driver.(OwnerChecker); ok {
		store.guard = newPauseGuard(driver.Submit, checker.CheckOwner)
		store.guard.run()
	}
	v.watched()
	return v
}

// CheckOwner asks the driver, if that is an OwnerChecker.
func (v *Driven) CheckOwner(ctx context.Context) error {
	store := v.store.(*drivenStore)
	checker, ok := store.Driver.(OwnerChecker)
	if err := v.errClosed("check the owner of"); err != nil || !ok {
		return err
	}
	checked := make(chan error, 1)
	select {
	case <-v.closed: // and nothing is checked any more
		return v.errClosed("check the owner of")
	case store.checking <- struct{}{}:
		go func() {
			err := checker.CheckOwner()
			<-store.checking
			checked <- err
		}()
	case <-ctx.Done(): // an earlier check, which proves less, has not ended
	}
	select {
	case <-v.closed:
		return v.errClosed("check the owner of")
	case err := <-checked:
		return err
	case <-ctx.Done():
		return status.Errorf(status.TimeOut, "check whether this program still owns volume %q: %w",
			v.info.Name, status.ContextError(ctx))
	}
}

// NewQueue opens a queue for one thread.
func (v *Driven) NewQueue(depth int) (Queue, error) {
	driver := v.store.(*drivenStore)
	if err := v.errClosed("open queue of"); err != nil {
		return nil, err
	}
	if depth > 0 {
		if err := driver.Reserve(depth); err != nil {
			return nil, fmt.Errorf("open queue of volume %q: %w", v.info.Name, err)
		}
	}
	inner, err := v.storeVolume.NewQueue(depth)
	if err != nil {
		driver.Release(max(depth, 0))
		return nil, err
	}
	if collector, ok := driver.Driver.(Collector); ok {
		q := inner.(*queue)
		if q.collection, err = collector.NewCollection(q.doorbell.fd); err != nil {
			driver.Release(depth)
			return nil, errors.Join(fmt.Errorf("open queue of volume %q: %w", v.info.Name, err),
				inner.Close())
		}
	}
	return &drivenQueue{Queue: inner, release: sync.OnceFunc(func() { driver.Release(depth) })}, nil
}

// drivenQueue is a queue with a reservation.
type drivenQueue struct {
	Queue
	release func()
}

// Close releases the queue.
func (q *drivenQueue) Close() error {
	err := q.Queue.Close()
	if err == nil {
		q.release()
	}
	return err
}

// Resized makes Info return another size in bytes, rounded down to whole blocks. Open queues accept
// requests for a new part; if the volume has become smaller, the driver fails those beyond its end.
func (v *Driven) Resized(bytes uint64) { v.size.Store(bytes &^ (uint64(v.info.BlockSize) - 1)) }

// Fail makes the volume reject every request from now on, with an error that wraps err. message is
// what the log says.
func (v *Driven) Fail(message string, err error) {
	_ = v.health.fail(&failure{rejects: rejectAll, message: message,
		err: status.Errorf(status.IOFailed, "%w", err)})
}

// Lose is Fail for a driver that has found that this program does not own the volume any more. The
// volume rejects requests with the code of err: status.Shutdown if it contends for the ownership,
// so that the request is repeated where the volume is served next, and otherwise status.IOFailed.
func (v *Driven) Lose(message string, err error) {
	_ = v.health.fail(&failure{rejects: rejectAll, message: message, err: err})
	v.lose.Do(func() {
		v.loss = err
		close(v.lost)
	})
}

// Lost returns a channel that is closed after Lose. LossReason then returns the error of the first
// call.
func (v *Driven) Lost() <-chan struct{} { return v.lost }

// LossReason returns why this program does not own the volume any more; nil if it does.
func (v *Driven) LossReason() error {
	select {
	case <-v.lost:
		return v.loss
	default:
		return nil
	}
}

// Complete ends a request with its outcome. Only the driver that was given the request calls it.
func (r *Request) Complete(err error) {
	r.Err = err
	if s, ok := r.queue.store.(*drivenStore); ok && s.guard != nil {
		s.guard.finish(r)
		return
	}
	r.queue.complete(r)
}

// Collection returns where the request ends. Only the driver that was given the request may ask.
func (r *Request) Collection() Collection { return r.queue.collection }

// drivenStore is the store of a Driven volume.
type drivenStore struct {
	Driver
	*health
	guard    *pauseGuard   // nil if nobody can take the volume over
	checking chan struct{} // has an element while Driven.CheckOwner asks the driver
}

func (s *drivenStore) start(r *Request) carrier {
	if r.Err = s.rejection(r.Operation.FillsMemory()); r.Err != nil {
		return nil
	}
	return s
}

func (s *drivenStore) submit(r *Request) {
	if s.guard != nil {
		s.guard.submit(r)
		return
	}
	s.Submit(r)
}

func (s *drivenStore) inspect()                  { s.Inspect() }
func (s *drivenStore) resize(bytes uint64) error { return s.Resize(bytes) }

func (s *drivenStore) close() error {
	if s.guard != nil {
		s.guard.close()
	}
	s.checking <- struct{}{} // none follows
	return s.Close()
}
