// SPDX-License-Identifier: Apache-2.0

// Package datapath is the data path of the relay and of the target: worker threads that poll
// progress engines and move 64-byte IO messages between Comch, RDMA, and volumes.
//
// A Worker is one OS thread. It serves lanes: the relay's share of a client queue (RelayLane)
// forwards requests and responses, the target's share (TargetLane) carries the requests out. A lane
// belongs to its worker's thread, and the control plane reaches it by commands. Nothing on the data
// path allocates, locks, or logs.
//
// Read relay_path.go for the relay's side of an IO, target_path.go for the target's, and lane.go
// for the life of a lane.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// NoCPU leaves a worker's thread unpinned.
const NoCPU = -1

// workerConfig configures a worker.
type workerConfig struct {
	// CPU is the core to pin the thread to, or NoCPU.
	CPU    int
	Policy progress.Policy
}

// Worker is an OS thread with a progress engine, the lanes that it serves, and a completion queue
// on each RDMA device that the lanes use. Its methods may be called concurrently.
type Worker struct {
	cpu    int
	engine *progress.Engine
	lanes  atomic.Int32

	dispatchers map[rdma.Device]*dispatcher // belongs to the thread; only grows

	stopping atomic.Bool
	ended    chan struct{}
}

var errWorkerStopped = status.Errorf(status.Shutdown, "the worker has stopped")

// startWorker starts a worker's thread. Stop ends it.
func startWorker(config workerConfig) (*Worker, error) {
	engine, err := progress.NewEngine(config.Policy)
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &Worker{
		cpu: config.CPU, engine: engine, dispatchers: make(map[rdma.Device]*dispatcher),
		ended: make(chan struct{}),
	}
	started := make(chan error, 1)
	go w.run(config, started)
	if err := <-started; err != nil {
		<-w.ended
		_ = engine.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	return w, nil
}

func (w *Worker) run(config workerConfig, started chan<- error) {
	defer close(w.ended)
	if config.Policy.Mode != progress.Stepped {
		// The thread is never unlocked: one with its own affinity must not return to the runtime's
		// pool, so it ends with this goroutine.
		runtime.LockOSThread()
	}
	if config.CPU != NoCPU {
		if err := affinity.Pin(config.CPU); err != nil {
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
	<-w.ended
	var errs []error
	for _, d := range w.dispatchers {
		errs = append(errs, d.queue.Close())
	}
	if err := errors.Join(append(errs, w.engine.Close())...); err != nil {
		return fmt.Errorf("stop worker: %w", err)
	}
	return nil
}

// CheckAlive wakes the worker and waits for one turn of its loop. If ctx ends first, it fails:
// something that the worker polls has not returned.
func (w *Worker) CheckAlive(ctx context.Context) error { return w.do(ctx, func() {}) }

// Lanes returns the number of lanes that the worker serves.
func (w *Worker) Lanes() int { return int(w.lanes.Load()) }

// CPU returns the core that the worker is pinned to, or NoCPU.
func (w *Worker) CPU() int { return w.cpu }

// Stats returns the polling counts of the worker's engine.
func (w *Worker) Stats() progress.Stats { return w.engine.Stats() }

// do runs command on the worker's thread and waits until it returns. If ctx ends before the command
// has begun, the command never runs and do fails.
func (w *Worker) do(ctx context.Context, command func()) error {
	var claimed atomic.Bool // by the worker, to run it, or by the caller, to cancel it
	done := make(chan struct{})
	accepted := w.engine.Do(func() {
		if claimed.Swap(true) {
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
	case <-w.ended:
		failure = errWorkerStopped
	case <-ctx.Done():
		failure = fmt.Errorf("wait for worker: %w", ctx.Err())
	}
	if claimed.Swap(true) {
		<-done
		return nil
	}
	return failure
}

// dispatcherOn returns the worker's dispatcher for the connections of a device. The first lane on
// the device creates it.
func (w *Worker) dispatcherOn(ctx context.Context, device rdma.Device) (*dispatcher, error) {
	var d *dispatcher
	if err := w.do(ctx, func() { d = w.dispatchers[device] }); err != nil || d != nil {
		return d, err
	}
	queue, err := device.NewCompletionQueue(completionQueueCapacity)
	if err != nil {
		return nil, fmt.Errorf("create completion queue: %w", err)
	}
	var failed error
	err = w.do(ctx, func() {
		if d = w.dispatchers[device]; d != nil {
			return // another lane was faster
		}
		if failed = w.engine.AddWaiter(queue); failed != nil {
			return
		}
		d = &dispatcher{queue: queue}
		if failed = w.engine.Add(d); failed == nil {
			w.dispatchers[device] = d
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, errors.Join(err, queue.Close())
	}
	if d.queue != queue {
		return d, queue.Close()
	}
	return d, nil
}

// Pool is a set of workers that share the lanes of a process, or of one channel.
type Pool struct {
	workers []*Worker
}

// StartPool starts a worker for each element of cpus, which is a core to pin it to or NoCPU.
func StartPool(cpus []int, policy progress.Policy) (*Pool, error) {
	p := &Pool{}
	for i, cpu := range cpus {
		w, err := startWorker(workerConfig{CPU: cpu, Policy: policy})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("worker %d of %d: %w", i, len(cpus), err), p.Stop())
		}
		p.workers = append(p.workers, w)
	}
	return p, nil
}

// Pick returns the worker with the fewest lanes.
func (p *Pool) Pick() *Worker {
	picked := p.workers[0]
	for _, w := range p.workers[1:] {
		if w.lanes.Load() < picked.lanes.Load() {
			picked = w
		}
	}
	return picked
}

// Workers returns all workers, for metrics.
func (p *Pool) Workers() []*Worker { return p.workers }

// Stop stops all workers. All lanes must be closed.
func (p *Pool) Stop() error {
	var errs []error
	for _, w := range p.workers {
		errs = append(errs, w.Stop())
	}
	return errors.Join(errs...)
}
