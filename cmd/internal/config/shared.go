// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/logging"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Log selects what is logged, and the format.
type Log struct {
	Level    string
	Format   string
	Sampling int
}

func defaultLog() Log { return Log{Level: "info", Format: "console", Sampling: 100} }

func (c *Log) describe(s section) {
	s.value("level", text(&c.Level, checkLevel),
		"lowest severity to log: debug, info, warn, error, or a DOCA log level from 10 (nothing) to 70 (everything)").
		flagged("log-level", "l").reloads(AtOnce)
	s.value("format", choice(&c.Format, "console", "json"),
		"log format: console or json").flagged("log-format", "")
	s.value("sampling", integer(&c.Sampling, 0, 1<<20),
		"log the first N repeats of a message per second, then every hundredth; 0 logs all").
		flagged("log-sampling", "")
}

func checkLevel(s string) error {
	if _, err := logging.ParseLevel(s); err != nil {
		return errors.New("must be one of debug, info, warn, error, 10, 20, 30, 40, 50, 60, 70")
	}
	return nil
}

// Operations configures the listeners for monitoring and administration.
type Operations struct {
	Listen string // HOST:PORT, "" for none
	Admin  string // unix:PATH or a loopback HOST:PORT, "" for none
	// WebConfigFile has TLS and users of Listen, "" for plain text and everybody.
	WebConfigFile string
	// AllowedHosts are further names of this machine that requests may be for.
	AllowedHosts []string
	// AdminTokenFile has the token that clients of a loopback address for Admin must know.
	AdminTokenFile string
	// AdminWebConfigFile has TLS for a loopback address for Admin, "" for plain text.
	AdminWebConfigFile string
	// CoreDumps leaves the memory of a daemon with secrets to debuggers of its user.
	CoreDumps bool
}

// hasSecrets reports whether one of the files holds keys, tokens, or passwords.
func (c *Operations) hasSecrets() bool {
	return c.AdminTokenFile != "" || c.AdminWebConfigFile != "" || c.WebConfigFile != ""
}

func (c *Operations) describe(s section) {
	s.value("listen", text(&c.Listen, checkListen),
		"address of the status page, /status, /metrics, /healthz and /readyz, HOST:PORT; empty disables it").
		flagged("metrics-listen", "")
	s.value("admin", text(&c.Admin, checkAdmin),
		"address for administration: unix:PATH for root and the daemon's user, or a loopback address for whoever knows the token in admin_token_file or has a certificate that admin_web_config_file asks for; empty disables it").
		flagged("admin-listen", "")
	s.value("admin_token_file", text(&c.AdminTokenFile, nil),
		"file with the token that clients of a loopback address for administration must know, which a reload rereads").
		flagged("admin-token-file", "")
	s.value("admin_web_config_file", text(&c.AdminWebConfigFile, nil),
		"web configuration file of the Prometheus exporter toolkit for a loopback address for administration, whose TLS makes a client's certificate as good as the token, and which a reload rereads; empty is plain text").
		flagged("admin-web-config-file", "")
	s.value("web_config_file", text(&c.WebConfigFile, nil),
		"web configuration file of the Prometheus exporter toolkit, with TLS and users of listen, which a reload rereads; empty is plain text for everybody").
		flagged("web-config-file", "")
	s.value("allowed_hosts", words(&c.AllowedHosts, checkName(maxHostName)),
		"names of this machine that requests for the status, and for administration, may be for, besides localhost, its host name, and addresses; with TLS or users in web_config_file, requests to listen may be for any name").
		flagged("allowed-host", "")
	s.value("core_dumps", boolean(&c.CoreDumps),
		"allow core dumps of a daemon with private keys or tokens, and debuggers of its user, who can then read them; for tests").
		flagged("core-dumps", "")
}

func (c *Operations) check(report reporter) {
	if c.Admin != "" {
		if err := adminserver.CheckAuthentication(c.Admin, c.AdminTokenFile,
			c.AdminWebConfigFile != ""); err != nil {
			report("admin", c.Admin, "%s", status.Text(err))
		}
	}
	c.checkEffect(report)
}

// checkAdmin checks an admin address.
func checkAdmin(s string) error {
	if path, isSocket := strings.CutPrefix(s, "unix:"); isSocket && path != "" {
		return endpoint.CheckSocketPath(path)
	}
	if err := endpoint.CheckHost(s); err != nil {
		return err
	}
	if checkListen(s) != nil {
		return errors.New("must be unix:PATH or an address of the form HOST:PORT, for instance unix:/run/zc-relay/admin.sock, or empty for none")
	}
	if s == "" {
		return nil
	}
	return adminserver.CheckAddress(s)
}

func checkListen(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return errors.New("must be an address of the form HOST:PORT, for instance 127.0.0.1:9470, or empty for none")
	}
	return endpoint.CheckHost(s)
}

// Metrics configures how much detail metrics have.
type Metrics struct {
	Queues     bool
	PerSession int // clients that are counted by name, once per channel or volume; 0 for none
}

func defaultMetrics() Metrics { return Metrics{Queues: true} }

func (c *Metrics) describe(s section) {
	s.value("queues", boolean(&c.Queues), "count IO by queue; false sums it up over all queues")
	s.value("per_session", integer(&c.PerSession, 0, maxCountedClients),
		"number of clients whose IO is counted by the client's name, all others together; a client of several channels or volumes counts once for each; 0 counts none")
}

// maxCountedClients bounds the series of a daemon.
const maxCountedClients = 10_000

// Workers configures the data-path threads.
type Workers struct {
	CPUs []int
	// Count is the number of workers if CPUs is empty; 0 means automatic.
	Count    int
	Poll     string
	SpinTime time.Duration
}

func defaultWorkers() Workers {
	return Workers{Poll: progress.Adaptive.String(), SpinTime: progress.DefaultSpinTime}
}

// maxWorkers is the largest number of workers in a process.
const maxWorkers = 256

func (c *Workers) describe(s section) {
	s.value("cpus", cpuList(&c.CPUs),
		"pin a worker to each of these cores, for instance 0-3,8; empty pins none").
		flagged("cpu", "")
	s.value("count", orWord(integer(&c.Count, 1, maxWorkers), &c.Count, "auto", 0),
		"number of unpinned workers if cpus is empty; auto is two, or one with fewer than four cores")
	s.value("poll", choice(&c.Poll, progress.Adaptive.String(), progress.Busy.String(),
		progress.Event.String()),
		"what an idle worker does: adaptive, busy or event").flagged("poll", "")
	s.value("spin_time", duration(&c.SpinTime, time.Microsecond, time.Second),
		"how long an adaptive worker polls without work before it sleeps")
}

// RDMA chooses and tunes the RDMA provider.
type RDMA struct {
	Provider      string
	CRC           bool
	Device        string
	GIDIndex      int // or AutoGID
	PathMTU       int // the next three: or 0 for the provider's choice
	TypeOfService uint8
	RetryCount    int
	AckTimeout    time.Duration // the next two: or 0 for the provider's choice
	RNRRetryCount int
}

// AutoGID selects the GID by the address.
const AutoGID = -1

const auto = "auto"

func defaultRDMA() RDMA { return RDMA{Provider: providers.DefaultRDMA, GIDIndex: AutoGID} }

func (c *RDMA) describe(s section) {
	s.value("provider", choice(&c.Provider, "iwarp", "verbs", "shm", "doca", "auto"),
		"RDMA provider: iwarp, verbs, shm (both programs on one machine), doca (libdoca), or auto (shm where it can, else iwarp)").flagged("rdma-provider", "")
	s.value("crc", boolean(&c.CRC),
		"iwarp: protect connections with CRC32C; on if either side asks for it").
		flagged("rdma-crc", "")
	s.value("device", text(&c.Device, nil),
		"verbs and doca: RDMA device, or network interface or PCI function that has one; empty is the device with the address").
		flagged("rdma-device", "")
	s.value("gid_index", orWord(integer(&c.GIDIndex, 0, 1<<15), &c.GIDIndex, auto, AutoGID),
		"verbs and doca: entry of the GID table to use; auto finds the entry of the RDMA address").
		flagged("rdma-gid-index", "")
	s.value("path_mtu", orWord(oneOf(&c.PathMTU, 256, 512, 1024, 2048, 4096), &c.PathMTU, auto, 0),
		"verbs and doca: payload of a packet in bytes, equal on both sides: 256, 512, 1024, 2048 or 4096; auto uses the route's maximum (verbs), or libdoca's default").
		flagged("rdma-path-mtu", "")
	s.value("type_of_service", orWord(integer(&c.TypeOfService, 1, 255), &c.TypeOfService, auto, 0),
		"verbs: type of service of the packets, which selects the traffic class; auto is the system's default").
		flagged("rdma-tos", "")
	s.value("retry_count", orWord(integer(&c.RetryCount, 1, 7), &c.RetryCount, auto, 0),
		"verbs: retransmissions of a packet without acknowledgement, 1 to 7; auto is 7").
		flagged("rdma-retry-count", "")
	s.value("ack_timeout", orWord(duration(&c.AckTimeout, 5*time.Microsecond, 8*time.Second),
		&c.AckTimeout, auto, 0),
		"verbs: how long to wait for an acknowledgement before a packet is sent again, rounded up to 4.096 µs times a power of two; devices may wait up to four times as long; auto is 250ms").
		flagged("rdma-ack-timeout", "")
	s.value("rnr_retry_count", orWord(integer(&c.RNRRetryCount, 1, 7), &c.RNRRetryCount, auto, 0),
		"verbs and doca: repetitions of a message for which the peer has posted no receive, 1 to 7, 7 without end; auto is 3 (verbs), or libdoca's default").
		flagged("rdma-rnr-retry-count", "")
}

// HasTCPPorts reports whether the provider listens at TCP ports.
func (c *RDMA) HasTCPPorts() bool { return c.Provider != "verbs" && c.Provider != "shm" }

// checkZone returns an error if an address for RDMA connections lacks the zone that it needs. The
// provider doca finds the device by the address alone.
func (c *RDMA) checkZone(address netip.Addr) error {
	if c.Provider == "doca" {
		return nil
	}
	return endpoint.CheckZone(address)
}

// checkProtocol reports a protocol of the DOCA applications for which the provider has no
// connections.
func (c *RDMA) checkProtocol(report reporter, key, protocol string) {
	if strings.HasPrefix(protocol, "doca-") && c.Provider != docaProvider {
		report(key, protocol, "needs rdma.provider doca (--rdma-provider doca), and it is %s: the "+
			"DOCA applications connect by DOCA RDMA alone; between our relay and target, leave "+
			"the protocol out", c.Provider)
	}
}

// docaProvider is the name of the RDMA provider that speaks to the DOCA applications.
const docaProvider = "doca"

// TLS configures TLS for the control connections. All fields are "" for plain text.
type TLS struct {
	Certificate string
	Key         string
	CA          string
	Revoked     string // "" for no list
}

func (c *TLS) describe(s section) {
	s.value("certificate", text(&c.Certificate, nil),
		"secure control connections with mutual TLS: PEM file with this side's certificate; if empty, connections are plain text").
		flagged("tls-cert", "")
	s.value("key", text(&c.Key, nil),
		"PEM file with the certificate's private key").flagged("tls-key", "")
	s.value("ca", text(&c.CA, nil),
		"PEM file with the authorities that may sign the peer's certificate").flagged("tls-ca", "")
	s.value("revoked", text(&c.Revoked, nil),
		"PEM file with the authorities' lists of revoked certificates (CRL), read again when it changes; a reload ends the sessions with peers that are on them; if empty, none is revoked").
		flagged("tls-revoked", "")
}

// Enabled reports whether TLS is configured.
func (c *TLS) Enabled() bool { return *c != TLS{} }

func (c *TLS) check(report reporter) {
	if !c.Enabled() {
		return
	}
	for _, part := range []struct{ key, file string }{{"certificate", c.Certificate},
		{"key", c.Key}, {"ca", c.CA}} {
		if part.file == "" {
			report(part.key, nil,
				"is missing: TLS needs a certificate (--tls-cert), a key (--tls-key) and an authority (--tls-ca)")
		}
	}
}

// Security says how data is protected on its way between relay and target.
type Security struct {
	Data   string
	Fabric string
}

// noFabric stands for a network that nothing protects.
const noFabric = "none"

func defaultSecurity() Security {
	return Security{Data: controlmsg.DataSecurityOff.String(), Fabric: noFabric}
}

func (c *Security) describe(s section) {
	s.value("data", choice(&c.Data, controlmsg.DataSecurities()...),
		"TLS 1.3 for the RDMA connections of iwarp and auto, with the certificates of tls: off, tls "+
			"(if the peer wants it, too), or required (no session without it; connections over shared "+
			"memory do not leave the machine, and need none)").
		flagged("data-security", "")
	s.value("fabric", choice(&c.Fabric, noFabric, "ipsec", "macsec", "trusted"),
		"what protects the network of the RDMA providers verbs and doca, which have no TLS: declared "+
			"here, not checked, it lets them serve sessions although security.data is required").
		flagged("fabric-security", "")
}

func (c *Security) check(report reporter, secure *TLS, transport *RDMA) {
	c.checkEffect(report, transport)
	if c.Wanted() != controlmsg.DataSecurityOff && !secure.Enabled() {
		report("data", c.Data, noTLS)
	}
	if c.Wanted() == controlmsg.DataSecurityRequired && c.DeclaredFabric() == "" &&
		(transport.Provider == "verbs" || transport.Provider == "doca") {
		report("data", c.Data, "cannot be had with rdma.provider %s, which has no TLS: declare what "+
			"protects its network by security.fabric (--fabric-security), or choose rdma.provider "+
			"iwarp or auto", transport.Provider)
	}
}

// Wanted returns Data, which has been checked.
func (c *Security) Wanted() controlmsg.DataSecurity {
	return controlmsg.DataSecurity(slices.Index(controlmsg.DataSecurities(), c.Data))
}

// DeclaredFabric returns Fabric, "" for none.
func (c *Security) DeclaredFabric() string {
	if c.Fabric == noFabric {
		return ""
	}
	return c.Fabric
}

// Control holds the timeouts of control connections.
type Control struct {
	Timeout            time.Duration
	KeepAliveInterval  time.Duration
	KeepAliveDeadAfter time.Duration
}

func defaultControl(timeout time.Duration) Control {
	k := controlmsg.DefaultKeepAlive()
	return Control{Timeout: timeout, KeepAliveInterval: k.Interval, KeepAliveDeadAfter: k.DeadAfter}
}

// describe adds the keys. reload differs between the daemons.
func (c *Control) describe(s section, reload Reload) {
	s.value("timeout", duration(&c.Timeout, 10*time.Millisecond, time.Hour),
		"timeout of each step of a handshake").
		flagged("control-timeout", "").inSeconds().reloads(reload)
	s.value("keep_alive_interval", duration(&c.KeepAliveInterval, time.Millisecond, time.Hour),
		"interval of keep-alive messages on control connections").
		flagged("keep-alive-interval", "").reloads(reload)
	s.value("keep_alive_dead_after", duration(&c.KeepAliveDeadAfter, time.Millisecond, time.Hour),
		"time without messages after which the peer of a control connection counts as dead").
		flagged("keep-alive-dead-after", "").reloads(reload)
}

func (c *Control) check(report reporter) {
	if c.KeepAliveDeadAfter < c.KeepAliveInterval {
		report("keep_alive_dead_after", c.KeepAliveDeadAfter,
			"must not be less than keep_alive_interval, which is %v", c.KeepAliveInterval)
	}
}

// Shutdown configures the shutdown of a daemon.
type Shutdown struct {
	DrainTimeout retry.Bound
}

func (c *Shutdown) describe(s section, reload Reload) {
	s.value("drain_timeout", bound(&c.DrainTimeout, 0),
		"how long IO in flight may take to complete at shutdown; 0s does not wait, infinite waits until a signal forces the end").
		flagged("drain-timeout", "").reloads(reload)
}
