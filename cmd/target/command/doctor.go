// SPDX-License-Identifier: Apache-2.0

package command

import (
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func newDoctorCommand() *cobra.Command {
	from, _ := newSource()
	return service.NewDoctorCommand(service.Doctor[*config.Target]{
		Subject: "the target", Unit: "zc-relay-target", RuntimeDirectory: "/run/zc-relay-target",
		From: from, Describe: describeTarget,
	})
}

// describeTarget adds what a target with this configuration would use.
func describeTarget(o *doctor.Options, c *config.Target) error {
	control, rdmaAddress := listenAddresses(&c.Listen)
	o.RDMAAddresses = []netip.Addr{rdmaAddress.Addr()}
	o.OwnListen = append(o.OwnListen, control.String())
	if !o.Verbs && rdmaAddress.Port() != 0 { // iwarp listens with TCP
		o.OwnListen = append(o.OwnListen, rdmaAddress.String())
	}
	if path := c.State.Path(); path != "" {
		o.Directories = append(o.Directories, doctor.Directory{Path: path, Key: "state.directory",
			Flag: "--state-directory", Check: files.CheckDirectory})
	}
	if file := c.Listen.AddressFile; file != "" {
		o.Directories = append(o.Directories, doctor.Directory{Path: filepath.Dir(file),
			Key: "listen.address_file", Flag: "--address-file",
			Check: func(string) error { return files.CheckCreatable(file) }})
	}
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if v.Backend == "" {
			continue // there is no volume in a partial configuration
		}
		spec, err := volume.ParseSpec(v.Name+"="+v.Backend, v.BlockSize)
		if err != nil {
			return err
		}
		o.Volumes = append(o.Volumes, spec)
	}
	return nil
}
