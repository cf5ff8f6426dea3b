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

// charge adds to the holdings, in any case, and returns an error if they now exceed a limit.
func (a *account) charge(h holdings) error {
	var own holdings
	var err error
	for level := a; level != nil; level = level.parent {
		level.mu.Lock()
		level.held.descriptors += h.descriptors
		level.held.ringBytes += h.ringBytes
		if level == a {
			own = level.held
		}
		if err == nil {
			err = level.checkLocked(h, own, level == a)
		}
		level.mu.Unlock()
	}
	return err
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

// checkLocked checks the holdings after a charge of h to a connection that now holds own.
func (a *account) checkLocked(h, own holdings, isOwn bool) error {
	held, limit := a.held.descriptors, a.limit.descriptors
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
	held, limit = a.held.ringBytes, a.limit.ringBytes
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

// pool is what the connections of one server share. Other connections have one each.
type pool struct {
	account account
	// allocating holds a token while a ring is being allocated. Connections take turns, so many
	// that create rings without end delay another by one ring each.
	allocating chan struct{}
	lingering  lingeringRings
}

func newPool(parent *account, limit holdings) *pool {
	return &pool{
		account:    account{name: "server", parent: parent, limit: limit},
		allocating: make(chan struct{}, 1),
	}
}

// newAccount returns the account of a connection that takes from the pool. The connection's socket
// is charged already.
func (p *pool) newAccount(limits Limits) *account {
	a := &account{name: "connection", parent: &p.account, limit: limits.ofConnection()}
	_ = a.charge(holdings{descriptors: 1}) // the server has checked
	return a
}

// checkNewcomer returns an error if the pool has no room for another connection.
func (p *pool) checkNewcomer() error {
	newcomer := account{name: "connection", parent: &p.account, limit: unlimited}
	socket := holdings{descriptors: 1}
	defer newcomer.release(socket)
	return newcomer.charge(socket)
}
