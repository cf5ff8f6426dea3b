// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// span is a range of addresses.
type span struct{ base, end uint64 }

// mappings lists the memory of all regions that this package has mapped, in the order of addresses.
// Readers take no lock: a change replaces the list.
var mappings struct {
	mu    sync.Mutex // serializes changes
	spans atomic.Pointer[[]span]
}

// IsMapping reports whether b lies in one region that this package has mapped. Such memory is
// outside the Go heap, so C may keep a pointer to it until the region is closed.
func IsMapping(b []byte) bool {
	spans := mappings.spans.Load()
	if spans == nil || len(b) == 0 {
		return false
	}
	start := baseOf(b)
	i, found := slices.BinarySearchFunc(*spans, start,
		func(s span, start uint64) int { return cmp.Compare(s.base, start) })
	if !found {
		i--
	}
	return i >= 0 && start+uint64(len(b)) <= (*spans)[i].end
}

func addMapping(b []byte) {
	added := span{baseOf(b), baseOf(b) + uint64(len(b))}
	changeMappings(func(spans []span) []span {
		i, _ := slices.BinarySearchFunc(spans, added,
			func(s, added span) int { return cmp.Compare(s.base, added.base) })
		return slices.Insert(spans, i, added)
	})
}

func removeMapping(b []byte) {
	base := baseOf(b)
	changeMappings(func(spans []span) []span {
		return slices.DeleteFunc(spans, func(s span) bool { return s.base == base })
	})
}

func changeMappings(change func([]span) []span) {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	var spans []span
	if current := mappings.spans.Load(); current != nil {
		spans = slices.Clone(*current)
	}
	spans = change(spans)
	mappings.spans.Store(&spans)
}
