// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestRegionsAreFoundByKeyWhileRegistered(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		var table memoryTable
		registered := map[uint32]*memoryRegion{}
		// Few distinct keys, some of which differ only in high bits, like those of devices.
		key := rapid.Custom(func(t *rapid.T) uint32 {
			shift := rapid.SampledFrom([]int{0, 8, 24}).Draw(t, "shift")
			return rapid.Uint32Range(0, 40).Draw(t, "key") << shift
		})
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				k := key.Draw(t, "new")
				if registered[k] != nil {
					t.Skip("key is in use")
				}
				registered[k] = &memoryRegion{localKey: k}
				table.insert(registered[k])
			},
			"deregister": func(t *rapid.T) {
				if r := registered[key.Draw(t, "old")]; r != nil {
					delete(registered, r.localKey)
					table.remove(r)
				}
			},
			"": func(t *rapid.T) {
				for k := range uint32(50) {
					for _, shift := range []int{0, 8, 24} {
						if got := table.lookup(k << shift); got != registered[k<<shift] {
							t.Fatalf("lookup of key %#x: got %v, want %v",
								k<<shift, got, registered[k<<shift])
						}
					}
				}
			},
		})
	})
}

// stubbornRegistration fails to deregister a number of times.
type stubbornRegistration struct{ failures, calls int }

func (s *stubbornRegistration) Deregister() error {
	if s.calls++; s.calls <= s.failures {
		return status.IOFailed
	}
	return nil
}

func TestDeregistrationCanBeTriedAgain(t *testing.T) {
	d := &protectionDomain{device: &device{}}
	registration := &stubbornRegistration{failures: 2}
	r := &memoryRegion{domain: d, mr: registration, localKey: 7}
	d.acquire()
	d.regions.insert(r)
	for i, want := range []error{status.IOFailed, status.IOFailed, nil, nil} {
		if err := r.Deregister(); !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
	}
	if registration.calls != 3 || d.uses.Load() != 0 || d.regions.lookup(7) != nil {
		t.Errorf("the device was asked %d times, the domain has %d uses", registration.calls,
			d.uses.Load())
	}
}

func TestRangesMustLieWithinTheRegion(t *testing.T) {
	r := &memoryRegion{base: 0x7000, length: 0x1000}
	for _, c := range []struct {
		address, length uint64
		want            bool
	}{
		{0x7000, 0x1000, true}, {0x7fff, 1, true}, {0x8000, 0, true},
		{0x6fff, 1, false}, {0x7000, 0x1001, false}, {0x7fff, 2, false}, {0x8000, 1, false},
		{0, 1, false}, {^uint64(0), 2, false}, {0x7000, ^uint64(0), false},
	} {
		if got := r.hasRange(c.address, c.length); got != c.want {
			t.Errorf("hasRange(%#x, %d) = %v, want %v", c.address, c.length, got, c.want)
		}
	}
}
