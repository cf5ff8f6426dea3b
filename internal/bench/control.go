package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/program"
)

// phase is how far a run is. It only grows.
type phase uint32

const (
	warmingUp phase = iota
	measuring
	draining  // no new requests
	abandoned // outstanding requests are not waited for any more
)

// control leads the workers of a run through its phases.
type control struct {
	epoch     time.Time
	hasWarmup bool
	current   atomic.Uint32
	failed    chan struct{} // signals that a worker has failed
	threads   program.Threads

	interrupted bool // set by supervise
}

func newControl(p *Parameters) *control {
	c := &control{epoch: time.Now(), hasWarmup: p.Warmup > 0, failed: make(chan struct{}, 1)}
	c.threads.OnFailure = c.reportFailure
	if !c.hasWarmup {
		c.current.Store(uint32(measuring))
	}
	return c
}

func (c *control) phase() phase { return phase(c.current.Load()) }

// nowNs is the time since the run began.
func (c *control) nowNs() int64 { return int64(time.Since(c.epoch)) }

// reportFailure has supervise end the run. It may be called by any worker.
func (c *control) reportFailure() {
	select {
	case c.failed <- struct{}{}:
	default: // it knows
	}
}

// lasts is how long a phase may last, 0 if it has no bound.
func (p *Parameters) lasts(now phase) time.Duration {
	switch now {
	case warmingUp:
		return p.Warmup
	case measuring:
		return p.Runtime
	case draining:
		return p.DrainTimeout
	}
	return 0
}

// progressInterval is how often an observer hears of a run.
const progressInterval = time.Second

// supervise moves from phase to phase until all workers have ended. observe
// is called now and then, and may be nil.
func (c *control) supervise(ctx context.Context, p *Parameters, ended <-chan struct{}, observe func()) {
	interrupt := ctx.Done()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	c.enter(c.phase(), p, due)
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-interrupt:
			interrupt, c.interrupted = nil, true
			c.advance(draining, p, due)
		case <-c.failed:
			c.advance(draining, p, due)
		case <-due.C:
			c.advance(c.phase()+1, p, due)
		case <-tick.C:
			observe()
		}
	}
}

func (c *control) advance(next phase, p *Parameters, due *time.Timer) {
	if next > c.phase() {
		c.enter(next, p, due)
	}
}

func (c *control) enter(next phase, p *Parameters, due *time.Timer) {
	c.current.Store(uint32(next))
	due.Stop()
	if bound := p.lasts(next); bound > 0 {
		due.Reset(bound)
	}
	c.threads.Wake()
}
