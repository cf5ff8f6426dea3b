// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// devicesSchema names the format of the JSON document. Fields may be added within a version.
const devicesSchema = "zc-relay.devices/1"

// deviceList is what "zc-relay devices" prints.
type deviceList struct {
	Schema string              `json:"schema"`
	RDMA   []rdmadevice.Device `json:"rdma"`
	Comch  comchDevices        `json:"comch"`
	Error  *report.Failure     `json:"error,omitempty"`
}

// comchDevices describes the services of the Comch provider.
type comchDevices struct {
	Provider string `json:"provider"`
	// Devices lists the provider's devices, and Services what servers currently offer on them.
	Devices  []comch.Device  `json:"devices"`
	Services []comch.Service `json:"services"`
	// Absent is the reason why there is no list.
	Absent string `json:"absent,omitempty"`
	// elsewhere says where other services may be, "" for nowhere.
	elsewhere string
	// noServices is set if the provider cannot list services.
	noServices bool
}

// devicesOptions holds the flags of "zc-relay devices".
type devicesOptions struct {
	output      report.Output
	sysfs       string
	file        string
	comch       string
	emulatedDir string
}

func newDevicesCommand() *cobra.Command {
	o := devicesOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "devices [NAME...]",
		Short: "List RDMA devices, and Comch devices with their representors",
		Long: `devices lists the machine's RDMA devices with their network interfaces, PCI addresses,
ports and GIDs, and the devices, representors and services of the Comch
provider, which --config takes from the configuration of a relay. A NAME (RDMA
device, network interface, PCI address, auxiliary device) restricts the list to
the RDMA devices that belong to it.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			list := deviceList{Schema: devicesSchema, RDMA: []rdmadevice.Device{},
				Comch: comchDevices{Provider: o.comch, Devices: []comch.Device{},
					Services: []comch.Service{}}}
			failure := o.takeFile(cmd.Flags())
			isComplete := false
			if failure == nil {
				isComplete, failure = o.fill(&list, names)
			}
			var err error
			switch {
			case o.output == report.JSON:
				list.Error = program.FailureOf(failure)
				err = report.WriteJSON(cmd.OutOrStdout(), &list)
			case isComplete:
				err = list.writeText(cmd.OutOrStdout())
			}
			return errors.Join(failure, err)
		},
	}
	f := cmd.Flags()
	o.output.AddFlag(f)
	f.StringVar(&o.sysfs, "path.sysfs", rdmadevice.SystemRoot, "where sysfs is")
	f.StringVarP(&o.file, "config", "c", "",
		"YAML file with the configuration of a relay; flags override it")
	f.StringVar(&o.comch, providerFlag, providers.DefaultComch, "Comch provider: emulated or doca")
	f.StringVar(&o.emulatedDir, emulatedDirFlag, "",
		"directory of the emulated Comch (default: that of \"run\")")
	return cmd
}

// The flags that override the configuration file.
const (
	providerFlag    = "comch-provider"
	emulatedDirFlag = "emulated-dir"
)

// takeFile takes from the configuration file what no flag says.
func (o *devicesOptions) takeFile(f *pflag.FlagSet) error {
	if o.file == "" {
		return nil
	}
	c, err := loadFile(o.file)
	if err != nil {
		return program.Usage(fmt.Errorf("--config: %w", err))
	}
	if !f.Changed(providerFlag) {
		o.comch = c.Comch.Provider
	}
	if !f.Changed(emulatedDirFlag) {
		o.emulatedDir = c.Comch.Directory
	}
	return nil
}

// fill fills a list, which is complete unless the call was wrong.
func (o *devicesOptions) fill(list *deviceList, names []string) (isComplete bool, err error) {
	tree, err := rdmadevice.Open(o.sysfs)
	if err != nil {
		return false, program.Usage(fmt.Errorf("--path.sysfs: %w", err))
	}
	var broken error
	list.Comch, broken = o.comchDevices()
	devices, failed := tree.Devices()
	failed = errors.Join(failed, broken)
	if len(names) > 0 {
		if devices, err = tree.Select(devices, names); err != nil {
			return false, program.Usage(errors.Join(err, failed))
		}
	}
	list.RDMA = append(list.RDMA, devices...)
	return true, failed
}

// comchDevices describes the devices and services of the provider. A provider that this machine
// lacks is no error, and neither is one without devices; a file that declares them wrongly is.
func (o *devicesOptions) comchDevices() (d comchDevices, err error) {
	d = comchDevices{Provider: o.comch, elsewhere: providers.Elsewhere(o.comch, o.emulatedDir),
		Devices: []comch.Device{}, Services: []comch.Service{}}
	provider, err := providers.Comch(o.comch,
		providers.ComchOptions{Directory: o.emulatedDir, Logger: zap.NewNop()})
	if err != nil {
		d.Absent = err.Error()
		return d, nil
	}
	if lister, can := provider.(comch.DeviceLister); can {
		devices, listErr := lister.Devices()
		if listErr != nil {
			d.Absent = listErr.Error()
		}
		if errors.Is(listErr, status.BadConfig) {
			err = fmt.Errorf("comch provider %s: %w", o.comch, listErr)
		}
		d.Devices = append(d.Devices, devices...)
	}
	lister, can := provider.(comch.ServiceLister)
	if !can {
		d.noServices = true // hardware does not say what servers offer
		return d, err
	}
	services, listErr := lister.Services()
	if listErr != nil {
		d.Absent = listErr.Error()
	}
	d.Services = append(d.Services, services...)
	return d, err
}

func (l *deviceList) writeText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(l.RDMA) == 0 {
		fmt.Fprintln(table, "no RDMA devices (the provider iwarp needs none)")
	} else {
		fmt.Fprintln(table, "RDMA DEVICE\tPCI\tFUNCTION\tNETDEVS\tNUMA\tVERBS\tFIRMWARE")
	}
	for i := range l.RDMA {
		writeDevice(table, &l.RDMA[i])
	}
	l.Comch.write(table, l.RDMA)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print devices: %w", err)
	}
	return nil
}

func (d *comchDevices) write(w io.Writer, rdma []rdmadevice.Device) {
	fmt.Fprintf(w, "\ncomch provider %s\n", d.Provider)
	if d.Absent != "" {
		fmt.Fprintf(w, "  %s\n", d.Absent)
	}
	if len(d.Devices) > 0 {
		fmt.Fprintln(w, "  DEVICE\tROLE\tRDMA DEVICE\tFUNCTION\tNETDEV\tREPRESENTORS")
	}
	for i := range d.Devices {
		device := &d.Devices[i]
		var addresses []string
		for _, r := range device.Representors {
			addresses = append(addresses, r.PCI)
		}
		function := ""
		if i := slices.IndexFunc(rdma, func(r rdmadevice.Device) bool {
			return r.Name == device.RDMA
		}); i >= 0 {
			function = rdma[i].Function
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", device.PCI, roleOf(device), orNone(device.RDMA),
			orNone(function), orNone(device.Net), orNone(strings.Join(addresses, ", ")))
	}
	for i := range d.Devices {
		first, others := comch.FindDevice(d.Devices, d.Devices[i].PCI)
		if len(others) > 0 && first == &d.Devices[i] {
			same := fmt.Sprintf("the %d others have the same address, and are", len(others))
			if len(others) == 1 {
				same = "another one has the same address, and is"
			}
			fmt.Fprintf(w, "  %s alone means %s: %s named by RDMA device\n", first.PCI,
				orNone(first.RDMA), same)
		}
	}
	switch {
	case d.noServices || d.Absent != "" && len(d.Services) == 0:
	case len(d.Services) == 0:
		fmt.Fprintln(w, "  no services are offered")
		if d.elsewhere != "" {
			fmt.Fprintf(w, "  %s\n", d.elsewhere)
		}
	default:
		fmt.Fprintln(w, "  DEVICE\tREPRESENTOR\tSERVICE")
	}
	for _, s := range d.Services {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", s.Device, s.Representor, s.Name)
	}
}

func roleOf(d *comch.Device) string {
	switch {
	case d.CanServe && d.CanConnect:
		return "dpu, host"
	case d.CanServe:
		return "dpu"
	case d.CanConnect:
		return "host"
	}
	return "none"
}

func writeDevice(w io.Writer, d *rdmadevice.Device) {
	pci, node, netdevs := orNone(d.PCI), "-", ""
	if d.Auxiliary != "" {
		pci += " " + d.Auxiliary
	}
	if d.NUMANode != nil {
		node = fmt.Sprint(*d.NUMANode)
	}
	for i, n := range d.Net {
		if i > 0 {
			netdevs += ", "
		}
		netdevs += fmt.Sprintf("%s (%s, MTU %d)", n.Name, orNone(n.State), n.MTU)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, pci, orNone(d.Function), orNone(netdevs),
		node, orNone(d.Verbs), orNone(d.Firmware))
	for i := range d.Ports {
		p := &d.Ports[i]
		fmt.Fprintf(w, "  port %d\t%s\t%s, %s\t%d Gbit/s\n", p.Number, p.LinkLayer, p.State,
			p.PhysicalState, p.RateBitsPerS/1e9)
		if p.LinkLayer == "Ethernet" && len(p.GIDs) == 0 {
			fmt.Fprintln(w, "    no GIDs: the port carries no RDMA")
		}
		for _, g := range p.GIDs {
			fmt.Fprintf(w, "    GID %d\t%s\t%s\t%s\n", g.Index, orNone(g.Type), g.GID,
				orNone(g.NetDev))
		}
	}
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
