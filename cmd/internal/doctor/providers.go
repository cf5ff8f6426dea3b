// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// rdma opens the RDMA provider, and a device for each local address.
func (m *machine) rdma() []Finding {
	const check = "rdma-provider"
	if m.OpenRDMA == nil {
		return nil
	}
	provider, err := m.OpenRDMA()
	if err != nil {
		return []Finding{fail(check, status.Text(err), m.rdmaRemedy(err))}
	}
	addresses, findings := m.rdmaAddresses()
	for i := range addresses {
		findings = append(findings, m.openDevice(check, provider, &addresses[i]))
	}
	return findings
}

// rdmaRemedy says what to do about a provider that cannot be used.
func (m *machine) rdmaRemedy(err error) string {
	if m.Verbs && errors.Is(err, status.NotSupported) {
		return "install libibverbs1 and librdmacm1 (Debian, Ubuntu) or rdma-core and librdmacm (RHEL), with a program that has the provider (\"zc-relay providers\"); or set " +
			m.setting("rdma.provider", "--rdma-provider") + " to iwarp"
	}
	return fmt.Sprintf("correct %s and %s; \"zc-relay devices\" lists the devices",
		m.setting("rdma.provider", "--rdma-provider"), m.setting("rdma.device", "--rdma-device"))
}

// rdmaAddress is a local address of RDMA connections. channels holds those whose targets are
// reached from there, none for an address to listen on.
type rdmaAddress struct {
	netip.Addr
	channels []int
}

// rdmaAddresses returns the local addresses of RDMA connections, each once.
func (m *machine) rdmaAddresses() (addresses []rdmaAddress, findings []Finding) {
	for _, address := range m.RDMAAddresses {
		addresses = append(addresses, rdmaAddress{Addr: address})
	}
	var found grouped[netip.Addr]
	for i := range m.Targets {
		t := &m.Targets[i]
		address, err := t.localAddress()
		if err != nil {
			findings = append(findings, fail("rdma-provider",
				fmt.Sprintf("%sthere is no route to target %v: %v", m.inChannels(t.Channel), t.Address,
					err), fmt.Sprintf("add a route (ip route get %v shows what there is), or correct %s",
					t.Address.Addr(), m.channelSetting(t.Channel, "target", "--storage-server"))))
			continue
		}
		found.add(address, t.Channel)
	}
	for address, channels := range found.all() {
		addresses = append(addresses, rdmaAddress{address, channels})
	}
	if len(addresses) == 0 && len(findings) == 0 {
		addresses = append(addresses, rdmaAddress{Addr: netip.IPv4Unspecified()})
	}
	slices.SortStableFunc(addresses,
		func(a, b rdmaAddress) int { return a.Compare(b.Addr) })
	return slices.CompactFunc(addresses,
		func(a, b rdmaAddress) bool { return a.Addr == b.Addr }), findings
}

// localAddress returns the local address of RDMA connections to the target: the configured one, or
// that of the route. It sends nothing.
func (t *Target) localAddress() (netip.Addr, error) {
	if t.RDMAAddress.IsValid() {
		return t.RDMAAddress, nil
	}
	connection, err := net.Dial("udp", t.Address.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

func (m *machine) openDevice(check string, provider rdma.Provider, a *rdmaAddress) Finding {
	address, in := a.Addr, ""
	if len(a.channels) < len(m.Channels) {
		in = m.inChannels(a.channels...)
	}
	what := fmt.Sprintf("%s%s at %v", in, provider.Name(), address)
	device, err := openRDMA(provider, address)
	if err != nil {
		return fail(check, what+": "+status.Text(err),
			fmt.Sprintf("use an address of an RDMA device (%s), or %s; \"zc-relay devices\" lists them",
				m.addressSetting(a), m.setting("rdma.device", "--rdma-device")))
	}
	c := device.Capabilities()
	tried := tryRDMA(device, address)
	if err := device.Close(); err != nil {
		return warn(check, what+": "+status.Text(err), "report this")
	}
	if tried != nil {
		return warn(check, what+" does not reach itself: "+status.Text(tried),
			fmt.Sprintf("compare %s, and look for GIDs and the port's state in \"zc-relay devices\"; "+
				"if the network keeps a device from reaching itself, rping to the other machine decides",
				m.setting("rdma.gid_index", "--rdma-gid-index")))
	}
	return ok(check, what+": transport "+c.Transport)
}

// addressSetting names what sets a local address of RDMA connections.
func (m *machine) addressSetting(a *rdmaAddress) string {
	if len(a.channels) > 0 {
		return m.channelSetting(a.channels[0], "rdma_address", "--rdma-address")
	}
	return m.setting("listen.rdma_address", "--rdma-address")
}

// tryTimeout bounds a connection of an RDMA device to itself.
const tryTimeout = 5 * time.Second

// tryRDMA sends a message from a device to itself. Without an address it does nothing.
func tryRDMA(device rdma.Device, address netip.Addr) (err error) {
	if address.IsUnspecified() {
		return nil
	}
	domain, err := device.NewProtectionDomain()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, domain.Close()) }()
	region, err := memory.Alloc("zc-relay doctor", 64)
	if err != nil {
		return err
	}
	registered, err := domain.Register(region, 0)
	if err != nil {
		return errors.Join(err, region.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	_, err = rdma.TryLoopback(ctx, device, address, domain, registered)
	if failed := registered.Deregister(); failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, region.Close())
}

func openRDMA(provider rdma.Provider, address netip.Addr) (rdma.Device, error) {
	return devicecall.OpenWithin(context.Background(),
		func() (rdma.Device, error) { return provider.Open(address) })
}

// hostFunction matches the port names of network interfaces that represent functions of the host:
// "pf0", "pf0vf3", "c1pf0" (devlink-port(8)).
var hostFunction = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+((vf|sf)[0-9]+)?$`)

// representors checks that the DPU owns the card: only then, functions of the host have network
// interfaces on the DPU.
func (m *machine) representors() []Finding {
	const check = "representors"
	if !m.Doca {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(m.Sysfs, "class", "net"))
	if err != nil {
		return []Finding{warn(check, "the network interfaces cannot be read: "+err.Error(),
			"check that /sys is mounted")}
	}
	var names []string
	for _, e := range entries {
		if hostFunction.MatchString(m.sys("class", "net", e.Name(), "phys_port_name")) {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return []Finding{warn(check,
			"no network interface represents a function of the host: the card is in NIC mode, or its eswitch is not in switchdev mode, or this is not the DPU",
			"mlxconfig -d /dev/mst/DEVICE q INTERNAL_CPU_OFFLOAD_ENGINE must say ENABLED(0), and devlink dev eswitch show pci/0000:03:00.0 must say switchdev")}
	}
	return []Finding{ok(check, "functions of the host have the interfaces "+
		strings.Join(names, ", "))}
}

// comch checks that the provider can offer every service.
func (m *machine) comch() []Finding {
	const check = "comch-provider"
	if m.OpenComch == nil {
		return nil
	}
	provider, err := m.OpenComch()
	if err != nil {
		return []Finding{fail(check, status.Text(err), m.comchRemedy(err))}
	}
	var devices []comch.Device
	if lister, can := provider.(comch.DeviceLister); can {
		if devices, err = lister.Devices(); err != nil {
			return []Finding{fail(check, "list devices: "+status.Text(err), m.comchRemedy(err))}
		}
	}
	var findings []Finding
	var different grouped[Server]
	for _, s := range m.Servers {
		channel := s.Channel
		s.Channel = 0
		different.add(s, channel)
	}
	for s, channels := range different.all() {
		s.Channel = channels[0]
		finding := m.server(check, provider, devices, s)
		finding.Detail = m.inChannels(channels...) + finding.Detail
		findings = append(findings, finding)
	}
	return findings
}

func (m *machine) comchRemedy(err error) string {
	if m.Doca {
		return "install the packages doca-sdk-common and doca-sdk-comch of DOCA 2.9 or later, or set DOCA_SDK_LIB_PATH to the directory of its libraries, with a program that has the provider (\"zc-relay providers\")"
	}
	if errors.Is(err, status.BadConfig) {
		return "correct that line of the file, which declares the devices of the emulation; \"zc-relay devices\" shows whether it can be read"
	}
	return "correct " + m.setting("comch.provider", "--comch-provider") + " and " +
		m.setting("comch.directory", "--emulated-dir")
}

// server checks that a device can serve a representor, and that this user may let it.
func (m *machine) server(check string, provider comch.Provider, devices []comch.Device,
	s Server) Finding {
	what := fmt.Sprintf("%s: device %s", provider.Name(), s.Device)
	c, err := provider.Capabilities(s.Device)
	switch {
	case err != nil && (m.Doca && errors.Is(err, status.NotSupported) ||
		errors.Is(err, status.BadConfig)):
		return fail(check, what+": "+status.Text(err), m.comchRemedy(err))
	case err != nil:
		return fail(check, what+": "+status.Text(err), fmt.Sprintf("correct %s; \"zc-relay devices\" "+
			"lists what there is%s", m.channelSetting(s.Channel, "device", "--device"), waits(err)))
	case !c.Server:
		return fail(check, what+" cannot have servers",
			"run the relay on the DPU, in DPU mode, on a device of the DPU")
	case len(s.Name) > c.MaxNameLength:
		return fail(check, fmt.Sprintf("%s: the service name %q is longer than %d bytes", what,
			s.Name, c.MaxNameLength),
			"shorten "+m.channelSetting(s.Channel, "name", "--command-channel-name"))
	}
	d, _ := comch.FindDevice(devices, s.Device)
	_, isChecked := provider.(comch.ServerChecker)
	if d == nil || isChecked || m.Doca && len(d.Representors) == 0 {
		// A provider that accepts any name need not know it, and one that may not open the device
		// lists no representors.
		return m.openServer(check, provider, s, c.MaxNameLength,
			fmt.Sprintf("%s can serve %s", what, s.Representor))
	}
	known := func(r comch.Representor) bool {
		return pci.Normalize(r.PCI) == pci.Normalize(s.Representor) || r.VUID == s.Representor
	}
	if all := d.Representors; len(all) > 0 && !slices.ContainsFunc(all, known) {
		return fail(check, fmt.Sprintf("%s has no representor %s, only [%s]", what, s.Representor,
			representorNames(all)),
			fmt.Sprintf("correct %s: lspci -D on the host shows the address of the card's function "+
				"there%s", m.channelSetting(s.Channel, "representor", "--representor"),
				waits(status.NotFound)))
	}
	return m.openServer(check, provider, s, c.MaxNameLength,
		fmt.Sprintf("%s has representor %s", what, s.Representor))
}

// pairs checks that the RDMA device of each channel can use what its Comch device imports. The
// checks of either device report what else is wrong with it.
func (m *machine) pairs() []Finding {
	const check = "device-pair"
	if m.OpenComch == nil || m.OpenRDMA == nil {
		return nil
	}
	comchProvider, err := m.OpenComch()
	if err != nil {
		return nil
	}
	rdmaProvider, err := m.OpenRDMA()
	if err != nil {
		return nil
	}
	var copier dma.Provider
	if m.OpenDMA != nil {
		copier, _ = m.OpenDMA() // without it, nothing is staged
	}
	type pair struct {
		comch   string
		choice  relay.ImportDevice
		address netip.Addr
	}
	var different grouped[pair]
	for i := range m.Targets {
		t := &m.Targets[i]
		address, err := t.localAddress()
		if err == nil && t.ComchDevice != "" {
			different.add(pair{t.ComchDevice, cmp.Or(t.ImportDevice, relay.ImportAuto), address},
				t.Channel)
		}
	}
	var findings []Finding
	for p, channels := range different.all() {
		device, err := openRDMA(rdmaProvider, p.address)
		if err != nil {
			continue
		}
		if _, err := comchProvider.Capabilities(p.comch); err != nil {
			_ = device.Close()
			continue
		}
		channel := relay.ChannelConfig{ChannelID: relay.ChannelID{Device: p.comch},
			Isolation: relay.Direct, ImportDevice: p.choice, TargetProtocol: relay.ProtocolNative}
		in := m.inChannels(channels...)
		own, others := relay.ComchDevice(comchProvider, p.comch)
		if len(others) > 0 && own.PCI == pci.Normalize(p.comch) {
			findings = append(findings, ok(check, fmt.Sprintf(
				"%s%d Comch devices have the address %s: the relay uses the first, %s; a name of "+
					"\"zc-relay devices\" selects another", in, len(others)+1, own.PCI, own.RDMA)))
		}
		what := fmt.Sprintf("%s%s at %v and Comch device %v", in, rdmaProvider.Name(), p.address,
			own)
		paths, err := relay.MemoryPaths(&channel, comchProvider,
			func() memory.Device { return own }, device, copier)
		remedy := m.pairRemedy(channels[0], p.choice, own, device.Capabilities())
		if err != nil {
			findings = append(findings, fail(check, in+status.Text(err), remedy))
		} else {
			findings = append(findings, pairFinding(check, what, paths, remedy))
		}
		_ = device.Close() // the check of the RDMA provider reports a failure
	}
	return findings
}

// pairRemedy says how a channel gets an RDMA device that reaches the memory of its clients. own is
// its Comch device, and reaches what the RDMA device of now can do.
func (m *machine) pairRemedy(channel int, choice relay.ImportDevice, own memory.Device,
	reaches rdma.Capabilities) string {
	staged := fmt.Sprintf("set %s to staged", m.channelSetting(channel, "isolation", "--isolation"))
	address := m.channelSetting(channel, "rdma_address", "--rdma-address")
	switch {
	case !reaches.OpaqueMemory:
		return fmt.Sprintf("set %s to verbs or doca, with an address of the same card in %s, or %s",
			m.setting("rdma.provider", "--rdma-provider"), address, staged)
	case choice != relay.ImportAuto:
		return fmt.Sprintf("set %s to auto, or %s to an address of device %v itself, or %s",
			m.channelSetting(channel, "import_device", "--import-device"), address, own, staged)
	}
	return fmt.Sprintf("set %s to an address of the same card and port, or %s", address, staged)
}

// pairFinding says how the targets behind an RDMA device reach clients' memory.
func pairFinding(check, what string, paths []relay.MemoryPath, remedy string) Finding {
	switch paths[0] {
	case relay.PathStaged:
		return warn(check, what+": no device can reach clients' memory, so all data is copied "+
			"through memory of the relay", remedy)
	case relay.PathRDMADevice:
		text := what + ": the RDMA device imports clients' memory; the first client shows whether " +
			"it can (memory_path of \"zc-relay status\")"
		if paths[len(paths)-1] == relay.PathStaged {
			text += ", and otherwise the data is staged"
		}
		return ok(check, text)
	}
	return ok(check, what+": RDMA reaches clients' memory ("+string(paths[0])+")")
}

func representorNames(all []comch.Representor) string {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.PCI
	}
	return strings.Join(names, ", ")
}

// dma checks the devices that copy data for isolation staged.
func (m *machine) dma() []Finding {
	const check = "dma-provider"
	if len(m.DMADevices) == 0 {
		return nil
	}
	provider, err := m.OpenDMA()
	if err != nil {
		return []Finding{fail(check, status.Text(err), m.dmaRemedy(m.DMADevices[0].Channel))}
	}
	var different grouped[string]
	for _, d := range m.DMADevices {
		different.add(d.Device, d.Channel)
	}
	var findings []Finding
	for device, channels := range different.all() {
		remedy := m.dmaRemedy(channels[0])
		what := fmt.Sprintf("%s%s: device %s", m.inChannels(channels...), provider.Name(), device)
		c, err := provider.Capabilities(device)
		switch {
		case err != nil:
			findings = append(findings, fail(check, what+": "+status.Text(err), remedy))
		case !c.Memcpy || !c.ImportedMemory:
			findings = append(findings, fail(check, what+" cannot copy clients' memory", remedy))
		default:
			findings = append(findings, ok(check, fmt.Sprintf("%s copies up to %v at a time", what,
				size.Bytes(c.MaxBufferSize))))
		}
	}
	return findings
}

func (m *machine) dmaRemedy(channel int) string {
	return fmt.Sprintf("install the package doca-sdk-dma, use a device that can copy memory "+
		"(\"zc-relay devices\" lists them) in %s, or set %s to direct",
		m.channelSetting(channel, "device", "--device"),
		m.channelSetting(channel, "isolation", "--isolation"))
}

func (m *machine) users() []Finding {
	if m.CheckUsers == nil {
		return nil
	}
	const check = "users"
	if err := m.CheckUsers(); err != nil {
		return []Finding{fail(check, err.Error(),
			"create the user (useradd --system NAME), or correct the users there")}
	}
	return []Finding{ok(check, "all users in the configuration exist")}
}

// certificateWarning is the time before the end of a certificate when it should be renewed.
const certificateWarning = 14 * 24 * time.Hour

func (m *machine) tls() []Finding {
	if m.LoadTLS == nil {
		return nil
	}
	const check = "tls"
	end, problems, err := m.LoadTLS()
	certificate := m.setting("tls.certificate", "--tls-cert")
	if err != nil {
		return []Finding{fail(check, status.Text(err), fmt.Sprintf("correct %s, %s, and %s; the user of "+
			"the daemon needs the right to read the files (ls -l)", certificate,
			m.setting("tls.key", "--tls-key"), m.setting("tls.ca", "--tls-ca")))}
	}
	finding := expiry(check, end, fmt.Sprintf("renew it: replace the files of %s and %s by a "+
		"certificate that the same authority has signed, and run systemctl reload %s", certificate,
		m.setting("tls.key", "--tls-key"), m.Unit))
	info, err := os.Stat(m.TLSKey)
	if finding.Verdict == OK && err == nil && files.IsExposed(info.Mode()) {
		finding = warn(check, fmt.Sprintf("%s, the private key of the certificate, is not private: "+
			"its mode is %v", m.TLSKey, info.Mode().Perm()), "chmod 0640 "+m.TLSKey)
	}
	findings := []Finding{finding}
	for _, problem := range problems {
		what, remedy, _ := strings.Cut(problem, ": ")
		findings = append(findings, fail(check, what, remedy))
	}
	return findings
}

// expiry returns the finding about a certificate that ends at a time.
func expiry(check string, end time.Time, remedy string) Finding {
	left, date := time.Until(end), end.UTC().Format(time.DateTime)
	switch {
	case left <= 0:
		return fail(check, "the certificate expired at "+date, remedy)
	case left < certificateWarning:
		return warn(check, "the certificate expires at "+date, remedy)
	}
	return ok(check, "the certificate is valid until "+date)
}

// web checks the web configuration file of the listener for metrics.
func (m *machine) web() []Finding {
	if m.LoadWeb == nil {
		return nil
	}
	const check = "web"
	end, warnings, err := m.LoadWeb()
	setting := m.setting("operations.web_config_file", "--web-config-file")
	if err != nil {
		return []Finding{fail(check, status.Text(err), fmt.Sprintf("correct the file of %s; the "+
			"user of the daemon needs the right to read it and what it names (ls -l)", setting))}
	}
	var findings []Finding
	for _, w := range warnings {
		findings = append(findings, warn(check, w, "do what the text says"))
	}
	if end.IsZero() {
		return append(findings, ok(check, "the file can be used; it has no TLS"))
	}
	return append(findings, expiry(check, end,
		"renew it: replace the files in place; the next connection uses them"))
}
