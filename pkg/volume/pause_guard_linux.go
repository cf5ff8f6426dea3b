// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pauseBound is how long a program may stand still before it has to ask whether it still owns a
// volume that others can take over; pauseClock measures that.
var (
	pauseBound = 4 * time.Second
	pauseClock = linux.BootTime
)

// pauseGuard keeps a program that has stood still, for instance because it was stopped, from going
// on as if nothing had happened: another program may own the volume by then. A goroutine beats. A
// request that finds the last beat longer ago than the bound is neither started nor completed
// before check has shown that the program still owns the volume. If it does not, the request fails.
type pauseGuard struct {
	start    func(*Request) // hands a request to the driver
	complete func(*Request) // hands a request back to its queue
	check    func() error   // returns nil while the program owns the volume; may block
	now      func() time.Duration
	bound    time.Duration
	alive    atomic.Int64 // when the goroutine last knew that the program owned the volume

	stop    chan struct{}
	beating sync.WaitGroup

	mu      sync.Mutex // guards what follows
	parked  []*Request // wait for their start
	held    []*Request // wait for their completion
	failure error      // the volume is lost
}

// never is a time at which no program has been alive.
const never = math.MinInt64 / 2

func newPauseGuard(start func(*Request), check func() error) *pauseGuard {
	return &pauseGuard{start: start, check: check, now: pauseClock, bound: pauseBound,
		complete: func(r *Request) { r.queue.complete(r) }, stop: make(chan struct{})}
}

// run starts to beat, until close.
func (g *pauseGuard) run() {
	g.alive.Store(int64(g.now()))
	g.beating.Go(func() {
		ticker := time.NewTicker(g.bound / 16)
		defer ticker.Stop()
		for {
			select {
			case <-g.stop:
				return
			case <-ticker.C:
				g.beat()
			}
		}
	})
}

func (g *pauseGuard) close() {
	close(g.stop)
	g.beating.Wait()
}

func (g *pauseGuard) hasPaused() bool { return int64(g.now())-g.alive.Load() > int64(g.bound) }

// submit starts a request, at once or after the check.
func (g *pauseGuard) submit(r *Request) {
	if g.hasPaused() {
		g.mu.Lock()
		if g.failure != nil {
			r.Err = g.failure
			g.mu.Unlock()
			g.complete(r)
			return
		}
		if g.hasPaused() {
			g.parked = append(g.parked, r)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
	g.start(r)
}

// finish completes a request, at once or after the check.
func (g *pauseGuard) finish(r *Request) {
	if g.hasPaused() {
		g.mu.Lock()
		if g.failure != nil {
			r.Err = g.failure
		} else if g.hasPaused() {
			g.held = append(g.held, r)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
	g.complete(r)
}

// beat checks after a pause, and deals with the requests that have waited for that.
func (g *pauseGuard) beat() {
	begun := g.now()
	if !g.hasPaused() {
		g.alive.Store(int64(begun))
		return
	}
	err := g.check()
	g.mu.Lock()
	if err != nil && g.failure == nil {
		g.alive.Store(never)
		g.failure = status.Errorf(status.CodeOf(err), "the program stood still for more than %v, and "+
			"has lost the volume meanwhile: %w", g.bound, err)
	}
	if err == nil {
		g.alive.Store(int64(begun)) // the check itself may have been interrupted
	}
	if err == nil && g.hasPaused() {
		g.mu.Unlock()
		return
	}
	parked, held, failure := g.parked, g.held, g.failure
	g.parked, g.held = nil, nil
	g.mu.Unlock()
	for _, r := range held {
		if failure != nil {
			r.Err = failure
		}
		g.complete(r)
	}
	for _, r := range parked {
		if failure == nil {
			g.submit(r)
			continue
		}
		r.Err = failure
		g.complete(r)
	}
}
