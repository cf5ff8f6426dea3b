// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// acrossPCI is a Comch provider that imports memory which the CPU cannot address.
type acrossPCI struct{ comch.Provider }

func (p acrossPCI) Capabilities(device string) (comch.Capabilities, error) {
	c, err := p.Provider.Capabilities(device)
	c.OpaqueImports = true
	return c, err
}

func (acrossPCI) Devices() ([]comch.Device, error) {
	return []comch.Device{{PCI: "03:00.0", RDMA: "mlx5_0", CanServe: true}}, nil
}

// adapter is an RDMA provider whose device has the given capabilities.
type adapter struct {
	rdma.Provider
	opaque bool
	name   memory.Device
}

func (a adapter) Open(address netip.Addr) (rdma.Device, error) {
	device, err := a.Provider.Open(address)
	return adapterDevice{device, a}, err
}

type adapterDevice struct {
	rdma.Device
	adapter adapter
}

func (d adapterDevice) Capabilities() rdma.Capabilities {
	c := d.Device.Capabilities()
	c.OpaqueMemory, c.Device = d.adapter.opaque, d.adapter.name
	return c
}

var (
	port        = memory.Device{PCI: "03:00.0", RDMA: "mlx5_0"}
	other       = memory.Device{PCI: "03:00.1", RDMA: "mlx5_1"}
	subFunction = memory.Device{PCI: "03:00.0", RDMA: "mlx5_4"}
)

func TestDevicesThatDoNotFitAreRefusedAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		adapter adapter
		choice  relay.ImportDevice
		want    string // "" means that the relay starts
	}{
		"no opaque memory":     {adapter{}, "", "cannot reach memory of clients"},
		"same device":          {adapter{opaque: true, name: port}, relay.ImportComch, ""},
		"same device for RDMA": {adapter{opaque: true, name: port}, relay.ImportRDMA, ""},
		"unknown device":       {adapter{opaque: true}, "", ""},
		"another device":       {adapter{opaque: true, name: other}, "", ""},
		"a sub-function":       {adapter{opaque: true, name: subFunction}, relay.ImportRDMA, ""},
		"another device, not allowed": {adapter{opaque: true, name: other}, relay.ImportComch,
			"03:00.1 (mlx5_1)"},
		"a sub-function, not allowed": {adapter{opaque: true, name: subFunction}, relay.ImportComch,
			"mlx5_4"},
	} {
		t.Run(name, func(t *testing.T) {
			c.adapter.Provider = iwarp.New(iwarp.Options{})
			r, err := relay.New(context.Background(), relay.Config{
				Comch: acrossPCI{emulated.New(emulated.Options{Directory: t.TempDir()})},
				RDMA:  c.adapter, CPUs: []int{datapath.NoCPU},
				Settings: relay.Settings{Channels: []relay.ChannelConfig{{
					ChannelID: relay.ChannelID{Device: "0000:03:00.0", Representor: "b1:00.0",
						Name: "fit"},
					Targets: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}, Volume: "volume",
					ImportDevice: c.choice,
				}}},
			})
			if err == nil {
				defer func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}()
			}
			switch {
			case c.want == "" && err != nil:
				t.Errorf("New returned %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				!errors.Is(err, status.NotSupported) && !errors.Is(err, status.BadConfig)):
				t.Errorf("New returned %v, want %q", err, c.want)
			}
		})
	}
}

func TestAddressesInBothNotationsAreOneChannel(t *testing.T) {
	channel := func(device string) relay.ChannelConfig {
		return relay.ChannelConfig{
			ChannelID: relay.ChannelID{Device: device, Representor: "b1:00.0", Name: "one"},
			Targets:   []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}, Volume: "volume",
		}
	}
	_, err := relay.New(context.Background(), relay.Config{
		Comch: emulated.New(emulated.Options{Directory: t.TempDir()}),
		RDMA:  iwarp.New(iwarp.Options{}), CPUs: []int{datapath.NoCPU},
		Settings: relay.Settings{Channels: []relay.ChannelConfig{channel("03:00.0"),
			channel("0000:03:00.0")}},
	})
	if !errors.Is(err, status.AlreadyExist) {
		t.Errorf("New returned %v", err)
	}
}

func TestTheBestWaysToClientsMemoryComeFirst(t *testing.T) {
	channel := relay.ChannelConfig{ChannelID: relay.ChannelID{Device: "03:00.0"},
		Isolation: relay.Direct, ImportDevice: relay.ImportAuto,
		TargetProtocol: relay.ProtocolNative}
	staged, old := channel, channel
	staged.Isolation, old.TargetProtocol = relay.Staged, "doca-3.0"
	provider := acrossPCI{emulated.New(emulated.Options{Directory: t.TempDir()})}
	copier := software.New(software.Options{Devices: []string{"03:00.0"}})
	for name, c := range map[string]struct {
		channel relay.ChannelConfig
		adapter adapter
		copier  dma.Provider
		want    []relay.MemoryPath
	}{
		"the port itself": {channel, adapter{opaque: true, name: port}, copier,
			[]relay.MemoryPath{relay.PathComchDevice, relay.PathStaged}},
		"its sub-function": {channel, adapter{opaque: true, name: subFunction}, copier,
			[]relay.MemoryPath{relay.PathRDMADevice, relay.PathStaged}},
		"perhaps the port": {channel, adapter{opaque: true, name: memory.Device{PCI: "03:00.0"}},
			copier, []relay.MemoryPath{relay.PathComchDevice, relay.PathStaged}},
		"no DMA": {channel, adapter{opaque: true, name: subFunction}, nil,
			[]relay.MemoryPath{relay.PathRDMADevice}},
		"DMA elsewhere": {channel, adapter{opaque: true, name: subFunction},
			software.New(software.Options{Devices: []string{"05:00.0"}}),
			[]relay.MemoryPath{relay.PathRDMADevice}},
		"data has its place in memory": {old, adapter{opaque: true, name: subFunction}, copier,
			[]relay.MemoryPath{relay.PathRDMADevice}},
		"no opaque memory": {channel, adapter{}, copier, []relay.MemoryPath{relay.PathStaged}},
		"staged": {staged, adapter{opaque: true, name: port}, copier,
			[]relay.MemoryPath{relay.PathStaged}},
		"staged, DMA elsewhere": {staged, adapter{opaque: true, name: port},
			software.New(software.Options{Devices: []string{"05:00.0"}}), nil},
	} {
		c.adapter.Provider = iwarp.New(iwarp.Options{})
		device, err := c.adapter.Open(netip.MustParseAddr("127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := relay.MemoryPaths(&c.channel, provider,
			func() memory.Device { return port }, device, c.copier)
		if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s: the ways are %v, want %v, error %v", name, got, c.want, err)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	}
}
