package command

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

func newDoctorCommand() *cobra.Command {
	var from source
	return service.NewDoctorCommand(service.Doctor{
		Subject: `"run"`, Unit: "zc-relay", File: config.RelayFile,
		RuntimeDirectory: "/run/zc-relay",
		AddFlags:         from.add,
		Complete: func(o *doctor.Options, file string) error {
			sources := config.Sources{File: file, Environ: os.Environ(), Flags: from.flags,
				Partial: file == ""}
			c, err := config.LoadRelay(sources)
			if err != nil {
				return program.Usage(err)
			}
			if sources.Partial {
				sources.Partial = false
				_, o.Incomplete = config.LoadRelay(sources)
			}
			return program.Usage(describeRelay(o, c))
		},
	})
}

// describeRelay adds what a relay with this configuration would use.
func describeRelay(o *doctor.Options, c *config.Relay) error {
	o.Doca = c.Comch.Provider == "doca"
	o.OpenComch = func() (comch.Provider, error) {
		options := c.Comch.Options()
		options.RingMemory, options.Logger = c.Limits.RingMemory, zap.NewNop()
		return providers.Comch(c.Comch.Provider, options)
	}
	o.OpenDMA = func() (dma.Provider, error) {
		return providers.StagingDMA(c.Comch.Provider, c.Comch.Options().NeverWait)
	}
	o.ComchDirectory = cmp.Or(c.Comch.Directory, emulated.DefaultDirectory())
	o.CheckChannels = func() error {
		return relaySettings(c, newLookups(zap.NewNop(), func(netip.Addr) {})).Check()
	}
	var cpus []int
	var users []string
	for i := range c.Channels {
		channel := &c.Channels[i]
		cpus = append(cpus, channel.CPUs...)
		service := comch.Service{Device: channel.Device, Representor: channel.Representor,
			Name: channel.Name}
		o.Channels = append(o.Channels, relay.ChannelID{Device: pci.Normalize(channel.Device),
			Representor: pci.Normalize(channel.Representor), Name: channel.Name}.String())
		o.Servers = append(o.Servers, doctor.Server{Channel: i, Service: service,
			AdmitsOthers: channel.Access.AnyUser || len(channel.Access.Users) > 0})
		if channel.Isolation == string(relay.Staged) {
			o.DMADevices = append(o.DMADevices,
				doctor.StagedDevice{Channel: i, Device: channel.Device})
		}
		addresses, err := channel.LookUp(func(h config.Host) ([]netip.AddrPort, error) {
			return config.LookUp(context.Background(), h)
		})
		if err != nil {
			o.UnknownTargets = append(o.UnknownTargets, err)
		}
		for _, address := range addresses {
			t := doctor.Target{Channel: i, Address: address, RDMAAddress: channel.RDMAAddress,
				TLSServerName: channel.TLSServerName, Volume: channel.Volume,
				Foreign: channel.TargetProtocol != string(relay.ProtocolNative)}
			if channel.Isolation != string(relay.Staged) {
				t.ComchDevice = channel.Device
				t.ImportDevice = relay.ImportDevice(channel.ImportDevice)
			}
			o.Targets = append(o.Targets, t)
		}
		if !slices.Contains(o.IOTimeouts, channel.IOTimeout) {
			o.IOTimeouts = append(o.IOTimeouts, channel.IOTimeout)
		}
		users = append(users, channel.Access.Users...)
	}
	if len(users) > 0 {
		o.CheckUsers = func() error {
			_, err := unixsocket.UserIDs(users)
			return err
		}
	}
	common := service.Examined{
		Workers: &c.Workers, Control: &c.Control, Operations: &c.Operations, TLS: &c.TLS,
		RDMA: &c.RDMA, MoreCPUs: cpus, Descriptors: c.Descriptors,
	}
	return common.Describe(o)
}
