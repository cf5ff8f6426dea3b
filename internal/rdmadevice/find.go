// SPDX-License-Identifier: Apache-2.0

package rdmadevice

import (
	"slices"

	"github.com/Mellanox/rdmamap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// finder finds the RDMA devices that belong to something else. Unknown names have none.
type finder interface {
	ofNetDev(name string) []string
	ofPCI(address string) []string
	ofAuxiliary(name string) []string
}

// systemFinder queries the running system. rdmamap does not support another root.
type systemFinder struct{}

func (systemFinder) ofNetDev(name string) []string {
	device, err := rdmamap.GetRdmaDeviceForNetdevice(name)
	if err != nil || device == "" { // either means no RDMA device
		return nil
	}
	return []string{device}
}

func (systemFinder) ofPCI(address string) []string {
	return rdmamap.GetRdmaDevicesForPcidev(address)
}

func (systemFinder) ofAuxiliary(name string) []string {
	return rdmamap.GetRdmaDevicesForAuxdev(name)
}

// listFinder searches devices that were read before.
type listFinder []Device

func (l listFinder) find(matches func(*Device) bool) []string {
	var names []string
	for i := range l {
		if matches(&l[i]) {
			names = append(names, l[i].Name)
		}
	}
	return names
}

func (l listFinder) ofNetDev(name string) []string {
	return l.find(func(d *Device) bool {
		return slices.ContainsFunc(d.Net, func(n NetDev) bool { return n.Name == name })
	})
}

func (l listFinder) ofPCI(address string) []string {
	return l.find(func(d *Device) bool { return d.PCI == address && d.Auxiliary == "" })
}

func (l listFinder) ofAuxiliary(name string) []string {
	return l.find(func(d *Device) bool { return d.Auxiliary == name })
}

// Select returns the devices that match names: names of RDMA devices, or of network interfaces, PCI
// functions or auxiliary devices that they belong to. It fails with status.NotFound for a name
// without a match.
func (t *Tree) Select(devices []Device, names []string) ([]Device, error) {
	var find finder = listFinder(devices)
	if t.root == SystemRoot {
		find = systemFinder{}
	}
	return selectWith(find, devices, names)
}

func selectWith(find finder, devices []Device, names []string) ([]Device, error) {
	wanted := make(map[string]bool)
	for _, name := range names {
		found := slices.Concat(find.ofNetDev(name), find.ofPCI(pci.Full(name)),
			find.ofAuxiliary(name))
		if slices.ContainsFunc(devices, func(d Device) bool { return d.Name == name }) {
			found = append(found, name)
		}
		if len(found) == 0 {
			return nil, status.Errorf(status.NotFound,
				"%q is not an RDMA device, nor a network interface, PCI function or auxiliary device that has one: \"zc-relay devices\" lists all",
				name)
		}
		for _, device := range found {
			wanted[device] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(devices), func(d Device) bool { return !wanted[d.Name] }),
		nil
}
