// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/hook"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// fakeComch is a provider with the devices of a DPU: 03:00.0, and 03:00.1 of which it knows nothing
// but the capabilities.
type fakeComch struct {
	comch.Provider
	capabilities        comch.Capabilities
	subFunction         string // the RDMA device of one on 03:00.0, or ""
	err, listErr        error
	listenErr, closeErr error
	listened            *[]comch.ServerConfig // what was opened, nil for nobody who asks
	closed              *int
}

func (f fakeComch) Name() string { return "doca" }

func (f fakeComch) Capabilities(string) (comch.Capabilities, error) { return f.capabilities, f.err }

func (f fakeComch) Devices() ([]comch.Device, error) {
	devices := []comch.Device{{PCI: "03:00.0", RDMA: "mlx5_0", Net: "p0", CanServe: true,
		Representors: []comch.Representor{{PCI: "b1:00.0", VUID: "MT2333"}}}}
	if f.subFunction != "" {
		devices = append(devices, comch.Device{PCI: "03:00.0", RDMA: f.subFunction})
	}
	return devices, f.listErr
}

func (f fakeComch) Listen(_ context.Context, c comch.ServerConfig) (comch.Server, error) {
	if f.listened != nil {
		*f.listened = append(*f.listened, c)
	}
	if f.listenErr != nil {
		return nil, f.listenErr
	}
	return fakeServer{f}, nil
}

type fakeServer struct{ fakeComch }

func (fakeServer) Accept(context.Context) (comch.Connection, error) { panic("no clients") }
func (fakeServer) SetAdmission(comch.Admission) error               { panic("no clients") }
func (fakeServer) Address() string                                  { return "" }

func (f fakeServer) Close() error {
	if f.closed != nil {
		*f.closed++
	}
	return f.closeErr
}

func TestComchMustBeAbleToServeEveryChannel(t *testing.T) {
	server := comch.Capabilities{Server: true, MaxNameLength: 120}
	absent := status.Errorf(status.NotSupported, "libdoca_common.so.2 not found")
	for name, c := range map[string]struct {
		provider fakeComch
		open     error
		service  comch.Service
		verdict  Verdict
		text     string
	}{
		"address": {provider: fakeComch{capabilities: server},
			service: comch.Service{Device: "03:00.0", Representor: "b1:00.0"}, verdict: OK,
			text: "device 03:00.0 has representor b1:00.0"},
		"other notation": {provider: fakeComch{capabilities: server},
			service: comch.Service{Device: "0000:03:00.0", Representor: "0000:B1:00.0"},
			verdict: OK, text: "has representor"},
		"interface and VUID": {provider: fakeComch{capabilities: server},
			service: comch.Service{Device: "p0", Representor: "MT2333"}, verdict: OK,
			text: "has representor"},
		"unlisted device": {provider: fakeComch{capabilities: server},
			service: comch.Service{Device: "03:00.1", Representor: "b1:00.0"}, verdict: OK,
			text: "can serve b1:00.0"},
		"unknown representor": {provider: fakeComch{capabilities: server},
			service: comch.Service{Device: "mlx5_0", Representor: "b1:00.1"}, verdict: Fail,
			text: "no representor b1:00.1, only [b1:00.0]"},
		"long name": {provider: fakeComch{capabilities: comch.Capabilities{Server: true,
			MaxNameLength: 3}}, service: comch.Service{Device: "p0", Name: "long"}, verdict: Fail,
			text: `"long" is longer than 3 bytes`},
		"host": {provider: fakeComch{}, service: comch.Service{Device: "b1:00.0"}, verdict: Fail,
			text: "cannot have servers"},
		"no device": {provider: fakeComch{err: status.Errorf(status.NotFound, "no device x")},
			service: comch.Service{Device: "x"}, verdict: Fail, text: "no device x"},
		"no libraries": {open: absent, verdict: Fail, text: "libdoca_common.so.2 not found"},
		"no libraries, found late": {provider: fakeComch{err: absent}, verdict: Fail,
			text: "libdoca_common.so.2 not found"},
		"no list": {provider: fakeComch{listErr: status.Driver}, verdict: Fail,
			text: "list devices"},
	} {
		t.Run(name, func(t *testing.T) {
			m := machineWith(t, nil)
			m.Doca, m.Servers = true, []Server{{Service: c.service}, {Service: c.service}}
			m.OpenComch = func() (comch.Provider, error) { return c.provider, c.open }
			findings := m.comch()
			expect(t, findings, c.verdict, c.text)
			if len(findings) != 1 {
				t.Errorf("two equal channels have %d findings", len(findings))
			}
			if errors.Is(errors.Join(c.open, c.provider.err), status.NotSupported) &&
				findings[0].Remedy != m.comchRemedy(status.NotSupported) {
				t.Errorf("the remedy is %q", findings[0].Remedy)
			}
		})
	}
}

// opaqueRDMA is a provider whose device can use opaque memory of one device.
type opaqueRDMA struct {
	rdma.Provider
	name memory.Device
}

func (o opaqueRDMA) Open(address netip.Addr) (rdma.Device, error) {
	device, err := o.Provider.Open(address)
	return opaqueDevice{device, o.name}, err
}

type opaqueDevice struct {
	rdma.Device
	name memory.Device
}

func (d opaqueDevice) Capabilities() rdma.Capabilities {
	c := d.Device.Capabilities()
	c.OpaqueMemory, c.Device = d.name != memory.Device{}, d.name
	return c
}

func TestTheDevicesOfAChannelMustFit(t *testing.T) {
	behindPCI := comch.Capabilities{Server: true, OpaqueImports: true}
	target := netip.MustParseAddrPort("127.0.0.1:7470")
	for name, c := range map[string]struct {
		comch    comch.Capabilities
		own      string // Comch device
		rdma     memory.Device
		choice   relay.ImportDevice
		stages   bool // the Comch device can copy
		verdict  Verdict
		text     string
		findings int
	}{
		"same": {behindPCI, "03:00.0", memory.Device{RDMA: "mlx5_0"}, "", true, OK, "comch-device", 1},
		"same, by name": {behindPCI, "p0", memory.Device{RDMA: "mlx5_0"}, relay.ImportRDMA, false, OK,
			"comch-device", 1},
		"another": {behindPCI, "03:00.0", memory.Device{RDMA: "mlx5_2"}, "", true, OK,
			"otherwise the data is staged", 1},
		"another, by name": {behindPCI, "mlx5_0", memory.Device{RDMA: "mlx5_2"}, relay.ImportRDMA,
			true, OK, "the first client shows", 1},
		"another, but not allowed": {behindPCI, "03:00.0", memory.Device{RDMA: "mlx5_2"},
			relay.ImportComch, true, Fail, "mlx5_2", 1},
		"no opaque memory": {behindPCI, "03:00.0", memory.Device{}, "", false, Fail,
			"rdma.provider (--rdma-provider)", 1},
		"no opaque memory, but copies": {behindPCI, "03:00.0", memory.Device{}, "", true, Warn,
			"copied", 1},
		"memory of the machine": {comch.Capabilities{Server: true}, "03:00.0", memory.Device{}, "",
			true, OK, "mapped", 1},
		"staged": {comch: behindPCI},
	} {
		t.Run(name, func(t *testing.T) {
			m := machineWith(t, nil)
			m.OpenComch = func() (comch.Provider, error) {
				return fakeComch{capabilities: c.comch}, nil
			}
			m.OpenRDMA = func() (rdma.Provider, error) {
				return opaqueRDMA{iwarp.New(iwarp.Options{}), c.rdma}, nil
			}
			m.OpenDMA = func() (dma.Provider, error) {
				if !c.stages {
					return nil, status.Errorf(status.NotSupported, "no DMA")
				}
				return copying{}, nil
			}
			m.Targets = []Target{{Address: target, ComchDevice: c.own, ImportDevice: c.choice},
				{Address: target, ComchDevice: c.own, ImportDevice: c.choice}}
			findings := m.pairs()
			if len(findings) != c.findings {
				t.Fatalf("two equal channels have the findings %+v", findings)
			}
			if c.findings > 0 {
				expect(t, findings, c.verdict, c.text)
			}
		})
	}
}

// copying is a DMA provider whose devices copy clients' memory.
type copying struct{ dma.Provider }

func (copying) Capabilities(string) (dma.Capabilities, error) {
	return dma.Capabilities{Memcpy: true, ImportedMemory: true}, nil
}

func TestAnAddressOfSeveralDevicesIsSaid(t *testing.T) {
	m := machineWith(t, nil)
	m.OpenComch = func() (comch.Provider, error) {
		return fakeComch{capabilities: comch.Capabilities{Server: true, OpaqueImports: true},
			subFunction: "mlx5_2"}, nil
	}
	m.OpenRDMA = func() (rdma.Provider, error) {
		return opaqueRDMA{iwarp.New(iwarp.Options{}), memory.Device{RDMA: "mlx5_2"}}, nil
	}
	target := netip.MustParseAddrPort("127.0.0.1:7470")
	for name, want := range map[string]int{"03:00.0": 2, "mlx5_0": 1} {
		m.Targets = []Target{{Address: target, ComchDevice: name}}
		if findings := m.pairs(); len(findings) != want {
			t.Errorf("%s has the findings %+v", name, findings)
		} else if want == 2 {
			expect(t, findings, OK, "2 Comch devices have the address 03:00.0: the relay uses the "+
				"first, mlx5_0")
		}
	}
}

func TestTheRDMAProviderMustOpenEveryAddress(t *testing.T) {
	m := machineWith(t, nil)
	m.OpenRDMA = func() (rdma.Provider, error) { return iwarp.New(iwarp.Options{}), nil }
	expect(t, m.rdma(), OK, "iwarp at 0.0.0.0")
	target := netip.MustParseAddrPort("127.0.0.1:7470")
	m.Targets = []Target{{Address: target}, {Address: target},
		{Address: target, RDMAAddress: netip.MustParseAddr("192.0.2.1")}}
	findings := m.rdma()
	expect(t, findings, OK, "iwarp at 127.0.0.1: transport iwarp")
	expect(t, findings, Fail, "iwarp at 192.0.2.1")
	if len(findings) != 2 {
		t.Errorf("two addresses have the findings %+v", findings)
	}
	m.Verbs = true
	m.OpenRDMA = func() (rdma.Provider, error) {
		return nil, status.Errorf(status.NotSupported, "libibverbs.so.1 not found")
	}
	expect(t, m.rdma(), Fail, "libibverbs.so.1 not found")
	if f := m.rdma()[0]; f.Remedy == m.rdmaRemedy(status.NotFound) {
		t.Errorf("the remedy is %q", f.Remedy)
	}
}

func TestAnRDMADeviceMustReachItself(t *testing.T) {
	injector, _ := faulttest.New(t, "rdma:post_send:error=IO_FAILED")
	m := machineWith(t, nil)
	m.OpenRDMA = func() (rdma.Provider, error) {
		return hook.Wrap(iwarp.New(iwarp.Options{}), hook.Config{Injector: injector}), nil
	}
	m.RDMAAddresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	expect(t, m.rdma(), Warn, "iwarp at 127.0.0.1 does not reach itself: ")
}

func TestADeviceMustCopyForStagedChannels(t *testing.T) {
	m := machineWith(t, nil)
	m.OpenDMA = func() (dma.Provider, error) {
		return software.New(software.Options{Devices: []string{"03:00.0"}}), nil
	}
	if findings := m.dma(); len(findings) > 0 {
		t.Errorf("without staged channels: %+v", findings)
	}
	m.DMADevices = []StagedDevice{{Device: "03:00.0"}, {Device: "03:00.1"}}
	findings := m.dma()
	expect(t, findings, OK, "software: device 03:00.0 copies up to 2MiB")
	expect(t, findings, Fail, "software: device 03:00.1")
	m.OpenDMA = func() (dma.Provider, error) {
		return nil, status.Errorf(status.NotSupported, "libdoca_dma.so.2 not found")
	}
	expect(t, m.dma(), Fail, "libdoca_dma.so.2 not found")
}

func TestRepresentorsTellWhetherTheDPUOwnsTheCard(t *testing.T) {
	m := machineWith(t, nil)
	m.Doca = true
	expect(t, m.representors(), Warn, "cannot be read")
	sysfstest.Write(t, m.Sysfs, "class/net/p0/phys_port_name", "p0")
	sysfstest.Write(t, m.Sysfs, "class/net/lo/mtu", "65536")
	expect(t, m.representors(), Warn, "NIC mode")
	sysfstest.Write(t, m.Sysfs, "class/net/pf0hpf/phys_port_name", "c1pf0")
	sysfstest.Write(t, m.Sysfs, "class/net/pf0vf0/phys_port_name", "c1pf0vf0")
	expect(t, m.representors(), OK, "pf0hpf, pf0vf0")
}

func TestCredentialsMustBeValid(t *testing.T) {
	m := machineWith(t, nil)
	for text, c := range map[string]struct {
		left    time.Duration
		err     error
		verdict Verdict
	}{
		"valid until": {left: 100 * 24 * time.Hour, verdict: OK},
		"expires at":  {left: 24 * time.Hour, verdict: Warn},
		"expired at":  {left: -time.Hour, verdict: Fail},
		"no such key": {err: errors.New("no such key"), verdict: Fail},
	} {
		m.LoadTLS = func() (time.Time, []string, error) {
			return time.Now().Add(c.left), nil, c.err
		}
		expect(t, m.tls(), c.verdict, text)
	}
	m.LoadTLS = func() (time.Time, []string, error) {
		return time.Now().Add(100 * 24 * time.Hour), nil, nil
	}
	m.TLSKey = filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(m.TLSKey, nil, 0o604); err != nil {
		t.Fatal(err)
	}
	expect(t, m.tls(), Warn, "is not private")
	m.CheckUsers = func() error { return errors.New(`user "nobody2" does not exist`) }
	expect(t, m.users(), Fail, "nobody2")
	m.CheckUsers = func() error { return nil }
	expect(t, m.users(), OK, "exist")
}

func TestVolumesNeedTheirFilesAndMemory(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "disk")
	write := func(path string, bytes int) string {
		if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(path, 4096)
	for _, c := range []struct {
		text    string
		backend volume.Backend
		verdict Verdict
	}{
		{"has 3 bytes, less than one block", volume.FileBackend{Path: write(path+"3", 3)}, Fail},
		{"has 0 bytes, less than one block", volume.FileBackend{Path: write(path+"0", 0)}, Fail},
		{"although size=8KiB was given", volume.FileBackend{Path: path, Size: 8192}, Fail},
		{"only the target's start shows", uncheckable{}, OK},
		{"without librbd", absentRBD{}, Fail},
		{"can be opened", volume.FileBackend{Path: path, ReadOnly: true}, OK},
		{"will be created", volume.FileBackend{Path: path + "2", Size: 1 << 20}, OK},
		{"does not exist", volume.FileBackend{Path: path + "2"}, Fail},
		{"no such file or directory: create the directory first", volume.FileBackend{Path: path + "2/disk", Size: 1 << 20}, Fail},
		{"neither a regular file", volume.FileBackend{Path: directory}, Fail},
		{"8.00 KiB is available", volume.MemoryBackend{Size: 8192}, OK},
		{"8.00 KiB is available", volume.MemoryBackend{Size: 8193}, Warn},
	} {
		m := machineWith(t, map[string]string{"proc/meminfo": "MemAvailable:    8 kB"})
		m.Volumes = []volume.Spec{{Name: "disk", BlockSize: 4096, Backend: c.backend}}
		expect(t, m.volumes(), c.verdict, c.text)
	}
	m := machineWith(t, nil)
	m.Volumes = []volume.Spec{{Name: "disk", Backend: volume.MemoryBackend{Size: 1}}}
	expect(t, m.volumes(), Warn, "memory cannot be read")
}

// uncheckable is a kind of volume that only its opening checks.
type uncheckable struct{ volume.Backend }

func (uncheckable) String() string { return "cluster" }

// absentRBD is a kind of volume that this build does not have.
type absentRBD struct{ uncheckable }

func (absentRBD) Validate(*volume.Spec) error { return nil }

func (absentRBD) Check(*volume.Spec) error {
	return status.Errorf(status.NotSupported, "this program was built without librbd")
}
