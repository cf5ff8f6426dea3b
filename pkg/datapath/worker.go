// Package datapath is the engine: pinned threads that poll progress engines
// and move 64-byte IO messages between Comch and RDMA.
//
// A Worker is one OS thread. It serves lanes: the relay's side of a queue
// (RelayLane) forwards messages, the target's side (TargetLane) carries them
// out. A lane belongs to its worker's thread; the control plane reaches it by
// commands. Nothing on the data path allocates, locks or logs.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// NoCPU leaves a worker's thread where the scheduler puts it.
const NoCPU = -1

// completionBatch is how many RDMA completions a worker takes per poll.
const completionBatch = 64

// completionQueueCapacity bounds the work requests of all lanes of a worker.
const completionQueueCapacity = 1 << 16

// WorkerConfig says how to run a worker.
type WorkerConfig struct {
	// CPU is the core to pin the thread to, or NoCPU.
	CPU    int
	Policy progress.Policy
}

// Worker is an OS thread with a progress engine, the lanes that it serves, and
// a completion queue on each RDMA device that they use.
type Worker struct {
	cpu    int
	engine *progress.Engine
	lanes  atomic.Int32

	mu          sync.Mutex // guards dispatchers, which only grow
	dispatchers map[rdma.Device]*dispatcher

	stopping atomic.Bool
	stopped  chan struct{}
}

var errWorkerStopped = status.Errorf(status.Shutdown, "the worker has stopped")

// StartWorker starts a worker. It ends with Stop.
func StartWorker(config WorkerConfig) (*Worker, error) {
	engine, err := progress.NewEngine(config.Policy)
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &Worker{cpu: config.CPU, engine: engine, dispatchers: make(map[rdma.Device]*dispatcher), stopped: make(chan struct{})}
	started := make(chan error, 1)
	go w.run(config.CPU, started)
	if err := <-started; err != nil {
		<-w.stopped
		_ = engine.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	return w, nil
}

func (w *Worker) run(cpu int, started chan<- error) {
	defer close(w.stopped)
	// Never unlocked: a thread with an affinity of its own must not go back
	// to the runtime's pool, it ends with this goroutine.
	runtime.LockOSThread()
	if cpu != NoCPU {
		if err := affinity.Pin(cpu); err != nil {
			started <- err
			return
		}
	}
	started <- nil
	for !w.stopping.Load() {
		w.engine.Idle(w.engine.Progress())
	}
}

// Stop ends the thread and releases the worker. All lanes must be closed.
func (w *Worker) Stop() error {
	w.stopping.Store(true)
	w.engine.Wake()
	<-w.stopped
	var errs []error
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.dispatchers {
		errs = append(errs, d.queue.Close())
	}
	if err := errors.Join(append(errs, w.engine.Close())...); err != nil {
		return fmt.Errorf("stop worker: %w", err)
	}
	return nil
}

// CheckAlive makes the worker's thread go through its loop, waking it if it
// sleeps, and fails if it has not by the end of ctx: something that it polls
// does not return.
func (w *Worker) CheckAlive(ctx context.Context) error { return w.do(ctx, func() {}) }

// hasStopped reports whether the thread has ended.
func (w *Worker) hasStopped() bool {
	select {
	case <-w.stopped:
		return true
	default:
		return false
	}
}

// Lanes is how many lanes the worker serves.
func (w *Worker) Lanes() int { return int(w.lanes.Load()) }

// CPU is the core that the worker is pinned to, or NoCPU.
func (w *Worker) CPU() int { return w.cpu }

// dispatcherOn returns the worker's dispatcher for the connections of a
// device, which is made when the first lane needs it.
func (w *Worker) dispatcherOn(ctx context.Context, device rdma.Device) (*dispatcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.dispatchers[device]; d != nil {
		return d, nil
	}
	queue, err := device.NewCompletionQueue(completionQueueCapacity)
	if err != nil {
		return nil, fmt.Errorf("create completion queue: %w", err)
	}
	d := &dispatcher{queue: queue}
	var failed error
	err = w.do(ctx, func() {
		if failed = w.engine.AddWaiter(queue); failed == nil {
			w.engine.Add(d)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, errors.Join(err, queue.Close())
	}
	w.dispatchers[device] = d
	return d, nil
}

// Stats are the polling counts of the worker's engine.
func (w *Worker) Stats() progress.Stats { return w.engine.Stats() }

// do runs command on the worker's thread and waits for its end. If ctx ends
// before the command has begun, it never runs and do fails.
func (w *Worker) do(ctx context.Context, command func()) error {
	var taken atomic.Bool // by the worker, or by the caller who gives up
	done := make(chan struct{})
	accepted := w.engine.Do(func() {
		if taken.Swap(true) {
			return
		}
		command()
		close(done)
	})
	if !accepted {
		return errWorkerStopped
	}
	var failure error
	select {
	case <-done:
		return nil
	case <-w.stopped:
		failure = errWorkerStopped
	case <-ctx.Done():
		failure = fmt.Errorf("wait for worker: %w", ctx.Err())
	}
	if taken.Swap(true) {
		<-done
		return nil
	}
	return failure
}
