// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

func TestIsMappingKnowsTheMemoryOfRegions(t *testing.T) {
	first, err := memory.Alloc("first", 3*4096)
	if err != nil {
		t.Fatal(err)
	}
	second, err := memory.Alloc("second", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	b := first.Bytes()
	for name, c := range map[string]struct {
		memory []byte
		want   bool
	}{
		"whole region": {b, true}, "its first byte": {b[:1], true},
		"its last byte": {b[len(b)-1:], true}, "another region": {second.Bytes(), true},
		"heap": {make([]byte, 4096), false}, "nothing": {nil, false},
	} {
		if got := memory.IsMapping(c.memory); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if memory.IsMapping(b) { // b's address only, the memory is gone
		t.Error("a closed region is still a mapping")
	}
	if !memory.IsMapping(second.Bytes()) {
		t.Error("closing one region removed another")
	}
}
