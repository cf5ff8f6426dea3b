package registration

import (
	"testing"
	"testing/synctest"

	"github.com/zc-relay/zc-relay/pkg/memory"
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
			if !held.Acquire(r) || !held.Acquire(r) {
				t.Fatal("registered memory cannot be used")
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
