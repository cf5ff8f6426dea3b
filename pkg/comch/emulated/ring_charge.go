// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// On the server, ringMemory allocates a ring; on the client, it maps the ring that the server has
// sent, and takes ownership of that descriptor, or -1, unless it fails. The account is charged for
// the ring.
func (c *connection) ringMemory(layout ringLayout, descriptor int) (*memory.Region, error) {
	charged := holdings{ringBytes: layout.total}
	if c.role == serverRole {
		charged.descriptors = 1
	}
	if err := c.chargeRing(charged); err != nil {
		return nil, err
	}
	var region *memory.Region
	var err error
	if c.role == serverRole {
		region, err = c.allocateInTurn(layout)
	} else {
		region, err = importRing(descriptor, layout)
	}
	if err != nil {
		c.account.release(charged)
	}
	return region, err
}

// memoryTimeout bounds how long a new ring waits for the memory of old ones.
const memoryTimeout = time.Second

// chargeRing frees rings that nobody needs any more if there is no room.
func (c *connection) chargeRing(h holdings) error {
	makeRoom := []func(){
		func() { c.cleanup.waitFor(0, memoryTimeout, c.done) },
		func() { c.pool.lingering.freeAll(c.peer.UID, memoryTimeout, c.done) },
	}
	for {
		err := c.account.reserve(h)
		if err == nil || len(makeRoom) == 0 {
			return err
		}
		makeRoom[0]()
		makeRoom = makeRoom[1:]
	}
}

// allocateInTurn allocates a ring while no other connection of the server does.
func (c *connection) allocateInTurn(layout ringLayout) (*memory.Region, error) {
	select {
	case c.pool.allocating <- struct{}{}:
	case <-c.done:
		return nil, c.notConnected("allocate ring")
	}
	defer func() { <-c.pool.allocating }()
	return allocateRing(layout)
}
