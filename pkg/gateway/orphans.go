// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// orphans counts the operations of an export that are in progress although their connections have
// ended. If there are some for too long, it has the volume reopened, which ends them.
type orphans struct {
	patience time.Duration
	reopen   func()

	mu    sync.Mutex // guards the fields below
	count int
	none  chan struct{} // closed when count is 0 again; nil while it is
	timer *time.Timer   // nil while count is 0
}

// add counts n more orphans.
func (o *orphans) add(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n == 0 {
		return
	}
	if o.count == 0 {
		o.none = make(chan struct{})
		o.timer = time.AfterFunc(o.patience, o.end)
	}
	o.count += n
}

// remove counts n orphans less.
func (o *orphans) remove(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count -= n; o.count == 0 && n > 0 {
		o.timer.Stop()
		close(o.none)
		o.none, o.timer = nil, nil
	}
}

// end is called when there have been orphans for too long.
func (o *orphans) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count > 0 {
		o.reopen()
		o.timer.Reset(o.patience)
	}
}

// wait waits until there are none.
func (o *orphans) wait(ctx context.Context) error {
	for {
		o.mu.Lock()
		count, none := o.count, o.none
		o.mu.Unlock()
		if count == 0 {
			return nil
		}
		select {
		case <-none:
		case <-ctx.Done():
			return status.Errorf(status.Full, "%d requests of connections that have ended are still "+
				"in progress and could overwrite what comes now: try again later", count)
		}
	}
}
