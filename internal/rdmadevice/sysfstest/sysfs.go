// SPDX-License-Identifier: Apache-2.0

// Package sysfstest creates a sysfs with RDMA devices for tests.
package sysfstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of a BlueField port, of a sub-function on it, and of Soft-RoCE. Content that begins
// with "->" is a symbolic link.
var files = map[string]string{
	"devices/pci0000:00/0000:00:00.0/0000:03:00.0/numa_node":                "1",
	"devices/pci0000:00/0000:00:00.0/0000:03:00.0/net/p0/mtu":               "1500",
	"devices/pci0000:00/0000:00:00.0/0000:03:00.0/net/p0/operstate":         "up",
	"devices/pci0000:00/0000:00:00.0/0000:03:00.0/mlx5_core.sf.4/numa_node": "-1",
	"devices/virtual/net/eth0/mtu":                                          "9000",
	"devices/virtual/net/eth0/operstate":                                    "up",
	"class/net/p0":                                                          "->../../devices/pci0000:00/0000:00:00.0/0000:03:00.0/net/p0",
	"class/net/eth0":                                                        "->../../devices/virtual/net/eth0",
	"class/infiniband_verbs/uverbs0/ibdev":                                  "mlx5_0",
	"class/infiniband_verbs/uverbs1/ibdev":                                  "mlx5_4",
	"class/infiniband/mlx5_0/device":                                        "->../../../devices/pci0000:00/0000:00:00.0/0000:03:00.0",
	"class/infiniband/mlx5_0/fw_ver":                                        "32.41.1000",
	"class/infiniband/mlx5_0/board_id":                                      "MT_0000000884",
	"class/infiniband/mlx5_0/node_guid":                                     "b83f:d203:00a1:b2c4",
	"class/infiniband/mlx5_0/ports/1/link_layer":                            "Ethernet",
	"class/infiniband/mlx5_0/ports/1/state":                                 "4: ACTIVE",
	"class/infiniband/mlx5_0/ports/1/phys_state":                            "5: LinkUp",
	"class/infiniband/mlx5_0/ports/1/rate":                                  "200 Gb/sec (4X HDR)",
	"class/infiniband/mlx5_0/ports/1/gids/0":                                "fe80:0000:0000:0000:ba3f:d2ff:fea1:b2c4",
	"class/infiniband/mlx5_0/ports/1/gids/1":                                "0000:0000:0000:0000:0000:ffff:c000:0205",
	"class/infiniband/mlx5_0/ports/1/gids/2":                                "0000:0000:0000:0000:0000:0000:0000:0000",
	"class/infiniband/mlx5_0/ports/1/gid_attrs/types/0":                     "IB/RoCE v1",
	"class/infiniband/mlx5_0/ports/1/gid_attrs/types/1":                     "RoCE v2",
	"class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0":                     "p0",
	"class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1":                     "p0",
	"class/infiniband/mlx5_0/ports/1/counters/port_rcv_data":                "1000",
	"class/infiniband/mlx5_0/ports/1/counters/port_xmit_data":               "2000",
	"class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets":             "30",
	"class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets":            "N/A (no PMA)",
	"class/infiniband/mlx5_0/ports/1/counters/symbol_error":                 "7",
	"class/infiniband/mlx5_0/ports/1/hw_counters/lifespan":                  "10",
	"class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence":           "5",
	"class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent":               "6",
	"class/infiniband/mlx5_4/device":                                        "->../../../devices/pci0000:00/0000:00:00.0/0000:03:00.0/mlx5_core.sf.4",
	"class/infiniband/mlx5_4/fw_ver":                                        "32.41.1000",
	"class/infiniband/mlx5_4/node_guid":                                     "b83f:d203:00a1:b2c5",
	"class/infiniband/mlx5_4/ports/1/link_layer":                            "Ethernet",
	"class/infiniband/mlx5_4/ports/1/state":                                 "1: DOWN",
	"class/infiniband/mlx5_4/ports/1/phys_state":                            "3: Disabled",
	"class/infiniband/mlx5_4/ports/1/rate":                                  "200 Gb/sec (4X HDR)",
	"class/infiniband/rxe0/parent":                                          "eth0",
	"class/infiniband/rxe0/fw_ver":                                          "",
	"class/infiniband/rxe0/node_guid":                                       "5054:00ff:fe12:3456",
	"class/infiniband/rxe0/ports/1/link_layer":                              "Ethernet",
	"class/infiniband/rxe0/ports/1/state":                                   "4: ACTIVE",
	"class/infiniband/rxe0/ports/1/phys_state":                              "5: LinkUp",
	"class/infiniband/rxe0/ports/1/rate":                                    "2.5 Gb/sec (1X SDR)",
	"class/infiniband/rxe0/ports/1/hw_counters/sent_pkts":                   "77",
}

// New creates the sysfs in a temporary directory and returns its path.
func New(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		Write(t, root, path, content)
	}
	return root
}

// Write adds a file, or a symbolic link if content begins with "->".
func Write(t testing.TB, root, path, content string) {
	t.Helper()
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if destination, isLink := strings.CutPrefix(content, "->"); isLink {
		err = os.Symlink(destination, full)
	} else {
		err = os.WriteFile(full, []byte(content+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
