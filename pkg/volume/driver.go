package volume

import (
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

// Driven is a volume that a Driver serves. It provides the queues, counts and logs failures, and
// rejects requests after Fail.
type Driven struct{ *storeVolume }

// NewDriven returns the volume that a driver serves, and owns the driver.
func NewDriven(spec *Spec, info Info, driver Driver) *Driven {
	store := &drivenStore{Driver: driver, health: newHealth(spec)}
	v := &Driven{newStoreVolume(info, store, store.health)}
	driver.Start(v)
	v.watched()
	return v
}

// NewQueue opens a queue for one thread.
func (v *Driven) NewQueue(depth int) (Queue, error) {
	driver := v.store.(*drivenStore)
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

// Complete ends a request with its outcome. Only the driver that was given the request calls it.
func (r *Request) Complete(err error) {
	r.Err = err
	r.queue.complete(r)
}

// drivenStore is the store of a Driven volume.
type drivenStore struct {
	Driver
	*health
}

func (s *drivenStore) start(r *Request) carrier {
	if r.Err = s.rejection(r.Operation.FillsMemory()); r.Err != nil {
		return nil
	}
	return s
}

func (s *drivenStore) submit(r *Request)         { s.Submit(r) }
func (s *drivenStore) inspect()                  { s.Inspect() }
func (s *drivenStore) resize(bytes uint64) error { return s.Resize(bytes) }
func (s *drivenStore) close() error              { return s.Close() }
