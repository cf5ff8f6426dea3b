// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestConfigurationOfAProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doca.yaml")
	const text = `
role: dpu
release: "2.10"
directory: /run/comch
rdma_address: 192.0.2.7
idle_sleep: 0s
devices:
  - {pci: 03:00.0, ibdev: mlx5_0, iface: p0, representors: [{pci: b1:00.0, vuid: MT1},
     {pci: b1:00.1, type: vf, iface: pf0vf7, hotplug: true, vhca_id: 3}, {pci: b1:00.2, type: sf}]}
  - {pci: "0000:03:00.1", ipv4: 192.0.2.8, sf: 4, mac: "b8:3f:d2:01:02:03", vhca_id: 0,
     gid_index: 3, without: [comch, dma, export, rdma]}
  - {pci: b1:00.0, role: host, alias: 3b:00.0, ipv6: "2001:db8::7", lid: 9,
     active_rate: 400000000000}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := libdoca.FromEnvironment(func(name string) string {
		return map[string]string{"ZC_DOCA_EMULATION": file, "ZC_DOCA_DEBUG": "report"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	none, three := uint16(0), uint16(3)
	want := libdoca.Config{
		Release:     libdoca.Release2_10,
		Directory:   "/run/comch",
		RDMAAddress: netip.MustParseAddr("192.0.2.7"),
		Devices: []libdoca.Device{
			{PCI: "0000:03:00.0", IBDevice: "mlx5_0", Interface: "p0", Role: libdoca.DPU,
				Representors: []libdoca.Representor{{PCI: "0000:b1:00.0", VUID: "MT1"},
					{PCI: "0000:b1:00.1", Type: libdoca.VirtualFunction, Interface: "pf0vf7",
						Hotplug: true, VHCA: &three},
					{PCI: "0000:b1:00.2", Type: libdoca.SubFunction}}},
			{PCI: "0000:03:00.1", IPv4: netip.MustParseAddr("192.0.2.8"), Role: libdoca.DPU,
				Type: libdoca.SubFunction, SFIndex: 4, VHCA: &none,
				MAC: [6]byte{0xb8, 0x3f, 0xd2, 1, 2, 3}, GIDIndex: 3, NoComch: true, NoDMA: true,
				NoExport: true, NoRDMA: true},
			{PCI: "0000:b1:00.0", Alias: "0000:3b:00.0", Role: libdoca.Host, LID: 9,
				IPv6: netip.MustParseAddr("2001:db8::7"), ActiveRate: 400e9},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// Beside the path of a file, the environment overrides settings of the file.
func TestTheEnvironmentOverridesAFile(t *testing.T) {
	directory := t.TempDir()
	file, nested := filepath.Join(directory, "it's here.yaml"), filepath.Join(directory, "nested")
	for name, text := range map[string]string{
		file:   "{role: dpu, release: '3.0', again: true, directory: /run/a}",
		nested: "config: " + nested,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(config string) (libdoca.Config, error) {
		return libdoca.FromEnvironment(func(name string) string {
			return map[string]string{"ZC_DOCA_EMULATION": config}[name]
		})
	}
	got, err := read("{config: '" + strings.ReplaceAll(file, "'", "''") +
		"', role: host, directory: /run/b}")
	if err != nil {
		t.Fatal(err)
	}
	if got.Release != libdoca.Release3_0 || !got.Again || got.Directory != "/run/b" ||
		len(got.Devices) != 1 || got.Devices[0].Role != libdoca.Host {
		t.Errorf("got %+v", got)
	}
	if _, err := libdoca.ParseConfig([]byte("config: " + file)); err == nil {
		t.Error("a configuration that is no environment names a file")
	}
	for _, config := range []string{nested, "{config: " + nested + "}"} {
		if _, err := read(config); err == nil || !strings.Contains(err.Error(), "another") {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestARoleSelectsTheDefaultDevice(t *testing.T) {
	for text, want := range map[string][]libdoca.Role{
		"":             {libdoca.DPU, libdoca.Host},
		"{role: dpu}":  {libdoca.DPU},
		"{role: host}": {libdoca.Host},
	} {
		config, err := libdoca.ParseConfig([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var roles []libdoca.Role
		for _, device := range config.Devices {
			roles = append(roles, device.Role)
		}
		if len(want) == 1 && (config.Devices[0].Alias == "" ||
			config.Devices[0].IBDevice != "mlx5_0") {
			t.Errorf("%q: device %+v", text, config.Devices[0])
		}
		if !reflect.DeepEqual(roles, want) || config.IdleSleep != 20*time.Microsecond {
			t.Errorf("%q: roles %v, idle sleep %v", text, roles, config.IdleSleep)
		}
	}
}

func TestWrongConfigurationsOfAProgram(t *testing.T) {
	for _, test := range []struct{ config, debug, cause string }{
		{config: "{roll: dpu}", cause: "roll"},
		{config: "{role: both}", cause: "neither dpu nor host"},
		{config: "{devices: [{pci: 03:00.0, without: [wings]}]}", cause: "none of comch, dma"},
		{config: "{release: 4.1}", cause: "4.1"},
		{config: "{release: 3.3.1}", cause: "3.3.1"},
		{config: "{rdma_address: here}", cause: "rdma_address"},
		{config: "{idle_sleep: 1h}", cause: "idle_sleep"},
		{config: "{devices: [{pci: first}]}", cause: "device 1"},
		{config: "{devices: [{pci: '03:00.0', ipv4: '::1'}]}", cause: "::1"},
		{config: "{devices: [{pci: '03:00.0', ipv6: '192.0.2.7'}]}", cause: "no IPv6"},
		{config: "{devices: [{pci: '03:00.0', mac: '02:00'}]}", cause: "02:00"},
		{config: "{devices: [{pci: '03:00.0', mac: '02:00:00:00:00:00:00:01'}]}", cause: "no MAC"},
		{config: "{devices: [{pci: '03:00.0', lid: 65536}]}", cause: "65536"},
		{config: "{devices: [{pci: '03:00.0', role: x}]}", cause: "device 1"},
		{config: "{devices: [{pci: '03:00.0', representors: [{pci: 'b1:00.0', type: x}]}]}",
			cause: "pf, vf, and sf"},
		{config: "{devices: [{pci: '03:00.0', representors: [{pci: x}]}]}", cause: "device 1"},
		{config: "{", cause: "parse"},
		{config: "/does/not/exist", cause: "/does/not/exist"},
		{config: "{config: /does/not/exist}", cause: "/does/not/exist"},
		{debug: "loud", cause: "ZC_DOCA_DEBUG"},
	} {
		_, err := libdoca.FromEnvironment(func(name string) string {
			return map[string]string{"ZC_DOCA_EMULATION": test.config,
				"ZC_DOCA_DEBUG": test.debug}[name]
		})
		if err == nil || !strings.Contains(err.Error(), test.cause) ||
			status.CodeOf(err) == status.Unknown {
			t.Errorf("%s %s: %v", test.config, test.debug, err)
		}
	}
}

// Whatever the configuration is, it is rejected, or describes devices.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("{role: dpu, release: '3.2', idle_sleep: 5us}"))
	f.Add([]byte("{devices: [{pci: '03:00.0', sf: 3, representors: [{pci: 'b1:00.0'}]}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := libdoca.ParseConfig(text)
		if err != nil {
			return
		}
		for _, device := range config.Devices {
			if len(device.PCI) != len("0000:03:00.0") {
				t.Errorf("device %q", device.PCI)
			}
		}
	})
}
