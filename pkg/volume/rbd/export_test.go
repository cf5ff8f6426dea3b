// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

import (
	"testing"

	"github.com/ceph/go-ceph/rados"
)

// HasAnswered decides whether an owner is alive, and CheckFence whether one is fenced for long
// enough.
var (
	HasAnswered = hasAnswered
	CheckFence  = checkFence
)

// GroupAddress returns the address of a group's connection in the form of Ceph's blocklist, and ""
// if there is none.
func GroupAddress(t *testing.T, group string) string {
	t.Helper()
	clusters.mu.Lock()
	var found *cluster
	for key, c := range clusters.open {
		if key.group == group {
			found = c
		}
	}
	clusters.mu.Unlock()
	if found == nil || found.connect() != nil {
		return ""
	}
	address, err := found.GetAddrs()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// ObserveTakeOvers has a test act between the steps of take-overs, until restore: listed is called
// when a contender has found out who the owner is, and dead when that has been found dead.
func ObserveTakeOvers(listed, dead func()) (restore func()) {
	former := observe
	observe = func(step takeOverStep) {
		switch step {
		case ownerListed:
			listed()
		case ownerDead:
			dead()
		}
	}
	return func() { observe = former }
}

// DelayConnect makes connections of a group fail with err, once release has been closed, until
// restore. It returns a channel that is closed when an attempt to connect has begun.
func DelayConnect(group string, release <-chan struct{}, err error) (
	begun <-chan struct{}, restore func(),
) {
	former, attempted := connect, make(chan struct{})
	connect = func(key clusterKey) (*rados.Conn, error) {
		if key.group != group {
			return former(key)
		}
		close(attempted)
		<-release
		return nil, err
	}
	return attempted, func() { connect = former }
}
