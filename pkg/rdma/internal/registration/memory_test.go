// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const allRights = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite

func register(t *testing.T, d *Domain) *Region {
	t.Helper()
	r, err := d.Register(memory.Wrap(make([]byte, 64)), allRights)
	if err != nil {
		t.Fatal(err)
	}
	return r.(*Region)
}

func TestDeregisterWaitsForUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := register(t, NewDomain("test", NewTable(), func() {}))
		for range 2 {
			if !r.Acquire() {
				t.Fatal("registered memory cannot be used")
			}
		}
		deregistered := false
		go func() {
			_ = r.Deregister() // never fails
			deregistered = true
		}()
		for range 2 {
			synctest.Wait()
			if deregistered {
				t.Fatal("Deregister has not waited")
			}
			if r.Acquire() {
				t.Fatal("memory is used although it is being deregistered")
			}
			r.Release()
		}
		synctest.Wait()
		if !deregistered {
			t.Error("Deregister still waits although nobody uses the memory")
		}
		if r.Acquire() {
			t.Error("deregistered memory is used")
		}
	})
}

func TestADomainInUseCannotBeClosed(t *testing.T) {
	closed := 0
	d := NewDomain("test", NewTable(), func() { closed++ })
	r := register(t, d)
	if !d.Acquire() { // as a connection does
		t.Fatal("a connection cannot use an open domain")
	}
	for what, release := range map[string]func(){
		"memory": func() { _ = r.Deregister() }, "a connection": d.Release,
	} {
		if err := d.Close(); !errors.Is(err, status.InUse) || closed > 0 {
			t.Errorf("close a domain with %s: %v", what, err)
		}
		release()
	}
	if err := d.Close(); err != nil || closed != 1 {
		t.Errorf("close: %v, %d times", err, closed)
	}
	if _, err := d.Register(memory.Wrap(make([]byte, 8)), allRights); !errors.Is(err,
		status.BadState) || d.Acquire() {
		t.Errorf("a closed domain is used: %v", err)
	}
}

func TestOnlyWhatWasGrantedIsFound(t *testing.T) {
	table := NewTable()
	d := NewDomain("test", table, func() {})
	r, other := register(t, d), register(t, NewDomain("test", table, func() {}))
	readable, err := d.Register(memory.Wrap(make([]byte, 64)), memory.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		segment rdma.Segment
		refusal Refusal
		code    status.Code
	}{
		"all of it": {rdma.Segment{Key: r.LocalKey(), Length: 64}, Granted, status.Success},
		"nothing":   {rdma.Segment{}, Granted, status.Success},
		"across the end": {rdma.Segment{Key: r.LocalKey(), Address: 1, Length: 64}, OutOfBounds,
			status.InvalidValue},
		"wraps around": {rdma.Segment{Key: r.LocalKey(), Address: ^uint64(0), Length: 2},
			WrapsAround, status.InvalidValue},
		"of another key": {rdma.Segment{Key: r.LocalKey() ^ 1, Length: 1}, UnknownKey,
			status.InvalidValue},
		"of another domain": {rdma.Segment{Key: other.LocalKey(), Length: 1}, OtherDomain,
			status.InvalidValue},
		"of read-only bytes": {rdma.Segment{Key: readable.LocalKey(), Length: 1}, MissingRights,
			status.NotPermitted},
	} {
		s := &test.segment
		region, refusal := d.Find(s.Key, s.Address, s.Length, memory.LocalWrite)
		if refusal != test.refusal || (region != nil) != (refusal == Granted && s.Length > 0) {
			t.Errorf("%s: refusal %d, want %d", name, refusal, test.refusal)
		}
		if refusal == Granted {
			continue
		}
		if err := d.LocalError(s, refusal); !errors.Is(err, test.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, refusal := d.Find(readable.LocalKey(), 0, 1, 0); refusal != Granted {
		t.Errorf("a source without rights: refusal %d", refusal)
	}
}

// A batch that touches many regions must release each of them.
func TestHeldRegionsAreReleased(t *testing.T) {
	d := NewDomain("test", NewTable(), func() {})
	var held Held
	var regions []*Region
	for range 2*maxAcquired + 1 {
		regions = append(regions, register(t, d))
	}
	for range 2 {
		for _, r := range regions {
			for range 2 {
				if !held.Acquire(r) {
					t.Fatal("registered memory cannot be used")
				}
			}
		}
	}
	held.ReleaseAll()
	for i, r := range regions {
		if !r.uses.RevokeUnused() {
			t.Errorf("region %d is still in use", i)
		}
	}
	if held.Acquire(regions[0]) {
		t.Error("revoked memory is used")
	}
}

func TestRegionsAreFoundAfterTheTableHasGrown(t *testing.T) {
	table := NewTable()
	d := NewDomain("test", table, func() {})
	var regions []*Region
	for range 1000 {
		regions = append(regions, register(t, d))
	}
	for _, r := range regions {
		if table.Lookup(r.RemoteKey()) != r {
			t.Fatalf("key %#x is not found", r.RemoteKey())
		}
		if table.Lookup(r.RemoteKey()^1) == r {
			t.Fatalf("key %#x is found by another", r.RemoteKey())
		}
	}
	for _, r := range regions {
		if err := r.Deregister(); err != nil {
			t.Fatal(err)
		}
	}
	if left := table.Regions(); len(left) > 0 {
		t.Errorf("%d regions are left", len(left))
	}
}
