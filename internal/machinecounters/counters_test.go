// SPDX-License-Identifier: Apache-2.0

package machinecounters

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
)

func TestPortsAreReportedByWhatTheirCountersGrew(t *testing.T) {
	sysfs := sysfstest.New(t)
	c := Start(sysfs)
	const port = "class/infiniband/mlx5_0/ports/1/"
	for path, content := range map[string]string{
		port + "counters/port_rcv_data":               "1500", // in words of 4 bytes
		port + "counters/symbol_error":                "6",    // reset, so it is unknown
		port + "counters/port_xmit_discards":          "1",    // was not there before
		port + "hw_counters/out_of_sequence":          "9",
		"class/infiniband/rxe1/ports/1/state":         "4: ACTIVE", // a device that has come
		"class/infiniband/rxe0/ports/1/hw_counters/x": "N/A",
	} {
		sysfstest.Write(t, sysfs, path, content)
	}
	want := []PortCounts{
		{Device: "mlx5_0", Port: 1,
			Counters: map[string]uint64{"received_bytes": 2000, "transmitted_bytes": 0,
				"received_packets": 0},
			HWCounters: map[string]uint64{"out_of_sequence": 4, "np_cnp_sent": 0}},
		{Device: "mlx5_4", Port: 1},
		{Device: "rxe0", Port: 1, HWCounters: map[string]uint64{"sent_pkts": 0}},
	}
	if diff := cmp.Diff(want, c.End().Ports); diff != "" {
		t.Error(diff)
	}
}

func TestWithoutSysfsThereAreNoPorts(t *testing.T) {
	if counts := Start("/no/such/directory").End(); counts.Ports != nil {
		t.Errorf("the ports are %+v", counts.Ports)
	}
}

func TestTheProcessorsCountWhatThisProcessDoes(t *testing.T) {
	c := Start(t.TempDir())
	var sum int
	for i := range 20_000_000 {
		sum += i * i
	}
	counts := c.End()
	if p := counts.Process; p["user_time_ns"]+p["system_time_ns"] == 0 || len(p) != 6 {
		t.Errorf("this process used %v after %d", p, sum)
	}
	// Machines differ in what they count, and in who may read it, but no event stands still.
	for name, count := range counts.Processors {
		if count == 0 && (name == "cycles" || name == "instructions") {
			t.Errorf("%s did not grow: %v", name, counts.Processors)
		}
	}
}
