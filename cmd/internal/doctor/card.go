// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/comch"
)

// cardProvider names a provider that reaches a card through the files of verbs, and that locks the
// memory of the process; "" if there is none.
func (m *machine) cardProvider() string {
	switch {
	case m.Verbs:
		return "verbs"
	case (m.Doca || m.DocaRDMA) && !m.emulatesDOCA():
		return "doca"
	}
	return ""
}

// emulatesDOCA reports whether libdoca is an emulation: it has devices, and the kernel has none of
// them.
func (m *machine) emulatesDOCA() bool {
	if m.emulated == nil {
		names := m.docaDevices()
		known, _ := m.list() // devices reports the error
		m.emulated = new(len(names) > 0 && !slices.ContainsFunc(known,
			func(d rdmadevice.Device) bool { return slices.Contains(names, d.Name) }))
	}
	return *m.emulated
}

// docaDevices returns the RDMA devices that libdoca says it has, as far as it can be asked.
func (m *machine) docaDevices() (names []string) {
	if m.Doca && m.OpenComch != nil {
		if provider, err := m.OpenComch(); err == nil {
			names = comchDevices(provider)
		}
	}
	if len(names) > 0 || !m.DocaRDMA || m.OpenRDMA == nil {
		return names
	}
	provider, err := m.OpenRDMA()
	if err != nil {
		return nil
	}
	addresses, _ := m.rdmaAddresses()
	for _, a := range addresses {
		device, err := openRDMA(provider, a.Addr)
		if err != nil {
			continue
		}
		if name := device.Capabilities().Device.RDMA; name != "" {
			names = append(names, name)
		}
		_ = device.Close() // the check of the RDMA provider reports a failure
	}
	return names
}

func comchDevices(provider comch.Provider) (names []string) {
	if lister, can := provider.(comch.DeviceLister); can {
		devices, _ := lister.Devices() // comch reports the error
		for i := range devices {
			if devices[i].RDMA != "" {
				names = append(names, devices[i].RDMA)
			}
		}
	}
	return names
}
