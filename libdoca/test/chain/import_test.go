// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package chain

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/dma"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	rdmadoca "github.com/zc-relay/zc-relay/pkg/rdma/doca"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// oneLibrary is what all providers of a program share, so that RDMA can use what Comch imports.
var oneLibrary = doca.Resolved(libdoca.Lookup)

// bluefield is the machine of a test: a port with Comch, its sub-function at the same address, and
// the host's function.
func bluefield(t *testing.T, release libdoca.Release, port, subFunction libdoca.Device) {
	port.PCI, port.IBDevice = "03:00.0", "mlx5_0"
	port.Representors = []libdoca.Representor{{PCI: "b1:00.0"}}
	subFunction.PCI, subFunction.IBDevice, subFunction.NoComch = "03:00.0", "mlx5_2", true
	subFunction.Type = libdoca.SubFunction
	host := libdoca.Device{PCI: "b1:00.0", IBDevice: "mlx5_9", Role: libdoca.Host}
	t.Cleanup(func() { awaitNoObjects(t) })
	chaintest.UseProviders(t, func(t testing.TB, directory string, log *zap.Logger) (
		comch.Provider, dma.Provider) {
		awaitNoObjects(t)
		if err := libdoca.Configure(libdoca.Config{Release: release, Directory: directory,
			Devices: []libdoca.Device{port, subFunction, host},
			Report:  func(m libdoca.Misuse) { t.Errorf("%s: %s", m.Function, m.Rule) },
		}); err != nil {
			t.Fatal(err)
		}
		return comchdoca.New(comchdoca.Options{Loader: oneLibrary, Logger: log}),
			dmadoca.New(dmadoca.Options{Loader: oneLibrary})
	})
}

// over returns options of a chain whose relay and target have RDMA over a device.
func over(device string, choice relay.ImportDevice) chaintest.Options {
	provider := rdmadoca.New(rdmadoca.Options{Loader: oneLibrary, Device: device})
	return chaintest.Options{
		Relay: func(config *relay.Config) {
			config.RDMA = provider
			config.Channels[0].ImportDevice = choice
		},
		Target: func(config *target.Config) { config.RDMA = provider },
	}
}

func TestClientsMemoryIsReachedByTheBestWayThatWorks(t *testing.T) {
	releases := map[string]libdoca.Release{"2.9": libdoca.Release2_9, "2.10": libdoca.Release2_10,
		"3.0": libdoca.Release3_0, "3.2": libdoca.Release3_2, "3.3": libdoca.Release3_3}
	for name, release := range releases {
		t.Run(name, func(t *testing.T) {
			if release != libdoca.Release3_3 {
				testkit.OnlyComplete(t, "other releases differ in nothing that this looks at")
			}
			testMemoryPaths(t, release)
		})
	}
}

func testMemoryPaths(t *testing.T, release libdoca.Release) {
	none := libdoca.Device{}
	for name, c := range map[string]struct {
		port, subFunction libdoca.Device
		rdma              string
		choice            relay.ImportDevice
		isDeaf            bool // what it imports cannot be reached: its first send fails
		want              relay.MemoryPath
		reason            string // part of why no better way works, "" if this is the best
	}{
		"the port itself": {none, none, "mlx5_0", relay.ImportAuto, false, relay.PathComchDevice,
			""},
		"the sub-function": {libdoca.Device{NoRDMA: true}, none, "mlx5_2", relay.ImportAuto,
			false, relay.PathRDMADevice, ""},
		"the sub-function alone": {libdoca.Device{NoRDMA: true}, none, "mlx5_2", relay.ImportRDMA,
			false, relay.PathRDMADevice, ""},
		"a sub-function that cannot import": {libdoca.Device{NoRDMA: true},
			libdoca.Device{NoExport: true}, "mlx5_2", relay.ImportAuto, false, relay.PathStaged,
			"rdma-device: import the client's memory"},
		"a sub-function that cannot reach what it imports": {libdoca.Device{NoRDMA: true}, none,
			"mlx5_2", relay.ImportAuto, true, relay.PathStaged,
			"rdma-device: try to reach the client's memory"},
	} {
		t.Run(name, func(t *testing.T) {
			bluefield(t, release, c.port, c.subFunction)
			o := over(c.rdma, c.choice)
			if c.isDeaf {
				configure := o.Relay
				o.Relay = func(config *relay.Config) {
					configure(config)
					injector, _ := faulttest.New(t, "rdma:post_send:nth=1:error=IO_FAILED")
					config.RDMA = hook.Wrap(config.RDMA, hook.Config{Injector: injector})
				}
			}
			chain := chaintest.Start(t, o)
			v := chain.Open(chain.Config())
			data := bytes.Repeat([]byte(name), 64<<10)[:64<<10]
			if _, err := v.WriteAt(data, 4096); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(data))
			if _, err := v.ReadAt(got, 4096); err != nil || !bytes.Equal(got, data) {
				t.Errorf("what was written is not read: error %v", err)
			}
			s := chain.Status(client.DefaultChannelName)
			if s.MemoryPath != c.want || !strings.Contains(s.MemoryPathReason, c.reason) ||
				(c.reason == "") != (s.MemoryPathReason == "") {
				t.Errorf("the way is %q because of %q", s.MemoryPath, s.MemoryPathReason)
			}
		})
	}
}

func TestAForcedWayThatDoesNotWorkIsSaid(t *testing.T) {
	bluefield(t, libdoca.Release3_3, libdoca.Device{NoRDMA: true}, libdoca.Device{NoExport: true})
	c := chaintest.Start(t, over("mlx5_2", relay.ImportRDMA))
	v, err := client.Open(c.Context(), c.QueueConfig(1))
	if err == nil {
		_ = v.Close(c.Context())
		t.Fatal("a session opened although its memory cannot be reached")
	}
	for _, want := range []string{"import", "03:00.0 (mlx5_2)", "--import-device"} {
		if !errors.Is(err, status.NotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("the client is not told %q: %v", want, err)
		}
	}
	if s := c.Status(client.DefaultChannelName); s.MemoryPath != relay.PathNone ||
		!strings.Contains(s.MemoryPathReason, "mlx5_2") {
		t.Errorf("the way is %q because of %q", s.MemoryPath, s.MemoryPathReason)
	}
	c.StopRelay()
	config := relay.Config{Comch: c.Provider, CPUs: chaintest.Unpinned(1),
		RDMA: rdmadoca.New(rdmadoca.Options{Loader: oneLibrary, Device: "mlx5_2"}),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{
			chaintest.ChannelTo(client.DefaultChannelName, c.Target.Address())}}}
	config.Channels[0].ImportDevice = relay.ImportComch
	if _, err := relay.New(c.Context(), config); !errors.Is(err, status.BadConfig) ||
		!strings.Contains(err.Error(), "--import-device") {
		t.Errorf("the relay says %v", err)
	}
}
