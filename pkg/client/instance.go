package client

import (
	"crypto/rand"
	"sync/atomic"
)

// Instance identifies a client across sessions. A write whose session ended
// before it was answered may still be carried out by the target. A volume
// that is opened again with the same Instance is served only when all IO of
// the sessions before it has ended, so that no such write can strike later.
// Volumes that are open at the same time need instances of their own.
type Instance struct {
	id    [16]byte
	epoch atomic.Uint64
}

// NewInstance makes an instance that nobody else has.
func NewInstance() *Instance {
	i := &Instance{}
	_, _ = rand.Read(i.id[:]) // never fails
	return i
}

// next begins an epoch.
func (i *Instance) next() (id [16]byte, epoch uint64) { return i.id, i.epoch.Add(1) }
