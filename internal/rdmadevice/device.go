// SPDX-License-Identifier: Apache-2.0

// Package rdmadevice lists the machine's RDMA devices: their names, the hardware and interfaces
// they belong to, and the state of their ports. It reads sysfs, which takes neither libraries nor
// privileges.
package rdmadevice

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs/sysfs"
)

// Device is an RDMA device.
type Device struct {
	Name     string `json:"name"` // for instance "mlx5_0"
	NodeGUID string `json:"node_guid"`
	Firmware string `json:"firmware"`
	Board    string `json:"board"`
	// PCI is the address of the function that the device belongs to, empty for a software device.
	// Auxiliary is the sub-function on it, if any.
	PCI       string `json:"pci"`
	Auxiliary string `json:"auxiliary"`
	// Function is what the device belongs to: "pf" (a physical function), "vf" (a virtual one), "sf"
	// (a sub-function), or empty for a software device.
	Function string `json:"function"`
	// NUMANode is the node that the device is attached to; nil if there is none or it is unknown.
	NUMANode *int `json:"numa_node"`
	// Verbs is the name of the character device for verbs programs.
	Verbs string   `json:"verbs_device"`
	Net   []NetDev `json:"netdevs"`
	Ports []Port   `json:"ports"`
}

// NetDev is a network interface of an RDMA device.
type NetDev struct {
	Name  string `json:"name"`
	MTU   int    `json:"mtu_bytes"` // 0 if it cannot be read
	State string `json:"state"`     // RFC 2863: "up", "down", …
}

// Port is a port of an RDMA device.
type Port struct {
	Number        uint   `json:"number"`
	State         string `json:"state"`          // "ACTIVE", "DOWN", …
	PhysicalState string `json:"physical_state"` // "LinkUp", "Disabled", …
	LinkLayer     string `json:"link_layer"`     // "Ethernet" or "InfiniBand"
	RateBitsPerS  uint64 `json:"rate_bits_per_s"`
	GIDs          []GID  `json:"gids"`
}

// Active reports whether the port can carry traffic.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// GID is an entry of a port's GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"` // for instance "RoCE v2"
	NetDev string `json:"netdev"`
}

// SystemRoot is the usual location of sysfs.
const SystemRoot = "/sys"

const classDirectory = "class/infiniband"

// Tree is a sysfs tree. Its methods may be called concurrently.
type Tree struct {
	root string
	fs   sysfs.FS
}

// Open opens the sysfs at root: SystemRoot, or a copy from another machine.
func Open(root string) (*Tree, error) {
	fs, err := sysfs.NewFS(root)
	if err != nil {
		return nil, fmt.Errorf("open sysfs at %q: %w", root, err)
	}
	return &Tree{root: root, fs: fs}, nil
}

// names returns the names of all RDMA devices, none if the kernel has no RDMA.
func (t *Tree) names() ([]string, error) {
	names, err := t.fs.InfiniBandClassDevices()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// Devices describes all RDMA devices. The error lists devices that cannot be read; the others are
// returned all the same.
func (t *Tree) Devices() ([]Device, error) {
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	devices := []Device{}
	var errs []error
	for _, name := range names {
		d, err := t.device(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		devices = append(devices, *d)
	}
	return devices, errors.Join(errs...)
}

func (t *Tree) device(name string) (*Device, error) {
	read, err := t.fs.InfiniBandDevice(name)
	if err != nil {
		return nil, fmt.Errorf("read RDMA device %q: %w", name, err)
	}
	d := &Device{Name: name, NodeGUID: read.NodeGUID, Firmware: read.FirmwareVersion,
		Board: read.BoardID, Net: []NetDev{}, Ports: []Port{}}
	d.PCI, d.Auxiliary = t.Location(name)
	d.Function = t.function(d)
	d.NUMANode = t.numaNode(name)
	d.Verbs = t.verbsDevice(name)
	const bitsPerByte = 8
	for _, number := range slices.Sorted(maps.Keys(read.Ports)) {
		p := read.Ports[number]
		d.Ports = append(d.Ports, Port{
			Number: number, State: p.State, PhysicalState: p.PhysState, LinkLayer: p.LinkLayer,
			RateBitsPerS: p.Rate * bitsPerByte,
			GIDs:         t.gids(name, number),
		})
	}
	for _, netdev := range t.netDevs(d) {
		mtu, _ := strconv.Atoi(t.read("class/net", netdev, "mtu"))
		state := t.read("class/net", netdev, "operstate")
		d.Net = append(d.Net, NetDev{Name: netdev, MTU: mtu, State: state})
	}
	return d, nil
}

// read returns the content of a small file, "" if it cannot be read.
func (t *Tree) read(path ...string) string {
	content, err := os.ReadFile(filepath.Join(append([]string{t.root}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (t *Tree) list(path ...string) []string {
	entries, err := os.ReadDir(filepath.Join(append([]string{t.root}, path...)...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	// auxiliaryName is DRIVER.KIND.ID, the name of a device on the auxiliary bus.
	auxiliaryName = regexp.MustCompile(`^[a-z0-9_]+\.[a-z_]+\.[0-9]+$`)
)

// Location returns the PCI function of an RDMA device and the auxiliary device on it, as Device
// does. Both come from the sysfs path of the parent device.
func (t *Tree) Location(name string) (pci, auxiliary string) {
	path, err := filepath.EvalSymlinks(filepath.Join(t.root, classDirectory, name, "device"))
	if err != nil {
		return "", ""
	}
	for part := range strings.SplitSeq(path, string(filepath.Separator)) {
		if pciAddress.MatchString(part) {
			pci, auxiliary = part, "" // the last one counts: bridges precede it
		} else if pci != "" && auxiliaryName.MatchString(part) {
			auxiliary = part
		}
	}
	return pci, auxiliary
}

func (t *Tree) function(d *Device) string {
	switch {
	case d.PCI == "":
		return ""
	case strings.Contains(d.Auxiliary, ".sf."):
		return "sf"
	case len(t.list("bus/pci/devices", d.PCI, "physfn")) > 0:
		return "vf"
	}
	return "pf"
}

func (t *Tree) numaNode(name string) *int {
	node, err := strconv.Atoi(t.read(classDirectory, name, "device/numa_node"))
	if err != nil || node < 0 {
		return nil
	}
	return &node
}

func (t *Tree) verbsDevice(name string) string {
	for _, device := range t.list("class/infiniband_verbs") {
		if t.read("class/infiniband_verbs", device, "ibdev") == name {
			return device
		}
	}
	return ""
}

// netDevs finds a device's network interfaces: in its GID tables, on the same function (IP over
// InfiniBand), and below a software device.
func (t *Tree) netDevs(d *Device) []string {
	names := t.list(classDirectory, d.Name, "device/net")
	if parent := t.read(classDirectory, d.Name, "parent"); parent != "" {
		names = append(names, parent)
	}
	for i := range d.Ports {
		for _, gid := range d.Ports[i].GIDs {
			if gid.NetDev != "" {
				names = append(names, gid.NetDev)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// gids returns the entries of a port's GID table that are in use.
func (t *Tree) gids(name string, port uint) []GID {
	directory := filepath.Join(classDirectory, name, "ports", fmt.Sprint(port))
	gids := []GID{}
	for _, entry := range t.list(directory, "gids") {
		index, err := strconv.Atoi(entry)
		if err != nil {
			continue
		}
		value := t.read(directory, "gids", entry)
		if strings.Trim(value, "0:") == "" {
			continue
		}
		gids = append(gids, GID{
			Index: index, GID: value,
			Type: t.read(directory, "gid_attrs/types", entry), NetDev: t.read(directory,
				"gid_attrs/ndevs", entry),
		})
	}
	slices.SortFunc(gids, func(a, b GID) int { return a.Index - b.Index })
	return gids
}
