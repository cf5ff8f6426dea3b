// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"sync"
	"time"
)

// Ownership tells whether this program owns a volume that another one can take over, and how much
// the volume is wanted here. Its methods may be called concurrently; Use, Want, IsIdle, and
// IsWanted on nil, too, where nobody can take the volume over.
type Ownership struct {
	mu      sync.Mutex
	standBy error
	since   time.Time // when standBy was set
	changed chan struct{}
	users   int
	idle    time.Time // since when there are no users, or the program owns the volume
	wanted  time.Time // when somebody last wanted to use the volume of a stand-by
}

// An owner that nobody has used for idleBound hands the volume over to a stand-by that somebody has
// wanted to use within wantedBound, which exceeds the default pause between two attempts of a
// relay.
var (
	idleBound   = 3 * time.Second
	wantedBound = 10 * time.Second
)

func newOwnership() *Ownership {
	return &Ownership{changed: make(chan struct{}), idle: time.Now()}
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
	now := time.Now()
	o.standBy, o.since, o.idle = standBy, now, now
	close(o.changed)
	o.changed = make(chan struct{})
}

// status returns the state of a stand-by, and false if this program owns the volume.
func (o *Ownership) status() (Status, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return Status{State: StandBy, Reason: o.standBy, Since: o.since}, o.standBy != nil
}

// Use counts a user of the volume, until the returned function is called.
func (o *Ownership) Use() (release func()) {
	if o == nil {
		return func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.users++
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.users--
		o.idle = time.Now()
	})
}

// Want notes that somebody wants to use the volume, whose owner is elsewhere.
func (o *Ownership) Want() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = time.Now()
}

// IsIdle reports whether nobody has used the volume for some seconds.
func (o *Ownership) IsIdle() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.users == 0 && time.Since(o.idle) > idleBound
}

// IsWanted reports whether somebody has wanted to use the volume of this stand-by lately.
func (o *Ownership) IsWanted() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.wanted.IsZero() && time.Since(o.wanted) < wantedBound
}
