// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/cmd/internal/unixsocket"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

func newDoctorCommand() *cobra.Command {
	return service.NewDoctorCommand(service.Doctor[*config.Relay]{
		Subject: `"run"`, Unit: "zc-relay", RuntimeDirectory: "/run/zc-relay",
		From: config.RelaySource(), Describe: describeRelay,
	})
}

// describeKept adds the channels that were added by command to those of the configuration.
func describeKept(o *doctor.Options, c *config.Relay, directory string) {
	o.Configured = len(c.Channels)
	var kept []config.Channel
	if kept, o.Kept, o.KeptError = config.ReadKeptChannels(directory); o.KeptError != nil {
		return
	}
	var all *config.Relay
	if all, o.KeptError = c.WithKept(kept, o.Kept); o.KeptError == nil {
		c.Channels = all.Channels
	}
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
	if directory := c.Comch.Directory; directory != "" && !o.Doca {
		o.Directories = append(o.Directories, doctor.Directory{Path: directory,
			Key: "comch.directory", Flag: "--emulated-dir",
			Check: func(string) error {
				return providers.CheckDirectory(c.Comch.Provider, directory)
			}})
	}
	if path := c.State.Path(); path != "" {
		o.Directories = append(o.Directories, doctor.Directory{Path: path, Key: "state.directory",
			Flag: "--state-directory", Check: files.CheckDirectory})
		describeKept(o, c, path)
	}
	o.CheckChannels = func() error {
		return relaySettings(c, newLookups(zap.NewNop(), func(netip.Addr) {})).Check()
	}
	describeChannels(o, c)
	return nil
}

// describeChannels adds what the channels would use.
func describeChannels(o *doctor.Options, c *config.Relay) {
	var users []string
	for i := range c.Channels {
		channel := &c.Channels[i]
		o.CPUs = append(o.CPUs, channel.CPUs...)
		service := comch.Service{Device: channel.Device, Representor: channel.Representor,
			Name: channel.Name}
		o.Channels = append(o.Channels, relay.ChannelID{Device: pci.Normalize(channel.Device),
			Representor: pci.Normalize(channel.Representor), Name: channel.Name}.String())
		o.Servers = append(o.Servers, doctor.Server{Channel: i, Service: service,
			AdmitsOthers: channel.Access.AnyUser || len(channel.Access.Users) > 0,
			AdmitsAll:    channel.Access.AnyUser})
		if channel.Isolation == string(relay.Staged) {
			o.DMADevices = append(o.DMADevices,
				doctor.StagedDevice{Channel: i, Device: channel.Device})
		}
		addresses, err := channel.LookUp(func(h config.Host) ([]netip.AddrPort, error) {
			return config.LookUp(context.Background(), h)
		})
		if err != nil && len(c.Channels) > 1 {
			err = fmt.Errorf("channel %s: %w", channel.FullName(), err)
		}
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
}
