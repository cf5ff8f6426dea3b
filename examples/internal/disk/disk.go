// SPDX-License-Identifier: Apache-2.0

// Package disk has what the samples that use a volume have in common: the flags that choose it.
package disk

import (
	"flag"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

// Flags adds the flags that choose a volume, with a prefix for their names. After they are parsed,
// the function that it returns returns the configuration, of a volume that comes back after
// failures.
func Flags(flags *flag.FlagSet, prefix string) func() client.Config {
	directory := flags.String(prefix+"emulated-dir", "",
		"directory where emulated servers and clients meet")
	device := flags.String(prefix+"pci-addr", emulated.DefaultHostDevice,
		"PCI address of the device")
	channel := flags.String(prefix+"channel-name", client.DefaultChannelName,
		"service name of the relay")
	return func() client.Config {
		return client.Config{
			Provider: emulated.New(emulated.Options{Directory: *directory}),
			Device:   *device, ChannelName: *channel, Reconnect: &retry.Policy{},
		}
	}
}
