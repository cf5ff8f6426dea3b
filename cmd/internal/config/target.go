// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
	_ "github.com/zc-relay/zc-relay/pkg/volume/rbd" // volumes on Ceph RBD
)

// Target is the configuration of the target.
type Target struct {
	Daemon
	// Additions is part of the section operations.
	Additions Additions
	Listen    Listen
	Limits    TargetLimits
	Startup   Startup
	State     State
	Volumes   []Volume
}

// Additions configures which storage administrators may add as volumes.
type Additions struct {
	Directories []string // empty for those of the configured volumes, and that of the state
	Devices     []string
}

func (c *Additions) describe(s section) {
	s.value("volume_directories", words(&c.Directories, checkAbsolute),
		"directories in which, and below which, volumes that administrators add may have their files; empty is those of the files of configured volumes, except / and what is in /dev, and the state directory").
		flagged("volume-directory", "")
	s.value("volume_devices", words(&c.Devices, checkAbsolute),
		"block devices that administrators may add as volumes, by the path that they give").
		flagged("volume-device", "")
}

func checkAbsolute(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("must be an absolute path")
	}
	return nil
}

// Startup configures the start of the target.
type Startup struct {
	// Strict makes the target exit if a volume cannot be opened, and reject a reload with one.
	Strict bool
}

// State configures where a daemon keeps what outlives it.
type State struct {
	Directory string // "" for the one that the service manager names
}

// Path returns the directory, "" if there is none.
func (c *State) Path() string {
	// systemd separates several by colons (StateDirectory= of the unit).
	first, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	return cmp.Or(c.Directory, first)
}

// Listen configures the addresses that relays connect to.
type Listen struct {
	Address     netip.Addr
	Port        uint16
	RDMAAddress netip.Addr // invalid for Address
	RDMAPort    uint16
	AddressFile string
	// TLSAllowedNames is empty to accept every certificate of the authorities.
	TLSAllowedNames []string
	Protocol        string // one of relay.Protocols
}

// Version returns the protocol that relays speak; dialects.None is our own.
func (c *Listen) Version() dialects.Version {
	v, _ := dialects.ParseVersion(c.Protocol) // None for the others
	return v
}

// DetectsProtocol reports whether a relay's first message decides what it speaks.
func (c *Listen) DetectsProtocol() bool { return c.Protocol == string(relay.ProtocolAuto) }

// TargetLimits holds the limits of all sessions together.
type TargetLimits struct {
	Sessions          int
	SessionsPerSecond int
	Staging           uint64
}

// Volume configures a volume.
type Volume struct {
	Name      string
	Backend   string
	BlockSize uint32
	// Readers, Writers, Owners, and Preemptors are names in the certificates of relays that may
	// only read, may read and write, may also open the volume exclusively, and may also preempt
	// holders. If all are empty, every relay may do everything.
	Readers, Writers, Owners, Preemptors []string
}

// groupOfRights is a key that lists relays with the same rights.
type groupOfRights struct {
	key    string
	names  []string
	access target.Access
}

func (c *Volume) groupsOfRights() []groupOfRights {
	return []groupOfRights{
		{"readers", c.Readers, target.ReadAccess}, {"writers", c.Writers, target.WriteAccess},
		{"owners", c.Owners, target.ExclusiveAccess},
		{"preemptors", c.Preemptors, target.PreemptAccess},
	}
}

// Rights returns the rights of relays.
func (c *Volume) Rights() []target.Right {
	var rights []target.Right
	for _, group := range c.groupsOfRights() {
		for _, name := range group.names {
			rights = append(rights,
				target.Right{Relay: certificateName(name), Access: group.access})
		}
	}
	return rights
}

// AliasOf returns the volume of which this is another name, or "".
func (c *Volume) AliasOf() string {
	spec, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	if err != nil {
		return ""
	}
	alias, _ := spec.Backend.(volume.Alias)
	return alias.Of
}

// Equal reports whether two configurations are the same.
func (c *Volume) Equal(other *Volume) bool {
	return c.Name == other.Name && c.Backend == other.Backend && c.BlockSize == other.BlockSize &&
		c.HasSameRights(other)
}

// HasSameRights reports whether two configurations give relays the same rights.
func (c *Volume) HasSameRights(other *Volume) bool {
	return slices.Equal(c.Rights(), other.Rights())
}

// HasSameStorage reports whether two configurations are the same, except perhaps for the rights of
// relays and the size that a file has at least.
func (c *Volume) HasSameStorage(other *Volume) bool {
	mine, _ := c.cutSize()
	theirs, _ := other.cutSize()
	return c.Name == other.Name && mine == theirs && c.BlockSize == other.BlockSize
}

// FileSize returns the size in bytes that the volume's file has at least, 0 if none is configured.
func (c *Volume) FileSize() uint64 {
	_, bytes := c.cutSize()
	return bytes
}

// SharesFile reports whether two configurations are of the same file or device.
func (c *Volume) SharesFile(other *Volume) bool {
	mine, _ := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	theirs, _ := volume.ParseSpec(other.Name+"="+other.Backend, other.BlockSize)
	one, isFile := mine.Backend.(volume.FileBackend)
	another, areFiles := theirs.Backend.(volume.FileBackend)
	return isFile && areFiles && filepath.Clean(one.Path) == filepath.Clean(another.Path)
}

// isReadOnly reports whether the volume's file is opened for reading only.
func (c *Volume) isReadOnly() bool {
	spec, _ := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	file, _ := spec.Backend.(volume.FileBackend)
	return file.ReadOnly
}

// cutSize returns the backend without the size of a file, and that.
func (c *Volume) cutSize() (backend string, bytes uint64) {
	spec, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	if err != nil {
		return c.Backend, 0
	}
	file, isFile := spec.Backend.(volume.FileBackend)
	if !isFile {
		return c.Backend, 0
	}
	bytes, file.Size = file.Size, 0
	spec.Backend = file
	return spec.String(), bytes
}

// CheckAdded returns an error unless the volume can be added to a target that runs with or without
// TLS.
func (c *Volume) CheckAdded(tls bool) error {
	check := checkName(volume.MaxNameLength)
	if err := check(c.Name); err != nil {
		return status.Errorf(status.InvalidValue, "name %q %w", c.Name, err)
	}
	for _, name := range slices.Concat(c.Readers, c.Writers, c.Owners, c.Preemptors) {
		if !tls {
			return status.Errorf(status.InvalidValue,
				"volume %q has rights of relays, but the target has no TLS that would tell relays apart",
				c.Name)
		}
		if err := checkCertificateName(name); err != nil {
			return status.Errorf(status.InvalidValue, "name of a relay %w", err)
		}
	}
	_, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	return err
}

// defaultPort is the default port for control connections.
const defaultPort = 7470

// volumeForm is the form of the value of --volume.
const volumeForm = "NAME=BACKEND"

// DefaultBlockSize is the block size of most disks and file systems.
const DefaultBlockSize = 4096

// DefaultTarget returns the defaults. They have no volumes.
func DefaultTarget() *Target {
	return &Target{
		Daemon: defaultDaemon(target.DefaultControlTimeout, target.DefaultDrainTimeout),
		Listen: Listen{Address: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: defaultPort,
			Protocol: string(relay.ProtocolAuto)},
		Limits: TargetLimits{Sessions: target.DefaultMaxSessions,
			SessionsPerSecond: target.DefaultSessionRate, Staging: target.DefaultStagingLimit},
	}
}

func defaultVolume() Volume { return Volume{BlockSize: DefaultBlockSize} }

func (c *Target) describe(s section) {
	s.section("log", "The log, on standard error.", c.Log.describe)
	s.section("operations", "The listener for those who operate the daemon.", func(s section) {
		c.Operations.describe(s)
		c.Additions.describe(s)
	})
	s.section("metrics", "How much detail metrics have.", c.Metrics.describe)
	s.section("workers", "The data-path threads.", c.Workers.describe)
	s.section("rdma", "The connections of relays.", c.RDMA.describe)
	s.section("tls", "Security of the control connections of relays.", c.TLS.describe)
	s.section("security", "Security of data on its way to and from relays.", c.Security.describe)
	s.section("listen", "Where relays connect.", c.Listen.describe)
	s.section("control", "Control connections of relays.",
		func(s section) { c.Control.describe(s, Restart) })
	s.section("limits", "Limits of all sessions together.", c.Limits.describe)
	s.section("startup", "The start of the daemon.", c.Startup.describe)
	s.section("shutdown", "The end of the daemon.",
		func(s section) { c.Shutdown.describe(s, Restart) })
	s.section("state", "What outlives the daemon.", func(s section) {
		c.State.describe(s, "directory for proofs that volumes were closed cleanly, so that "+
			"clients miss no writes, which is created in an existing one; empty is "+
			"$STATE_DIRECTORY, which systemd sets; without either, proofs end with the process")
	})
	addList(s, "volumes", "A volume.", &c.Volumes, defaultVolume, (*Volume).describe)
	volumes := s.node.child("volumes").flagged("volume", "").reloads(AtOnce)
	volumes.doc = "volume to serve, " + volumeForm + "; a BACKEND is " + volume.BackendForms + "; repeatable"
	volumes.list.parseFlag, volumes.list.shown = parseVolumeFlag, volume.Redacted
	volumes.list.identifiedBy = []string{"name"}
}

// checkCertificateName fails unless a text stands for a name in a certificate.
func checkCertificateName(text string) error {
	if _, err := mutualtls.ParseName(text); err != nil {
		return fmt.Errorf("%q %s", text, status.Text(err))
	}
	return nil
}

// AllowedNames returns TLSAllowedNames, which have been checked, as names of certificates.
func (c *Listen) AllowedNames() []mutualtls.Name {
	var names []mutualtls.Name
	for _, text := range c.TLSAllowedNames {
		names = append(names, certificateName(text))
	}
	return names
}

// certificateName returns the name that a text stands for, and one that no certificate has for a
// text that stands for none.
func certificateName(text string) mutualtls.Name {
	name, err := mutualtls.ParseName(text)
	if err != nil {
		return mutualtls.Name{}
	}
	return name
}

func (c *Listen) describe(s section) {
	s.value("address", ipAddress(&c.Address, false, ": the port is --listen-port (listen.port)"),
		"IP address for control connections of relays; 0.0.0.0 means all IPv4 addresses, :: all addresses").flagged("listen-address", "")
	s.value("port", integer(&c.Port, 0, 65535),
		"port for control connections; 0 picks one").flagged("listen-port", "")
	s.value("rdma_address", ipAddress(&c.RDMAAddress, true, ": the port is listen.rdma_port"),
		"IP address for RDMA connections; empty is the address for control connections").
		flagged("rdma-address", "")
	s.value("rdma_port", integer(&c.RDMAPort, 0, 65535),
		"port for RDMA connections; 0 picks one, which relays learn from the handshake").
		flagged("rdma-port", "")
	s.value("address_file", text(&c.AddressFile, nil),
		"write the control address to this file once the target listens; if empty, write nothing").
		flagged("address-file", "")
	s.value("tls_allowed_names", words(&c.TLSAllowedNames, checkCertificateName),
		"a relay's certificate must have one of these names: dns:NAME, uri:URI, or ip:ADDRESS, where dns: and ip: may be left out; empty accepts every certificate of the authorities").
		flagged("tls-allowed-name", "").reloads(AtOnce)
	s.value("protocol", choice(&c.Protocol, names(relay.Protocols())...),
		"what relays speak: our own protocol, that of a release of the DOCA storage applications, which needs rdma.provider doca and a single volume, or auto: the protocol of each relay's first message").
		flagged("protocol", "")
}

// maxSessionRate is more than a target can do: no limit.
const maxSessionRate = 1_000_000

func (c *TargetLimits) describe(s section) {
	s.value("sessions", integer(&c.Sessions, 1, maxSessions),
		"concurrent control connections").flagged("max-sessions", "")
	s.value("sessions_per_second", integer(&c.SessionsPerSecond, 1, maxSessionRate),
		"control connections that become sessions per second, after a burst of a fifth as many; relays beyond it are told when to try again").
		flagged("max-session-rate", "")
	s.value("staging", byteSize(&c.Staging, size.MiB, 1<<50),
		"memory that all sessions together may use for data in transit").
		flagged("staging-limit", "")
}

func (c *Startup) describe(s section) {
	s.value("strict", boolean(&c.Strict),
		"exit if a volume cannot be opened, and reject a reload with one, instead of serving the other volumes and trying again").
		flagged("strict", "").reloads(AtOnce)
}

func (c *State) describe(s section, doc string) {
	s.value("directory", text(&c.Directory, nil), doc).flagged("state-directory", "")
}

func (c *Volume) describe(s section) {
	s.value("name", text(&c.Name, checkName(volume.MaxNameLength)),
		"name that relays request").require().reloads(AtOnce)
	s.value("backend", text(&c.Backend, checkBackend),
		"storage of the content: "+volume.BackendForms).require().reloads(AtOnce)
	s.value("block_size", byteSize(&c.BlockSize, volume.MinBlockSize, volume.MaxBlockSize),
		"block size of the volumes, a power of two").flagged("block-size", "").reloads(AtOnce)
	for _, group := range []struct {
		key   string
		names *[]string
		may   string
	}{
		{"readers", &c.Readers, "read"}, {"writers", &c.Writers, "read and write"},
		{"owners", &c.Owners, "read, write, and open the volume exclusively"},
		{"preemptors", &c.Preemptors,
			"preempt the holder of the volume, and do what owners may"},
	} {
		s.value(group.key, words(group.names, checkCertificateName),
			"relays that may "+group.may+", by a name in their certificates; if readers, writers, owners, and preemptors are empty, all relays may do everything").
			reloads(AtOnce)
	}
}

// checkBackend fails for no backend. What it has to be depends on the other keys.
func checkBackend(s string) error {
	if s == "" {
		return errors.New("must be " + volume.BackendForms)
	}
	return nil
}

// parseVolumeFlag parses the flag. The keys check the values.
func parseVolumeFlag(text string) (values, error) {
	name, backend, found := strings.Cut(text, "=")
	if _, err := volume.ParseSpec(text, DefaultBlockSize); err != nil &&
		(!found || strings.Contains(name, ":")) { // it may lack the name
		return nil, err
	}
	return values{"name": name, "backend": backend}, nil
}

func (c *Target) check(report reporter) {
	c.Operations.check(report.in("operations"))
	c.Control.check(report.in("control"))
	c.RDMA.checkEffect(report.in("rdma"))
	c.TLS.check(report.in("tls"))
	c.Security.check(report.in("security"), &c.TLS, &c.RDMA)
	if l := &c.Listen; l.RDMAPort != 0 && l.RDMAPort == l.Port && c.RDMA.HasTCPPorts() &&
		(!l.RDMAAddress.IsValid() || l.RDMAAddress == l.Address) {
		report("listen.rdma_port", l.RDMAPort,
			"is the port for control connections, too: give another one, or 0")
	}
	if len(c.Listen.TLSAllowedNames) > 0 && !c.TLS.Enabled() {
		report("listen.tls_allowed_names", c.Listen.TLSAllowedNames, noTLS)
	}
	if err := endpoint.CheckZone(c.Listen.Address); err != nil {
		report("listen.address", c.Listen.Address, "%s", status.Text(err))
	}
	if err := c.RDMA.checkZone(c.Listen.RDMAAddress); err != nil {
		report("listen.rdma_address", c.Listen.RDMAAddress, "%s", status.Text(err))
	}
	if c.Listen.Version() != dialects.None && c.TLS.Enabled() {
		report("listen.protocol", c.Listen.Protocol, "has no TLS: remove the section tls")
	}
	c.RDMA.checkProtocol(report, "listen.protocol", c.Listen.Protocol)
	if c.Listen.Version() != dialects.None && len(c.Volumes) > 1 {
		report("listen.protocol", c.Listen.Protocol,
			"cannot name one of several volumes: offer one")
	}
	if len(c.Volumes) == 0 {
		report("volumes", nil,
			"is empty: describe a volume in the file, or by --volume NAME=memory:SIZE")
	}
	seen := make(map[string]int)
	for i := range c.Volumes {
		v := &c.Volumes[i]
		at := report.in("volumes").element(i)
		if v.Name == "" || v.Backend == "" {
			continue // is reported as missing
		}
		if first, twice := seen[v.Name]; twice {
			at("name", v.Name, "there is another volume of that name: volume %d", first)
		}
		seen[v.Name] = i
		if _, err := volume.ParseSpec(v.Name+"="+v.Backend, v.BlockSize); err != nil {
			at("backend", volume.Redacted(v.Backend), "%s", status.Text(err))
		}
		for _, group := range v.groupsOfRights() {
			if len(group.names) > 0 && !c.TLS.Enabled() {
				at(group.key, group.names, "%s", noTLS)
			}
		}
	}
	for i := range c.Volumes {
		for first := range i {
			if c.Volumes[i].SharesFile(&c.Volumes[first]) &&
				!(c.Volumes[i].isReadOnly() && c.Volumes[first].isReadOnly()) {
				report.in("volumes").element(i)("backend", c.Volumes[i].Backend,
					"is the file of volume %q, which locks it: give the volume another name by "+
						"volume:%s, or make both read-only", c.Volumes[first].Name,
					c.Volumes[first].Name)
				break
			}
		}
		of := c.Volumes[i].AliasOf()
		first, there := seen[of]
		if of != "" && (!there || c.Volumes[first].AliasOf() != "") {
			report.in("volumes").element(i)("backend", c.Volumes[i].Backend,
				"there is no volume %q with its own storage", of)
		}
	}
}
