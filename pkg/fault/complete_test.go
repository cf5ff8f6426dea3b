// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"slices"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/fault"
)

func TestRulesAreCompletedPartByPart(t *testing.T) {
	for text, want := range map[string][]string{
		"":                              {"rdma:", "volume:"},
		"vol":                           {"volume:"},
		"volume:w":                      {"volume:write:", "volume:write_zeroes:"},
		"volume:read:e":                 {"volume:read:error=", "volume:read:every="},
		"volume:read:every=3:c":         {"volume:read:every=3:corrupt"},
		"volume:flush:c":                nil,
		"comch:":                        nil,
		"volume:none:t":                 nil,
		"rdma:post_receive:every=3:ran": {"rdma:post_receive:every=3:range="},
	} {
		if got := fault.Complete(text, fault.RDMA, fault.Volume); !slices.Equal(got, want) {
			t.Errorf("%q is completed to %q, want %q", text, got, want)
		}
	}
}
