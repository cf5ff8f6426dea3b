package volume

import (
	"sync"
)

// Ownership tells whether this program owns a volume that another one can take over. Its methods
// may be called concurrently.
type Ownership struct {
	mu      sync.Mutex
	standBy error
	changed chan struct{}
}

func newOwnership(standBy error) *Ownership {
	return &Ownership{standBy: standBy, changed: make(chan struct{})}
}

// State returns nil while the program owns the volume, and otherwise why it does not. The channel
// is closed when that changes.
func (o *Ownership) State() (standBy error, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.standBy, o.changed
}

func (o *Ownership) set(standBy error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.standBy = standBy
	close(o.changed)
	o.changed = make(chan struct{})
}
