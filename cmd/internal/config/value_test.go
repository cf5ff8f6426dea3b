// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

func TestNumbersMayEndInThousands(t *testing.T) {
	var n uint32
	v := integer(&n, 1, 1_000_000)
	for text, want := range map[string]uint32{"10k": 10_000, "1M": 1_000_000, "7": 7} {
		if err := v.Set(text); err != nil || n != want {
			t.Errorf("%q is %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"2M", "10q", "1.5k", "-1k"} {
		if err := v.Set(text); err == nil ||
			err.Error() != "must be a whole number from 1 to 1000000" {
			t.Errorf("%q: %v", text, err)
		}
	}
}
