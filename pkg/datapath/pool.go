package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// Pool is workers that serve the same lanes: those of a process, or of one of
// its channels.
type Pool struct {
	workers []*Worker
}

// StartPool starts a worker for each element of cpus, which is a core to pin
// it to or NoCPU.
func StartPool(cpus []int, policy progress.Policy) (*Pool, error) {
	p := &Pool{}
	for i, cpu := range cpus {
		w, err := StartWorker(WorkerConfig{CPU: cpu, Policy: policy})
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

// Workers returns all workers, for whoever collects metrics.
func (p *Pool) Workers() []*Worker { return p.workers }

// Stop stops all workers. All lanes must be closed.
func (p *Pool) Stop() error {
	var errs []error
	for _, w := range p.workers {
		errs = append(errs, w.Stop())
	}
	return errors.Join(errs...)
}
