// SPDX-License-Identifier: Apache-2.0

package comch

import "github.com/zc-relay/zc-relay/internal/pci"

// Service identifies a server: its device, representor and name.
type Service struct {
	Device      string `json:"device"`
	Representor string `json:"representor"`
	Name        string `json:"name"`
}

// ServiceLister is a Provider that can list the services on this machine.
type ServiceLister interface {
	// Services lists all services. If it fails, it still returns those that it could read.
	Services() ([]Service, error)
}

// Device is a device of a provider, and what it can be. An empty name is not known.
type Device struct {
	// PCI is the address that names the device in configurations, in its shortest form, for
	// instance "03:00.0".
	PCI  string `json:"pci"`
	RDMA string `json:"rdma_device"` // for instance "mlx5_0"
	Net  string `json:"netdev"`      // its network interface, for instance "p0"
	// CanServe reports whether servers can listen on the device, as on a DPU, and CanConnect
	// whether clients can connect from it, as on a host. A sub-function of a DPU can do neither.
	CanServe   bool `json:"can_serve"`
	CanConnect bool `json:"can_connect"`
	// Representors are the host functions that the device's servers can serve.
	Representors []Representor `json:"representors"`
}

// Representor is a host function, as a DPU's device represents it.
type Representor struct {
	PCI  string `json:"pci"`  // the function's address on the host
	VUID string `json:"vuid"` // what identifies the function, wherever it is plugged in
}

// DeviceLister is a Provider that can list its devices.
type DeviceLister interface {
	// Devices lists all devices. If it fails, it still returns those that it could read. It creates
	// nothing on them. A provider that accepts any name may return only those that it knows.
	Devices() ([]Device, error)
}

// NoDeviceError is the error of a provider that does not have the device to connect from or to
// listen on. It tells that from a server that is not there, which is status.NotFound, too.
type NoDeviceError struct{ Err error }

// Error returns the text of Err.
func (e *NoDeviceError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NoDeviceError) Unwrap() error { return e.Err }

// ServerChecker is a Provider that can say whether a server could be opened, without opening it.
type ServerChecker interface {
	// CheckServer returns why Listen would fail, except that another server may have the name. It
	// changes nothing.
	CheckServer(config ServerConfig) error
}

// FindDevice returns the first device that name denotes: by its PCI address, its RDMA device, or
// its network interface. Devices may share a PCI address, as a port of a DPU and its sub-function
// do; the programs of DOCA take the first, too. others are those that name denotes as well.
func FindDevice(devices []Device, name string) (found *Device, others []Device) {
	for i := range devices {
		switch d := &devices[i]; {
		case !d.Is(name):
		case found == nil:
			found = d
		default:
			others = append(others, *d)
		}
	}
	return found, others
}

// Is reports whether name denotes the device.
func (d *Device) Is(name string) bool {
	return name != "" &&
		(pci.Normalize(d.PCI) == pci.Normalize(name) || d.RDMA == name || d.Net == name)
}
