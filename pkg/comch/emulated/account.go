// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"math"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// holdings is what a connection takes from its process. Descriptors count from when they are
// created or received until they are closed, and rings from before their allocation until their
// memory is free: what waits to be closed is still held.
type holdings struct {
	descriptors int
	ringBytes   int
}

// account bounds the holdings of a connection. Its parents are the accounts of the server and of
// the provider, which sum up the holdings of all their connections.
//
// A connection may take no more from a parent than it leaves free. So nobody can take everything:
// n greedy connections together leave one share in n+1, of which a newcomer can take half.
type account struct {
	name   string // in errors
	parent *account

	mu    sync.Mutex
	limit holdings
	held  holdings
}

var unlimited = holdings{descriptors: math.MaxInt, ringBytes: math.MaxInt}

// setLimit changes the limit. What is held stays.
func (a *account) setLimit(limit holdings) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit = limit
}

// charge adds to the holdings, in any case, and returns an error if they now exceed a limit. It is
// for what exists already.
func (a *account) charge(h holdings) error {
	defer a.lock()()
	for level := a; level != nil; level = level.parent {
		level.held = level.held.plus(h)
	}
	return a.checkLocked(h, holdings{})
}

// reserve adds to the holdings unless they would exceed a limit. It is for what does not exist yet:
// others never see holdings that were refused.
func (a *account) reserve(h holdings) error {
	defer a.lock()()
	if err := a.checkLocked(h, h); err != nil {
		return err
	}
	for level := a; level != nil; level = level.parent {
		level.held = level.held.plus(h)
	}
	return nil
}

// lock locks the account and its parents, and returns a function that unlocks them.
func (a *account) lock() (unlock func()) {
	for level := a; level != nil; level = level.parent {
		level.mu.Lock()
	}
	return func() {
		for level := a; level != nil; level = level.parent {
			level.mu.Unlock()
		}
	}
}

func (h holdings) plus(more holdings) holdings {
	return holdings{h.descriptors + more.descriptors, h.ringBytes + more.ringBytes}
}

// release takes from the holdings.
func (a *account) release(h holdings) {
	for level := a; level != nil; level = level.parent {
		level.mu.Lock()
		level.held.descriptors -= h.descriptors
		level.held.ringBytes -= h.ringBytes
		level.mu.Unlock()
	}
}

func (a *account) current() holdings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// checkLocked checks the limits for a charge of h to a connection. pending is what is not part of
// the holdings yet.
func (a *account) checkLocked(h, pending holdings) error {
	var own holdings
	for level := a; level != nil; level = level.parent {
		all := level.held.plus(pending)
		if level == a {
			own = all
		}
		if err := level.checkLevel(h, own, all, level == a); err != nil {
			return err
		}
	}
	return nil
}

// checkLevel checks the limits of one account, of which the connection takes own, and all of its
// connections take all.
func (a *account) checkLevel(h, own, all holdings, isOwn bool) error {
	held, limit := all.descriptors, a.limit.descriptors
	switch {
	case h.descriptors == 0:
	case held > limit:
		return status.Errorf(status.Full,
			"%s would hold %d descriptors, counting those that wait to be closed: its limit is %d",
			a.name, held, limit)
	case !isOwn && own.descriptors > limit-held:
		return status.Errorf(status.Full,
			"connection would hold %d descriptors and leave only %d of the %d of its %s to others: "+
				"it may take no more than it leaves", own.descriptors, limit-held, limit, a.name)
	}
	held, limit = all.ringBytes, a.limit.ringBytes
	switch {
	case h.ringBytes == 0:
	case held > limit:
		return status.Errorf(status.NoMemory,
			"ring takes %d bytes, but only %d of the %d bytes of ring memory of the %s are left",
			h.ringBytes, max(limit-(held-h.ringBytes), 0), limit, a.name)
	case !isOwn && own.ringBytes > limit-held:
		return status.Errorf(status.NoMemory,
			"ring takes %d bytes: the connection's rings would take %d and leave only %d of the %d "+
				"bytes of ring memory of its %s to others: it may take no more than it leaves",
			h.ringBytes, own.ringBytes, limit-held, limit, a.name)
	}
	return nil
}
