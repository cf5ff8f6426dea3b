// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// PCI addresses of the emulated hardware: the defaults of all programs.
const (
	// DefaultDevice is the device as the DPU sees it.
	DefaultDevice = "03:00.0"
	// DefaultRepresentor is the host function that the DPU serves.
	DefaultRepresentor = "b1:00.0"
	// DefaultHostDevice is the device as the host sees it.
	DefaultHostDevice = "b1:00.0"
)

// devicesFile is the file in the directory of servers that declares devices, one in a line:
//
//	dpu 03:00.0 representors=b1:00.0,b1:00.1 rdma=mlx5_0 netdev=p0
//	sf 03:00.0 rdma=mlx5_2 netdev=enp3s0f0s0
//	host b1:00.0 rdma=mlx5_2
//
// A sub-function (sf) of a DPU has the address of its port, and is there for RDMA alone.
// Without the file, any name is a device, and any device can serve and connect.
const devicesFile = "devices"

// maxDevicesFile bounds the file in bytes.
const maxDevicesFile = 64 << 10

// devices returns the declared devices, or nil if there is no file. A directory that cannot be
// opened declares none: whoever listens or connects in it learns why.
func (u unixSockets) devices() ([]comch.Device, error) {
	root, err := openRoot(u.directory)
	if err != nil {
		return nil, nil
	}
	defer root.close()
	descriptor, err := unix.Openat(root.descriptor, devicesFile,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	path := root.path + "/" + devicesFile
	if err != nil {
		return nil, fmt.Errorf("read devices: open %s: %w", path, err)
	}
	file := os.NewFile(uintptr(descriptor), path)
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxDevicesFile+1))
	if err != nil {
		return nil, fmt.Errorf("read devices: %w", err)
	}
	if len(text) > maxDevicesFile {
		return nil, status.Errorf(status.BadConfig, "read devices: %s exceeds %d bytes", path,
			maxDevicesFile)
	}
	devices, err := parseDevices(text)
	if err != nil {
		return nil, status.Errorf(status.BadConfig, "read devices: %s: %w", path, err)
	}
	return devices, nil
}

// parseDevices never returns nil without an error.
func parseDevices(text []byte) ([]comch.Device, error) {
	devices := []comch.Device{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		d, err := parseDevice(fields)
		if err == nil && slices.ContainsFunc(devices,
			func(other comch.Device) bool { return other.PCI == d.PCI && other.RDMA == d.RDMA }) {
			err = fmt.Errorf("device %s is declared twice", d.PCI)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		devices = append(devices, d)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return devices, nil
}

func parseDevice(fields []string) (comch.Device, error) {
	d := comch.Device{CanServe: fields[0] == "dpu", CanConnect: fields[0] == "host",
		Representors: []comch.Representor{}}
	if !d.CanServe && !d.CanConnect && fields[0] != "sf" || len(fields) < 2 {
		return d, fmt.Errorf("%q: want \"dpu ADDRESS\", \"sf ADDRESS\", or \"host ADDRESS\"",
			strings.Join(fields, " "))
	}
	d.PCI = pci.Normalize(fields[1])
	if err := CheckName("device", d.PCI); err != nil {
		return d, err
	}
	for _, field := range fields[2:] {
		key, value, _ := strings.Cut(field, "=")
		switch {
		case key == "rdma" && value != "":
			d.RDMA = value
		case key == "netdev" && value != "":
			d.Net = value
		case key == "representors" && d.CanServe:
			for address := range strings.SplitSeq(value, ",") {
				address = pci.Normalize(address)
				if err := CheckName("representor", address); err != nil {
					return d, err
				}
				d.Representors = append(d.Representors,
					comch.Representor{PCI: address, VUID: emulatedVUID(d.PCI, address)})
			}
		default:
			return d, fmt.Errorf("unknown property %q: use rdma=NAME, netdev=NAME and, for a dpu, "+
				"representors=ADDRESS,...", field)
		}
	}
	return d, nil
}

// emulatedVUID makes up what identifies a host function on any machine.
func emulatedVUID(device, representor string) string {
	return "EMULATED-" + device + "-" + representor
}

// defaultDevices are the devices that programs use by default.
func defaultDevices() []comch.Device {
	return []comch.Device{
		{PCI: DefaultDevice, CanServe: true, Representors: []comch.Representor{
			{PCI: DefaultRepresentor, VUID: emulatedVUID(DefaultDevice, DefaultRepresentor)}}},
		{PCI: DefaultHostDevice, CanConnect: true, Representors: []comch.Representor{}},
	}
}

// Devices implements comch.DeviceLister.
func (p *provider) Devices() ([]comch.Device, error) {
	declared, err := p.declared()
	if err != nil {
		return []comch.Device{}, err
	}
	if declared == nil {
		return defaultDevices(), nil
	}
	return declared, nil
}

// declared returns the declared devices; nil means that every name is one.
func (p *provider) declared() ([]comch.Device, error) {
	if u, ok := p.sockets.(unixSockets); ok {
		return u.devices()
	}
	return nil, nil
}

// device returns the first device with a name. Without declarations, every name is the address of
// a device that can be everything.
func (p *provider) device(name string) (d comch.Device, isDeclared bool, err error) {
	if err := CheckName("device", name); err != nil {
		return d, false, err
	}
	declared, err := p.declared()
	if err != nil {
		return d, false, err
	}
	if declared == nil {
		return comch.Device{PCI: name, CanServe: true, CanConnect: true}, false, nil
	}
	found, _ := comch.FindDevice(declared, name)
	if found == nil {
		return d, true, &comch.NoDeviceError{Err: status.Errorf(status.NotFound,
			"no device %q: \"zc-relay devices\" lists those that exist", name)}
	}
	return *found, true, nil
}

// resolveServer replaces the name of a server's device with its address, and fails unless the
// server can listen there for its representor.
func (p *provider) resolveServer(config *comch.ServerConfig) error {
	d, isDeclared, err := p.device(config.Device)
	switch {
	case err != nil:
		return err
	case !d.CanServe && !d.CanConnect:
		return status.Errorf(status.NotSupported,
			"device %s is a sub-function: servers listen on the port that it belongs to",
			config.Device)
	case !d.CanServe:
		return status.Errorf(status.NotSupported,
			"device %s belongs to a host: servers listen on a DPU's device", config.Device)
	case isDeclared && !slices.ContainsFunc(d.Representors,
		func(r comch.Representor) bool { return r.PCI == config.Representor }):
		return status.Errorf(status.NotFound, "device %s has no representor %q", config.Device,
			config.Representor)
	}
	config.Device = d.PCI
	return nil
}

// resolveClient replaces the name of a client's device with its address, and fails unless the
// client can connect from it.
func (p *provider) resolveClient(config *comch.ClientConfig) error {
	d, _, err := p.device(config.Device)
	switch {
	case err != nil:
		return err
	case !d.CanConnect:
		return status.Errorf(status.NotSupported,
			"device %s belongs to a DPU: clients connect from a host's device", config.Device)
	}
	config.Device = d.PCI
	return nil
}
