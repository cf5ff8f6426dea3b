// SPDX-License-Identifier: Apache-2.0

// Package users counts what uses a DMA device, so that it is not closed before.
package users

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Users counts the engines and registrations of a device. Any goroutine may call its methods.
type Users struct {
	Name string // of the device, for errors

	mu     sync.Mutex
	closed bool
	counts [kinds]int
}

// Kind is a kind of user.
type Kind int

// The kinds of users.
const (
	Engine Kind = iota
	Registration
	kinds
)

// Add counts a user. It fails with status.BadState if the device is closed.
func (u *Users) Add(kind Kind) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return status.Errorf(status.BadState, "device %s is closed", u.Name)
	}
	u.counts[kind]++
	return nil
}

// Remove drops a user.
func (u *Users) Remove(kind Kind) {
	u.mu.Lock()
	u.counts[kind]--
	u.mu.Unlock()
}

// Close lets nothing use the device any more, and calls release, which may be nil, the first time.
// It fails with status.InUse while there are users.
func (u *Users) Close(release func() error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if engines, registrations := u.counts[Engine], u.counts[Registration]; engines > 0 ||
		registrations > 0 {
		return status.Errorf(status.InUse, "close device %s: %d contexts and %d memory maps use it",
			u.Name, engines, registrations)
	}
	if u.closed {
		return nil
	}
	u.closed = true
	if release == nil {
		return nil
	}
	return release()
}
