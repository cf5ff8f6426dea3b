// SPDX-License-Identifier: Apache-2.0

package comch_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

func TestTheFirstDeviceWithANameIsFound(t *testing.T) {
	devices := []comch.Device{
		{PCI: "03:00.0", RDMA: "mlx5_0", Net: "p0"},
		{PCI: "03:00.1", RDMA: "mlx5_1", Net: "p1"},
		{PCI: "03:00.0", RDMA: "mlx5_2", Net: "enp3s0f0s0"},
		{PCI: "03:00.0"},
	}
	for _, c := range []struct {
		name   string
		want   string // the network interface of the first, "" if there is none
		others int
	}{
		{"03:00.0", "p0", 2}, {"0000:03:00.0", "p0", 2}, {"03:00.1", "p1", 0},
		{"mlx5_2", "enp3s0f0s0", 0}, {"enp3s0f0s0", "enp3s0f0s0", 0}, {"p0", "p0", 0},
		{"mlx5_3", "", 0}, {"", "", 0},
	} {
		found, others := comch.FindDevice(devices, c.name)
		if (found == nil) != (c.want == "") || found != nil && found.Net != c.want ||
			len(others) != c.others {
			t.Errorf("%q denotes %+v, and %+v", c.name, found, others)
		}
	}
}
