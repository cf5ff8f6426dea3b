// SPDX-License-Identifier: Apache-2.0

package pci

import "testing"

func TestBothNotationsOfAnAddressAreOne(t *testing.T) {
	for _, c := range []struct{ name, short, full string }{
		{"03:00.0", "03:00.0", "0000:03:00.0"},
		{"0000:03:00.0", "03:00.0", "0000:03:00.0"},
		{"0000:B1:00.7", "b1:00.7", "0000:b1:00.7"},
		{"00000000:b1:00.7", "b1:00.7", "0000:b1:00.7"},
		{"0001:b1:00.0", "0001:b1:00.0", "0001:b1:00.0"},
		{"10000:e1:00.0", "10000:e1:00.0", "10000:e1:00.0"}, // VMD domains are longer
	} {
		if got := Normalize(c.name); got != c.short {
			t.Errorf("Normalize(%q) is %q, want %q", c.name, got, c.short)
		}
		if got := Full(c.name); got != c.full {
			t.Errorf("Full(%q) is %q, want %q", c.name, got, c.full)
		}
	}
}

func TestOtherNamesStayAsTheyAre(t *testing.T) {
	for _, name := range []string{
		"", "DPU", "mlx5_0", "03:00", "03:00.8", "3:00.0", "03:00.0 ", "0000:03:00.0.1", "x03:00.0",
		"000:03:00.0", "a/03:00.0", "MT2251XZ02W4MLNXS0D0F0",
	} {
		if got := Normalize(name); got != name {
			t.Errorf("Normalize(%q) is %q", name, got)
		}
		if got := Full(name); got != name {
			t.Errorf("Full(%q) is %q", name, got)
		}
	}
}
