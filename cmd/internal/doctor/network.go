// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/buildinfo"
	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// reachTimeout bounds the connection attempt to the target.
const reachTimeout = 3 * time.Second

func (m *machine) targets(ctx context.Context) []Finding {
	var findings []Finding
	for _, err := range m.UnknownTargets {
		findings = append(findings, fail("target", status.Text(err),
			"look at the DNS of this machine (getent hosts NAME), or give the target's address"))
	}
	var different grouped[Target]
	for _, t := range m.Targets {
		channel := t.Channel
		// What decides here is the rest.
		t.Channel, t.RDMAAddress, t.ComchDevice, t.ImportDevice = 0, netip.Addr{}, "", ""
		different.add(t, channel)
	}
	served := make(map[int]bool) // whether a target of the channel is no stand-by
	for t, channels := range different.all() {
		t.Channel = channels[0]
		finding, isStandBy := m.reach(ctx, &t)
		finding.Detail = m.inChannels(channels...) + finding.Detail
		findings = append(findings, finding)
		for _, channel := range channels {
			served[channel] = served[channel] || !isStandBy
		}
	}
	for _, channel := range slices.Sorted(maps.Keys(served)) {
		if !served[channel] {
			findings = append(findings, m.onlyStandBys(channel))
		}
	}
	return findings
}

// onlyStandBys warns of a channel without a target that serves its volume.
func (m *machine) onlyStandBys(channel int) Finding {
	return warn("target", m.inChannels(channel)+"every target of the channel is a stand-by: "+
		"whoever serves the volume is not among them",
		fmt.Sprintf("\"zc-relay-target volume list\" on each target says what it waits for; add the "+
			"target that serves the volume to %s, or stop it, so that a stand-by takes over",
			m.channelSetting(channel, "targets", "--storage-servers")))
}

// reach connects to a target, greets it, because another program may listen there, and asks for the
// volume. It reports whether the target is a stand-by for it.
func (m *machine) reach(ctx context.Context, t *Target) (found Finding, isStandBy bool) {
	const check = "target"
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	connection, err := network.Kernel{}.Dial(ctx, netip.Addr{}, t.Address)
	if err != nil {
		return fail(check, fmt.Sprintf("%v cannot be reached: %v", t.Address, err),
			remedyOf(t.Address, err)), false
	}
	if t.Foreign {
		_ = connection.Close()
		return ok(check, fmt.Sprintf("%v can be reached; who answers there is unknown: its protocol "+
			"has no greeting", t.Address)), false
	}
	var secure *tls.Config
	if m.Secure != nil {
		if secure, err = m.Secure(cmp.Or(t.TLSServerName, t.Address.Addr().String())); err != nil {
			_ = connection.Close()
			return warn(check, fmt.Sprintf("%v can be reached; who answers there is unknown, because "+
				"this side's credentials for TLS cannot be used", t.Address),
				"do what the check \"tls\" says, and run doctor again"), false
		}
	}
	var transport controlmsg.Transport
	if secure == nil {
		transport = controlmsg.NewTCPTransport(connection, controlmsg.TCPConfig{})
	} else {
		transport, err = controlmsg.NewTLSClient(ctx, connection, secure, controlmsg.TCPConfig{})
	}
	encrypted := false
	var requester *controlmsg.Requester
	var hello controlmsg.HelloReply
	if err == nil {
		requester = controlmsg.NewRequester(transport, controlmsg.EndpointConfig{
			Role: controlmsg.RoleRelay, Timeout: reachTimeout,
			KeepAlive: controlmsg.DefaultKeepAlive(), Software: buildinfo.String("doctor"),
			DataSecurity: m.DataSecurity, Logger: zap.NewNop()})
		defer requester.Close(context.Canceled)
		if hello, err = requester.Greet(ctx); err == nil {
			encrypted, err = controlmsg.DataUsesTLS(m.DataSecurity, hello.DataSecurity)
		}
	}
	if err != nil {
		return fail(check, fmt.Sprintf("%v can be reached, but does not answer as a target: %s",
			t.Address, status.Text(err)), m.greetingRemedy(t, err)), false
	}
	detail := fmt.Sprintf("%v is reached from %v: %s", t.Address, connection.LocalAddr(),
		hello.Software)
	reply, err := controlmsg.Call(ctx, requester, &controlmsg.OpenVolume{Volume: t.Volume})
	switch {
	case errors.Is(err, status.NoLock):
		return ok(check, fmt.Sprintf("%s; it is a stand-by for volume %q: %s", detail, t.Volume,
			status.Text(err))), true
	case errors.Is(err, status.Again):
		return ok(check, fmt.Sprintf("%s; it does not serve volume %q now: %s", detail, t.Volume,
			status.Text(err))), false
	case err != nil:
		return fail(check, fmt.Sprintf("%s; it rejects volume %q: %s", detail, t.Volume,
				status.Text(err)), fmt.Sprintf("name a volume of the target in %s (\"zc-relay-target "+
				"volume list\" there shows them), or let this relay use it",
				m.channelSetting(t.Channel, "volume", "--volume"))),
			false
	}
	detail = fmt.Sprintf("%s, with volume %q of %v", detail, reply.Volume, size.Bytes(reply.Size))
	if m.DataSecurity != controlmsg.DataSecurityOff && !encrypted {
		return warn(check, detail+"; data is not encrypted, because security.data is off there",
			"set security.data: tls (--data-security) at the target, too"), false
	}
	return ok(check, detail), false
}

// greetingRemedy says what to do about a target that can be reached, but cannot be greeted.
func (m *machine) greetingRemedy(t *Target, err error) string {
	name := m.channelSetting(t.Channel, "tls_server_name", "--tls-server-name")
	if _, isOfOtherName := errors.AsType[x509.HostnameError](err); isOfOtherName {
		return fmt.Sprintf("set %s to a name in the target's certificate, or issue that "+
			"certificate again for %s", name,
			cmp.Or(t.TLSServerName, "the address "+t.Address.Addr().String()))
	}
	_, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case isInvalid && invalid.Reason == x509.Expired:
		return "renew the certificate on the target and reload it (systemctl reload " +
			"zc-relay-target), or correct this machine's clock (timedatectl)"
	case isInvalid && invalid.Reason == x509.IncompatibleUsage:
		return "issue the target's certificate again with the extended key usage serverAuth"
	case errors.Is(err, status.BadConfig):
		return fmt.Sprintf("set %s to the same on both sides",
			m.setting("security.data", "--data-security"))
	case isUnknown:
		return fmt.Sprintf("correct %s: give it the authority that has signed the target's certificate",
			m.setting("tls.ca", "--tls-ca"))
	case errors.Is(err, status.Authentication):
		return fmt.Sprintf("copy the certificate of %s to the target, and run \"zc-relay-target access "+
			"CERTIFICATE\" there: it says whether the target rejects it because it is revoked, has "+
			"expired, or lacks clientAuth, an allowed name, or an authority of the target; and see "+
			"that both sides use TLS, or neither does", m.setting("tls.certificate", "--tls-cert"))
	}
	return "check that the port is the target's control port (listen.port, --listen-port), and that " +
		"both sides use TLS or neither does"
}

// remedyOf says what to do about a target that cannot be reached.
func remedyOf(target netip.AddrPort, err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start the target there (systemctl status zc-relay-target), or correct address and port"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("let the firewall on both machines pass TCP port %d, and UDP port 4791 for "+
			"RoCE (nft list ruleset), or correct the route (ip route get %v)", target.Port(),
			target.Addr())
	}
	return fmt.Sprintf("correct the address, or the route (ip route get %v)", target.Addr())
}

func (m *machine) ports() []Finding {
	const check = "ports"
	var findings []Finding
	for _, address := range m.Listen {
		if err := tryListen(address); err != nil {
			findings = append(findings, fail(check, fmt.Sprintf("cannot listen on %s: %v", address,
				err), "find the process that uses it: ss -ltnp"))
			continue
		}
		findings = append(findings, ok(check, address+" is free"))
	}
	for _, address := range m.OwnListen {
		switch err := tryListen(address); {
		case errors.Is(err, syscall.EADDRINUSE):
			findings = append(findings, warn(check, address+" is in use",
				"unless "+m.Unit+" runs, find the process that uses it: ss -ltnp"))
		case err != nil:
			findings = append(findings, fail(check, fmt.Sprintf("cannot listen on %s: %v", address,
				err), "use an address of this machine, and a port that the user may use"))
		default:
			findings = append(findings, ok(check, address+" is free"))
		}
	}
	return findings
}

func tryListen(address string) error {
	listener, err := network.ListenTCP(address)
	if err != nil {
		return err
	}
	return listener.Close()
}

// timeouts checks whether the timeouts fit each other.
func (m *machine) timeouts() []Finding {
	const check = "time-outs"
	detail := fmt.Sprintf("a silent peer is dead after %v, with keep-alive messages every %v",
		m.DeadAfter, m.KeepAliveInterval)
	if m.DeadAfter/2 < m.KeepAliveInterval {
		return []Finding{fail(check, detail+": a single late message ends all sessions",
			fmt.Sprintf("set %s to at least three times %s",
				m.setting("control.keep_alive_dead_after", "--keep-alive-dead-after"),
				m.setting("control.keep_alive_interval", "--keep-alive-interval")))}
	}
	findings := make([]Finding, 0, len(m.IOTimeouts)+1)
	for _, bound := range m.IOTimeouts {
		findings = append(findings, m.ioTimeout(check, fmt.Sprintf("%s; an IO may take %v", detail,
			bound), bound))
	}
	if len(findings) == 0 {
		findings = append(findings, ok(check, detail))
	}
	return findings
}

func (m *machine) ioTimeout(check, detail string, bound retry.Bound) Finding {
	timeout, limited := bound.Duration()
	setting := m.setting("channels[].io_timeout", "--io-timeout")
	switch {
	case !limited || timeout == 0:
		return warn(check, detail+" (no timeout): a target that hangs blocks sessions for ever",
			"set "+setting)
	case timeout <= m.DeadAfter:
		return warn(check,
			detail+": an IO times out before the relay detects a dead target, which hides the cause",
			fmt.Sprintf("set %s above %s", setting,
				m.setting("control.keep_alive_dead_after", "--keep-alive-dead-after")))
	}
	return ok(check, detail)
}

// minRoCEMTU is the interface MTU below which RoCE packets carry less than 4096 bytes.
const minRoCEMTU = 4200

// list returns the RDMA devices, and the errors in reading them.
func (m *machine) list() ([]rdmadevice.Device, error) {
	tree, err := rdmadevice.Open(m.Sysfs)
	if err != nil {
		return nil, err
	}
	return tree.Devices()
}

func (m *machine) devices() []Finding {
	const check = "rdma-devices"
	devices, err := m.list()
	var findings []Finding
	if err != nil {
		findings = append(findings, warn(check, "some cannot be read: "+err.Error(),
			"run \"zc-relay devices\""))
	}
	if len(devices) == 0 {
		return append(findings, m.noDevices(check))
	}
	for i := range devices {
		findings = append(findings, m.device(&devices[i])...)
	}
	return findings
}

func (m *machine) noDevices(check string) Finding {
	if m.cardProvider() != "" {
		return fail(check, "there are no RDMA devices",
			"load the driver (modprobe mlx5_ib), or try verbs with Soft-RoCE: rdma link add rxe0 type rxe "+
				"netdev NAME")
	}
	return ok(check, "there are none, and the providers need none")
}

func (m *machine) device(d *rdmadevice.Device) []Finding {
	var findings []Finding
	ethernet := false
	for i := range d.Ports {
		p := &d.Ports[i]
		ethernet = ethernet || p.LinkLayer == "Ethernet"
		name := fmt.Sprintf("%s port %d (%s, %d Gbit/s)", d.Name, p.Number, p.LinkLayer,
			p.RateBitsPerS/1e9)
		if p.Active() && p.LinkLayer == "Ethernet" && len(p.GIDs) == 0 {
			findings = append(findings, warn("rdma-port", name+" is active, but has no GIDs: it "+
				"carries no RDMA", "ip address add ADDRESS dev INTERFACE, if it has an interface; the "+
				"port of a BlueField in DPU mode needs none: give the address to its sub-function"))
			continue
		}
		if p.Active() {
			findings = append(findings, ok("rdma-port", name+" is active"))
			continue
		}
		findings = append(findings, warn("rdma-port", fmt.Sprintf("%s is %s, physically %s", name,
			p.State, p.PhysicalState),
			"bring its network interface up, and check the cable and the switch"))
	}
	if !ethernet {
		return findings
	}
	for _, n := range d.Net {
		if n.MTU > 0 && n.MTU < minRoCEMTU {
			findings = append(findings,
				warn("mtu", fmt.Sprintf("%s of %s has MTU %d: packets carry less than 4096 bytes",
					n.Name, d.Name, n.MTU),
					fmt.Sprintf("ip link set %s mtu 9000, and the same on the switch and at the other end",
						n.Name)))
		} else if n.MTU > 0 {
			findings = append(findings, ok("mtu", fmt.Sprintf("%s of %s has MTU %d", n.Name, d.Name,
				n.MTU)))
		}
	}
	return findings
}

// numa checks whether the workers are near the devices.
func (m *machine) numa() []Finding {
	const check = "numa"
	nodes := m.sys("devices/system/node/online")
	if nodes == "" || !strings.ContainsAny(nodes, ",-") {
		return []Finding{ok(check, "there is one node")}
	}
	if len(m.CPUs) == 0 {
		return []Finding{ok(check, "nodes "+nodes+"; workers are not pinned")}
	}
	devices, _ := m.list() // devices reports the error
	var findings []Finding
	for i := range devices {
		d := &devices[i]
		if d.NUMANode == nil {
			continue
		}
		near := m.cpuList(m.sys(fmt.Sprintf("devices/system/node/node%d/cpulist", *d.NUMANode)))
		far := slices.DeleteFunc(slices.Clone(m.CPUs),
			func(cpu int) bool { return slices.Contains(near, cpu) })
		if len(far) > 0 {
			findings = append(findings,
				warn(check, fmt.Sprintf("cores %s are not on node %d, where %s is",
					affinity.FormatList(far), *d.NUMANode, d.Name),
					"choose cores among "+affinity.FormatList(near)))
		}
	}
	if len(findings) == 0 {
		findings = append(findings,
			ok(check, "nodes "+nodes+"; the workers are near the RDMA devices"))
	}
	return findings
}

// infinibandFiles checks the character devices of verbs and DEVX.
func (m *machine) infinibandFiles() []Finding {
	const check = "dev-infiniband"
	if m.cardProvider() == "" {
		return []Finding{ok(check, "the providers do not need it")}
	}
	directory := filepath.Join(m.Dev, "infiniband")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return []Finding{fail(check, directory+" cannot be read: "+err.Error(),
			"modprobe -a ib_uverbs rdma_ucm; in a container, pass --device=/dev/infiniband")}
	}
	var findings []Finding
	uverbs := 0
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "uverbs") {
			uverbs++
		} else if name != "rdma_cm" || !m.Verbs {
			continue
		}
		file, err := os.OpenFile(filepath.Join(directory, name), os.O_RDWR, 0)
		if err != nil {
			findings = append(findings, fail(check, "cannot open: "+err.Error(),
				"run as a user with access (ls -l "+directory+"), and allow it in the unit: "+
					"DeviceAllow=char-infiniband_verbs rw"))
			continue
		}
		_ = file.Close()
	}
	if uverbs == 0 {
		findings = append(findings, fail(check, "there is no uverbs device in "+directory,
			"modprobe -a ib_uverbs mlx5_ib, or the driver of another device"))
	}
	// doca connects by itself.
	if m.Verbs && !slices.ContainsFunc(entries,
		func(e os.DirEntry) bool { return e.Name() == "rdma_cm" }) {
		findings = append(findings, fail(check, "there is no rdma_cm in "+directory,
			"modprobe rdma_ucm"))
	}
	if len(findings) == 0 {
		what := fmt.Sprintf("%d uverbs devices can be opened", uverbs)
		if m.Verbs {
			what = "rdma_cm and " + what
		}
		findings = append(findings, ok(check, what))
	}
	return findings
}
