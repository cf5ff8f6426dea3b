// SPDX-License-Identifier: Apache-2.0

package rdmadevice

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, root string) *Tree {
	t.Helper()
	tree, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestDevicesAreDescribedWithWhatTheyBelongTo(t *testing.T) {
	devices, err := open(t, sysfstest.New(t)).Devices()
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{
			Name: "mlx5_0", NodeGUID: "b83f:d203:00a1:b2c4", Firmware: "32.41.1000",
			Board: "MT_0000000884",
			PCI:   "0000:03:00.0", Function: "pf", NUMANode: new(1), Verbs: "uverbs0",
			Net: []NetDev{{Name: "p0", MTU: 1500, State: "up"}},
			Ports: []Port{{
				Number: 1, State: "ACTIVE", PhysicalState: "LinkUp", LinkLayer: "Ethernet",
				RateBitsPerS: 200_000_000_000,
				GIDs: []GID{
					{Index: 0, GID: "fe80:0000:0000:0000:ba3f:d2ff:fea1:b2c4", Type: "IB/RoCE v1",
						NetDev: "p0"},
					{Index: 1, GID: "0000:0000:0000:0000:0000:ffff:c000:0205", Type: "RoCE v2",
						NetDev: "p0"},
				},
			}},
		},
		{
			Name: "mlx5_4", NodeGUID: "b83f:d203:00a1:b2c5", Firmware: "32.41.1000",
			PCI: "0000:03:00.0", Auxiliary: "mlx5_core.sf.4", Function: "sf",
			Verbs: "uverbs1", Net: []NetDev{},
			Ports: []Port{{Number: 1, State: "DOWN", PhysicalState: "Disabled",
				LinkLayer: "Ethernet", RateBitsPerS: 200_000_000_000, GIDs: []GID{}}},
		},
		{
			Name: "rxe0", NodeGUID: "5054:00ff:fe12:3456",
			Net: []NetDev{{Name: "eth0", MTU: 9000, State: "up"}},
			Ports: []Port{{Number: 1, State: "ACTIVE", PhysicalState: "LinkUp",
				LinkLayer: "Ethernet", RateBitsPerS: 2_500_000_000, GIDs: []GID{}}},
		},
	}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Error(diff)
	}
}

func TestAVirtualFunctionIsToldFromAPhysicalOne(t *testing.T) {
	root := sysfstest.New(t)
	sysfstest.Write(t, root, "bus/pci/devices/0000:03:00.0/physfn/vendor", "0x15b3")
	devices, err := open(t, root).Devices()
	if err != nil || devices[0].Function != "vf" || devices[1].Function != "sf" {
		t.Errorf("the functions are %q and %q, error %v", devices[0].Function, devices[1].Function,
			err)
	}
}

func TestCountersKeepWhatIsMissingApartFromZero(t *testing.T) {
	ports, err := open(t, sysfstest.New(t)).Counters()
	if err != nil {
		t.Fatal(err)
	}
	if len(ports) != 3 {
		t.Fatalf("there are %d ports", len(ports))
	}
	want := PortCounters{
		Device: "mlx5_0", Port: 1, Active: true, RateBytesPerS: 25_000_000_000,
		ReceivedBytes: new(uint64(4000)), TransmittedBytes: new(uint64(8000)),
		ReceivedPackets: new(uint64(30)),
		Errors:          map[string]uint64{"symbol_error": 7},
		Hardware:        map[string]uint64{"out_of_sequence": 5, "np_cnp_sent": 6},
	}
	if diff := cmp.Diff(want, ports[0]); diff != "" {
		t.Error(diff)
	}
	if got := ports[2]; got.Hardware["sent_pkts"] != 77 || got.ReceivedBytes != nil {
		t.Errorf("Soft-RoCE counts %+v", got)
	}
}

func TestAMachineWithoutRDMAHasNoDevices(t *testing.T) {
	tree := open(t, t.TempDir())
	devices, err := tree.Devices()
	if err != nil || len(devices) != 0 {
		t.Errorf("devices %v, error %v", devices, err)
	}
	if ports, err := tree.Counters(); err != nil || len(ports) != 0 {
		t.Errorf("ports %v, error %v", ports, err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("a root that does not exist was opened")
	}
}

func TestADeviceThatCannotBeReadDoesNotHideTheOthers(t *testing.T) {
	root := sysfstest.New(t)
	if err := os.Remove(filepath.Join(root, "class/infiniband/mlx5_4/ports/1/state")); err != nil {
		t.Fatal(err)
	}
	tree := open(t, root)
	if devices, err := tree.Devices(); err == nil || len(devices) != 2 {
		t.Errorf("%d devices, error %v", len(devices), err)
	}
	if ports, err := tree.Counters(); err == nil || len(ports) != 2 {
		t.Errorf("%d ports, error %v", len(ports), err)
	}
}

func TestDevicesAreFoundByWhatTheyBelongTo(t *testing.T) {
	tree := open(t, sysfstest.New(t))
	devices, err := tree.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"mlx5_4": "mlx5_4", "p0": "mlx5_0", "eth0": "rxe0", "0000:03:00.0": "mlx5_0",
		"mlx5_core.sf.4": "mlx5_4",
	} {
		found, err := tree.Select(devices, []string{name})
		if err != nil || len(found) != 1 || found[0].Name != want {
			t.Errorf("%s has %v, error %v", name, found, err)
		}
	}
	if _, err := tree.Select(devices, []string{"p0", "p1"}); !errors.Is(err, status.NotFound) {
		t.Errorf("an unknown name: %v", err)
	}
	if found, err := tree.Select(devices, []string{"p0", "mlx5_0", "eth0"}); err != nil ||
		len(found) != 2 {
		t.Errorf("found %v, error %v", found, err)
	}
}

func TestTheRunningSystemIsAskedWithoutHarm(t *testing.T) {
	tree := open(t, SystemRoot)
	devices, err := tree.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lo", "0000:00:00.0", "no.such.1"} {
		if found, err := tree.Select(devices, []string{name}); !errors.Is(err, status.NotFound) {
			t.Errorf("%s has %v, error %v", name, found, err)
		}
	}
}
