// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include "shim.h"
//
// typedef struct doca_devinfo *zcd_devinfo;
// typedef struct doca_devinfo_rep *zcd_devinfo_rep;
//
// #define CALL(name, ...) return f->name(__VA_ARGS__)
// static doca_error_t zcd_device_list(zcd_table f, zcd_devinfo **list, uint32_t *count)
// { CALL(devinfo_create_list, list, count); }
// static doca_error_t zcd_device_list_free(zcd_table f, zcd_devinfo *list)
// { CALL(devinfo_destroy_list, list); }
// static doca_error_t zcd_device_pci(zcd_table f, zcd_devinfo info, char *out)
// { CALL(devinfo_get_pci_addr_str, info, out); }
// static doca_error_t zcd_device_ib(zcd_table f, zcd_devinfo info, char *out)
// { CALL(devinfo_get_ibdev_name, info, out, DOCA_DEVINFO_IBDEV_NAME_SIZE); }
// static doca_error_t zcd_device_interface(zcd_table f, zcd_devinfo info, char *out)
// { CALL(devinfo_get_iface_name, info, out, DOCA_DEVINFO_IFACE_NAME_SIZE); }
// static doca_error_t zcd_device_open(zcd_table f, zcd_devinfo info, struct doca_dev **device)
// { CALL(dev_open, info, device); }
// static doca_error_t zcd_device_close(zcd_table f, struct doca_dev *device)
// { CALL(dev_close, device); }
// static zcd_devinfo zcd_device_info(zcd_table f, struct doca_dev *device)
// { CALL(dev_as_devinfo, device); }
// static doca_error_t zcd_device_pd(zcd_table f, struct doca_dev *device, struct ibv_pd **pd)
// { CALL(rdma_bridge_get_dev_pd, device, pd); }
// static doca_error_t zcd_rep_net(zcd_table f, zcd_devinfo info, uint8_t *yes)
// { CALL(devinfo_rep_cap_is_filter_net_supported, info, yes); }
// static doca_error_t zcd_rep_list(zcd_table f, struct doca_dev *device, zcd_devinfo_rep **list,
//	uint32_t *count)
// { CALL(devinfo_rep_create_list, device, DOCA_DEVINFO_REP_FILTER_NET, list, count); }
// static doca_error_t zcd_rep_list_free(zcd_table f, zcd_devinfo_rep *list)
// { CALL(devinfo_rep_destroy_list, list); }
// static doca_error_t zcd_rep_pci(zcd_table f, zcd_devinfo_rep info, char *out)
// { CALL(devinfo_rep_get_pci_addr_str, info, out); }
// static doca_error_t zcd_rep_vuid(zcd_table f, zcd_devinfo_rep info, char *out)
// {
//	if (!f->devinfo_rep_get_vuid)
//		return DOCA_ERROR_NOT_SUPPORTED;
//	CALL(devinfo_rep_get_vuid, info, out, DOCA_DEVINFO_REP_VUID_SIZE);
// }
// static doca_error_t zcd_rep_open(zcd_table f, zcd_devinfo_rep info, struct doca_dev_rep **rep)
// { CALL(dev_rep_open, info, rep); }
// static doca_error_t zcd_rep_close(zcd_table f, struct doca_dev_rep *rep)
// { CALL(dev_rep_close, rep); }
import "C"

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxDevices bounds the lists of devices and representors.
const maxDevices = 4096

// DeviceInfo describes a device that can be opened.
type DeviceInfo struct {
	// PCIAddress has the long form, for instance "0000:03:00.0".
	PCIAddress string
	// IBName and InterfaceName are "" if the device has none.
	IBName, InterfaceName string

	info C.zcd_devinfo // valid while its list is
}

// Is reports whether name denotes the device: its PCI address in the long form or without the
// domain 0000, its IB name, or its network interface.
func (d *DeviceInfo) Is(name string) bool {
	return name != "" && (SamePCIAddress(d.PCIAddress, name) || name == d.IBName ||
		name == d.InterfaceName)
}

// String returns the PCI address and, because a function and its sub-functions share it, the IB
// name: "0000:03:00.0 (mlx5_2)".
func (d *DeviceInfo) String() string {
	if d.IBName == "" {
		return d.PCIAddress
	}
	return d.PCIAddress + " (" + d.IBName + ")"
}

// Name returns a name that denotes this device and no other: a function and its sub-functions share
// a PCI address.
func (d *DeviceInfo) Name() string {
	if d.IBName != "" {
		return d.IBName
	}
	return d.PCIAddress
}

// SamePCIAddress reports whether two PCI addresses are the same. Both notations are accepted:
// "0000:03:00.0" and "03:00.0", in either case.
func SamePCIAddress(a, b string) bool { return longAddress(a) == longAddress(b) }

func longAddress(address string) string {
	if strings.Count(address, ":") == 1 {
		address = "0000:" + address
	}
	return strings.ToLower(address)
}

// Devices lists the devices that libdoca can open. The list is empty on a machine without a card.
func (l *Library) Devices() ([]DeviceInfo, error) {
	var devices []DeviceInfo
	err := l.withDevices(func(all []DeviceInfo) error {
		devices = all
		for i := range devices {
			devices[i].info = nil
		}
		return nil
	})
	return devices, err
}

// withDevices calls use while the list of devices is valid.
func (l *Library) withDevices(use func([]DeviceInfo) error) error {
	var list *C.zcd_devinfo
	var count C.uint32_t
	result := C.zcd_device_list(l.table, &list, &count)
	if status.Code(result) == status.NotFound {
		return use(nil)
	}
	if err := l.failure("list DOCA devices", result); err != nil {
		return err
	}
	defer C.zcd_device_list_free(l.table, list)
	if count > maxDevices {
		return status.Errorf(status.Unexpected, "list DOCA devices: %d devices", count)
	}
	devices := make([]DeviceInfo, 0, count)
	for _, info := range unsafe.Slice(list, count) {
		d := DeviceInfo{info: info}
		var err error
		d.PCIAddress, err = l.name("get PCI address of device", C.DOCA_DEVINFO_PCI_ADDR_SIZE,
			func(out *C.char) C.doca_error_t { return C.zcd_device_pci(l.table, info, out) })
		if err != nil {
			continue // nobody could ask for it
		}
		// A device need not have these names.
		d.IBName, _ = l.name("", C.DOCA_DEVINFO_IBDEV_NAME_SIZE,
			func(out *C.char) C.doca_error_t { return C.zcd_device_ib(l.table, info, out) })
		d.InterfaceName, _ = l.name("", C.DOCA_DEVINFO_IFACE_NAME_SIZE,
			func(out *C.char) C.doca_error_t { return C.zcd_device_interface(l.table, info, out) })
		devices = append(devices, d)
	}
	return use(devices)
}

// name calls get with a zeroed buffer of size bytes and returns the text in it.
func (l *Library) name(what string, size int, get func(*C.char) C.doca_error_t) (string, error) {
	// One byte more, so that the text ends in any case.
	buffer := C.calloc(1, C.size_t(size+1))
	defer C.free(buffer)
	if err := l.failure(what, get((*C.char)(buffer))); err != nil {
		return "", err
	}
	return C.GoString((*C.char)(buffer)), nil
}

// findDevice calls use with the device of that name while its list is valid.
func (l *Library) findDevice(name string, use func(*DeviceInfo) error) error {
	return l.withDevices(func(devices []DeviceInfo) error {
		for i := range devices {
			if devices[i].Is(name) {
				return use(&devices[i])
			}
		}
		if len(devices) == 0 {
			return status.Errorf(status.NotFound,
				"no DOCA device: libdoca %s is installed, but finds no BlueField or ConnectX",
				l.Version())
		}
		var names []string
		for i := range devices {
			names = append(names, devices[i].String())
		}
		return status.Errorf(status.NotFound, "no DOCA device %q: the devices are %s", name,
			strings.Join(names, ", "))
	})
}

// Device is an open doca_dev. OpenDevice returns the same Device for all names of a device, so that
// everything on it shares one protection domain.
type Device struct {
	DeviceInfo
	library    *Library
	dev        *C.struct_doca_dev
	references int // guarded by Library.mu
}

// OpenDevice opens a device by its PCI address, IB name, or interface. It fails with
// status.NotFound if there is no such device. Each OpenDevice needs a Close.
func (l *Library) OpenDevice(name string) (*Device, error) {
	var device *Device
	err := l.findDevice(name, func(info *DeviceInfo) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, d := range l.devices {
			if d.PCIAddress == info.PCIAddress && d.IBName == info.IBName {
				d.references++
				device = d
				return nil
			}
		}
		device = &Device{DeviceInfo: *info, library: l, references: 1}
		err := l.failure("open DOCA device "+info.String(),
			C.zcd_device_open(l.table, info.info, &device.dev))
		if err == nil {
			device.info = C.zcd_device_info(l.table, device.dev)
			l.devices = append(l.devices, device)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return device, nil
}

// Library returns the library that the device was opened with.
func (d *Device) Library() *Library { return d.library }

// Close drops what OpenDevice has acquired, and closes the device with the last reference. It fails
// with status.InUse if something on the device still exists.
func (d *Device) Close() error {
	d.library.mu.Lock()
	defer d.library.mu.Unlock()
	d.references--
	if d.references > 0 {
		return nil
	}
	l := d.library
	l.devices = slices.DeleteFunc(l.devices, func(other *Device) bool { return other == d })
	return l.failure("close DOCA device "+d.String(), C.zcd_device_close(l.table, d.dev))
}

// acquire adds a reference.
func (d *Device) acquire() {
	d.library.mu.Lock()
	d.references++
	d.library.mu.Unlock()
}

// ProtectionDomain returns the address of the device's ibv_pd, in which memory that was imported
// with the device has its key. The device owns it: it must not be freed, and nothing may use it
// after the device is closed.
func (d *Device) ProtectionDomain() (uintptr, error) {
	var pd *C.struct_ibv_pd
	err := d.library.failure("get protection domain of DOCA device "+d.String(),
		C.zcd_device_pd(d.library.table, d.dev, &pd))
	return uintptr(unsafe.Pointer(pd)), err
}

// RepresentorInfo describes a host function that a device can represent.
type RepresentorInfo struct {
	// PCIAddress is the address on the host, in the long form.
	PCIAddress string
	// VUID identifies the function wherever it is plugged in. It may be "".
	VUID string
}

// Representor is an open doca_dev_rep: a host function, as the DPU sees it.
type Representor struct {
	RepresentorInfo
	device *Device
	rep    *C.struct_doca_dev_rep
}

// Representors lists the host functions that the device can represent. The list is empty on a host.
func (d *Device) Representors() ([]RepresentorInfo, error) {
	var all []RepresentorInfo
	err := d.withRepresentors(func(r RepresentorInfo, _ C.zcd_devinfo_rep) (bool, error) {
		all = append(all, r)
		return true, nil
	})
	return all, err
}

// OpenRepresentor opens the representor of a host function, named by its PCI address or VUID. It
// fails with status.NotFound if the device does not represent the function.
func (d *Device) OpenRepresentor(name string) (*Representor, error) {
	var opened *Representor
	var known []string
	err := d.withRepresentors(func(r RepresentorInfo, info C.zcd_devinfo_rep) (bool, error) {
		known = append(known, r.PCIAddress)
		if !SamePCIAddress(r.PCIAddress, name) && (r.VUID == "" || r.VUID != name) {
			return true, nil
		}
		opened = &Representor{RepresentorInfo: r, device: d}
		return false, d.library.failure("open representor "+r.PCIAddress,
			C.zcd_rep_open(d.library.table, info, &opened.rep))
	})
	if err != nil {
		return nil, err
	}
	if opened == nil {
		return nil, status.Errorf(status.NotFound,
			"device %v has no representor of the host function %q: it has %q", d, name,
			known)
	}
	return opened, nil
}

// withRepresentors calls use with each representor, while their list is valid, until use returns
// false.
func (d *Device) withRepresentors(use func(RepresentorInfo,
	C.zcd_devinfo_rep) (bool, error)) error {
	l := d.library
	var supported C.uint8_t
	if C.zcd_rep_net(l.table, d.info, &supported) != C.DOCA_SUCCESS || supported == 0 {
		return nil
	}
	var list *C.zcd_devinfo_rep
	var count C.uint32_t
	what := "list representors of DOCA device " + d.PCIAddress
	result := C.zcd_rep_list(l.table, d.dev, &list, &count)
	if code := status.Code(result); code == status.NotSupported || code == status.NotFound {
		return nil
	}
	if err := l.failure(what, result); err != nil {
		return err
	}
	defer C.zcd_rep_list_free(l.table, list)
	if count > maxDevices {
		return status.Errorf(status.Unexpected, "%s: %d representors", what, count)
	}
	for _, info := range unsafe.Slice(list, count) {
		address, err := l.name("get PCI address of representor", C.DOCA_DEVINFO_PCI_ADDR_SIZE,
			func(out *C.char) C.doca_error_t { return C.zcd_rep_pci(l.table, info, out) })
		if err != nil {
			return err
		}
		vuid, _ := l.name("", C.DOCA_DEVINFO_REP_VUID_SIZE,
			func(out *C.char) C.doca_error_t { return C.zcd_rep_vuid(l.table, info, out) })
		if next, err := use(RepresentorInfo{address, vuid}, info); err != nil || !next {
			return err
		}
	}
	return nil
}

// Close closes the representor. Its device must still be open.
func (r *Representor) Close() error {
	return r.device.library.failure("close representor "+r.PCIAddress,
		C.zcd_rep_close(r.device.library.table, r.rep))
}
