package command

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/creatable"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func newDoctorCommand() *cobra.Command {
	var from source
	return service.NewDoctorCommand(service.Doctor{
		Subject: "the target", Unit: "zc-relay-target",
		File:             config.TargetFile,
		RuntimeDirectory: "/run/zc-relay-target",
		AddFlags:         from.add,
		Complete: func(o *doctor.Options, file string) error {
			if err := from.original.translate(from.flags); err != nil {
				return program.Usage(err)
			}
			sources := config.Sources{File: file, Environ: os.Environ(), Flags: from.flags,
				Partial: file == ""}
			c, err := config.LoadTarget(sources)
			if err != nil {
				return program.Usage(err)
			}
			if sources.Partial {
				sources.Partial = false
				_, o.Incomplete = config.LoadTarget(sources)
			}
			return program.Usage(describeTarget(o, c))
		},
	})
}

// describeTarget adds what a target with this configuration would use.
func describeTarget(o *doctor.Options, c *config.Target) error {
	common := service.Examined{
		Workers: &c.Workers, Control: &c.Control, Operations: &c.Operations, TLS: &c.TLS,
		RDMA: &c.RDMA, Descriptors: c.Descriptors,
	}
	if err := common.Describe(o); err != nil {
		return err
	}
	control, rdmaAddress := listenAddresses(&c.Listen)
	o.RDMAAddresses = []netip.Addr{rdmaAddress.Addr()}
	o.OwnListen = append(o.OwnListen, control.String())
	if !o.Verbs && rdmaAddress.Port() != 0 { // iwarp listens with TCP
		o.OwnListen = append(o.OwnListen, rdmaAddress.String())
	}
	if path := c.State.Path(); path != "" {
		o.Directories = append(o.Directories, doctor.Directory{Path: path, Key: "state.directory",
			Flag: "--state-directory", Check: creatable.CheckDirectory})
	}
	if file := c.Listen.AddressFile; file != "" {
		o.Directories = append(o.Directories, doctor.Directory{Path: filepath.Dir(file),
			Key: "listen.address_file", Flag: "--address-file",
			Check: func(string) error { return creatable.Check(file) }})
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
