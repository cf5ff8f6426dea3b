// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"fmt"
	"sync"
	"time"
)

// checkpointInterval is the time between checkpoints. What is moved after the last one is moved
// again if the process is killed.
const checkpointInterval = 2 * time.Second

// beginCheckpoints makes checkpoints until the function that it returns is called, which returns
// the error that has ended them. fail is called at once when there is one.
func (c *Config) beginCheckpoints(j job, fail func()) (end func() error) {
	if c.Checkpoint == nil {
		return func() error { return nil }
	}
	ended, failure := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(checkpointInterval)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				failure <- nil
				return
			case <-tick.C:
			}
			if err := c.checkpoint(j); err != nil {
				fail()
				failure <- err
				return
			}
		}
	}()
	return func() error {
		close(ended)
		return <-failure
	}
}

func (c *Config) checkpoint(j job) error {
	if c.Checkpoint == nil {
		return nil
	}
	bytes, err := j.checkpoint()
	if err == nil {
		err = c.Checkpoint(bytes)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// frontier follows extents that are moved in any order, and knows up to where all of them have
// been. Any thread may use it.
type frontier struct {
	mu      sync.Mutex
	reached uint64
	beyond  map[uint64]uint64 // extents behind a gap: where each begins and ends
}

// newFrontier returns a frontier for extents from start on.
func newFrontier(start uint64) *frontier {
	return &frontier{reached: start, beyond: make(map[uint64]uint64)}
}

// add records that the range from start to end has been moved.
func (f *frontier) add(start, end uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beyond[start] = end
	for end, found := f.beyond[f.reached]; found; end, found = f.beyond[f.reached] {
		delete(f.beyond, f.reached)
		f.reached = end
	}
}

// position returns the offset up to which everything has been moved.
func (f *frontier) position() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reached
}
