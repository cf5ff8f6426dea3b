// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a machine for problems that keep a relay or a target from working, or from
// working well, and suggests remedies.
package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Schema names the report's format. Fields may be added within a version.
const Schema = "zc-relay.doctor/1"

// Verdict is the result of a check.
type Verdict string

// The verdicts, from good to bad.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
)

// worse returns the worse of two verdicts.
func (v Verdict) worse(other Verdict) Verdict {
	if v == Fail || other == Fail {
		return Fail
	}
	if v == Warn || other == Warn {
		return Warn
	}
	return OK
}

// Finding is the outcome of one check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	// Detail describes what was found, Remedy what to do about it; empty if ok.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func ok(check, detail string) Finding { return Finding{Check: check, Verdict: OK, Detail: detail} }

func warn(check, detail, remedy string) Finding {
	return Finding{Check: check, Verdict: Warn, Detail: detail, Remedy: remedy}
}

func fail(check, detail, remedy string) Finding {
	return Finding{Check: check, Verdict: Fail, Detail: detail, Remedy: remedy}
}

// Report holds all findings.
type Report struct {
	Schema   string    `json:"schema"`
	Verdict  Verdict   `json:"verdict"` // the worst of all
	Findings []Finding `json:"findings"`
}

// Count returns the number of findings with a verdict.
func (r *Report) Count(v Verdict) int {
	n := 0
	for _, f := range r.Findings {
		if f.Verdict == v {
			n++
		}
	}
	return n
}

// Options describe what the machine is to run.
type Options struct {
	// Sysfs, Procfs and Dev are the roots of these trees: "/sys", "/proc" and "/dev", or copies
	// from another machine.
	Sysfs, Procfs, Dev string
	// Configuration says where the configuration comes from. FromFile means that a file is a part
	// of it: remedies then name the keys of the file, and otherwise flags.
	Configuration string
	FromFile      bool
	// Channels holds the names of a relay's channels. Server, Target, and StagedDevice refer to
	// them by index.
	Channels []string
	// Kept is the file with the channels that were added by command, "" if the relay keeps none.
	// They follow the first Configured of Channels. KeptError is why they cannot be used.
	Kept       string
	Configured int
	KeptError  error
	// Incomplete is why the daemon does not start with this configuration; nil if it does. IsEmpty
	// means that there is nothing to check but the machine.
	Incomplete error
	IsEmpty    bool
	// Unit is the systemd unit of the daemon. RuntimeDirectory is there only while it runs; "" for
	// none.
	Unit, RuntimeDirectory string
	// CPUs holds the cores for the workers; if empty, the scheduler places Workers of them.
	CPUs    []int
	Workers int
	// Busy means that the workers poll without pause.
	Busy bool
	// Descriptors is how many file descriptors the daemon can need, and LimitNOFILE the limit that
	// its unit should have.
	Descriptors, LimitNOFILE int

	// Verbs means that the RDMA provider is verbs, DocaRDMA that it is doca. OpenRDMA returns the
	// provider; nil skips it.
	Verbs, DocaRDMA bool
	OpenRDMA        func() (rdma.Provider, error)
	// RDMAAddresses holds the local addresses of RDMA connections, besides those of the routes to
	// the targets.
	RDMAAddresses []netip.Addr

	// Doca means that the Comch provider is doca. OpenComch returns the provider; nil skips it.
	Doca      bool
	OpenComch func() (comch.Provider, error)
	// ComchDirectory is the directory of the emulated Comch.
	ComchDirectory string
	// Servers holds the Comch services to offer.
	Servers []Server
	// CheckChannels returns an error if the relay cannot have the channels as they are configured.
	CheckChannels func() error
	// OpenDMA returns the DMA provider of channels with isolation staged. DMADevices holds their
	// devices.
	OpenDMA    func() (dma.Provider, error)
	DMADevices []StagedDevice
	// CheckUsers returns an error if a user in the configuration does not exist; it may be nil.
	CheckUsers func() error

	// Targets holds what must be reachable, and UnknownTargets why the hosts of others could not be
	// looked up.
	Targets        []Target
	UnknownTargets []error
	// Listen holds addresses, HOST:PORT, that must be free. OwnListen holds those of the daemon,
	// which uses them if it runs.
	Listen, OwnListen []string
	// Admin is the address for administrators, and CheckAdmin returns why the daemon cannot listen
	// there; nil without the address.
	Admin      string
	CheckAdmin func() error
	// Directories holds where the daemon creates files.
	Directories []Directory
	// TLSKey is the file with the private key, "" without TLS.
	TLSKey string
	// LoadTLS loads the credentials and returns when they expire, and why peers will reject them;
	// nil without TLS.
	LoadTLS func() (expires time.Time, problems []string, err error)
	// LoadWeb reads the web configuration file and returns when its certificate expires, the zero
	// time without one, and what is hardly intended; nil without the file.
	LoadWeb func() (expires time.Time, warnings []string, err error)
	// DataSecurity is what the daemon wants for data, and Fabric what is declared to protect the
	// network of an RDMA provider without TLS, "" for nothing.
	DataSecurity controlmsg.DataSecurity
	Fabric       string
	// Secure returns the configuration for TLS connections to a target; nil without TLS.
	Secure func(serverName string) (*tls.Config, error)
	// Volumes holds what a target serves.
	Volumes []volume.Spec

	// KeepAliveInterval and DeadAfter apply to control connections.
	KeepAliveInterval, DeadAfter time.Duration
	// IOTimeouts bound an IO at the target. Each differs from the others.
	IOTimeouts []retry.Bound
}

// Server is the Comch service of a channel.
type Server struct {
	Channel int
	comch.Service
	// AdmitsOthers means that users besides root and the relay's own may connect, and AdmitsAll
	// that all users may.
	AdmitsOthers, AdmitsAll bool
}

// Directory is where the daemon creates files. Check returns why it cannot. Key and Flag are the
// setting that names the directory.
type Directory struct {
	Path, Key, Flag string
	Check           func(path string) error
}

// StagedDevice is the DMA device of a channel with isolation staged.
type StagedDevice struct {
	Channel int
	Device  string
}

// Target is what a channel connects to.
type Target struct {
	Channel int
	Address netip.AddrPort
	// Volume is the volume to ask for.
	Volume string
	// Foreign means that the target speaks another protocol than this project's.
	Foreign bool
	// RDMAAddress is the local address of RDMA connections, invalid for that of the route.
	RDMAAddress netip.Addr
	// TLSServerName is the name in the target's certificate, "" for its address.
	TLSServerName string
	// ComchDevice is the device of the clients whose memory RDMA has to reach, "" if it need not.
	// ImportDevice says which device imports it.
	ComchDevice  string
	ImportDevice relay.ImportDevice
}

// Examine runs all checks. The end of ctx ends checks that wait.
func Examine(ctx context.Context, options *Options) *Report {
	m := &machine{Options: options}
	r := &Report{Schema: Schema, Verdict: OK}
	for _, check := range []func() []Finding{
		m.configuration, m.user, m.kernel, m.memlock, m.descriptors, m.hugePages, m.cores,
		m.cpuQuota, m.numa, m.frequency, m.clock,
		m.kept, m.devices, m.infinibandFiles, m.rdma, m.representors, m.comch, m.pairs, m.dma,
		m.users,
		m.admin, m.writable,
		m.tls, m.protection, m.web, m.volumes, func() []Finding { return m.targets(ctx) },
		m.ports, m.timeouts,
	} {
		for _, f := range check() {
			r.Verdict = r.Verdict.worse(f.Verdict)
			r.Findings = append(r.Findings, f)
		}
	}
	return r
}

// configurationCheck is the name of the check of the configuration.
const configurationCheck = "configuration"

// Unusable returns the report of a configuration that cannot be used, so that nothing else can be
// checked.
func Unusable(err error, remedy string) *Report {
	return &Report{Schema: Schema, Verdict: Fail,
		Findings: []Finding{fail(configurationCheck, status.Text(err), remedy)}}
}

func (m *machine) configuration() []Finding {
	const check = configurationCheck
	findings := []Finding{ok(check, m.Configuration)}
	switch {
	case m.Incomplete != nil && m.IsEmpty:
		findings[0] = fail(check, fmt.Sprintf("%s: the daemon does not start: %v", m.Configuration,
			m.Incomplete), fmt.Sprintf("write the file (systemctl cat %s names it), or give the daemon's "+
			"file or flags to doctor, too", m.Unit))
	case m.Incomplete != nil:
		findings[0] = warn(check, fmt.Sprintf("%s: the daemon does not start with these alone: %v",
			m.Configuration, m.Incomplete), "give doctor what the daemon gets, with --config FILE or flags")
	case m.CheckChannels != nil:
		if err := m.CheckChannels(); err != nil {
			findings = append(findings, fail(check, status.Text(err), "correct the channel in the "+
				"configuration ("+m.Configuration+")"))
		}
	}
	return findings
}

// kept checks the file with the channels that were added by command.
func (m *machine) kept() []Finding {
	const check = "channels by command"
	err := m.KeptError
	switch {
	case m.Kept == "":
		return nil
	case err == nil:
		return []Finding{ok(check, fmt.Sprintf("%s has %d", m.Kept, len(m.Channels)-m.Configured))}
	case errors.Is(err, fs.ErrPermission) && m.isOtherUser():
		return []Finding{warn(check, status.Text(err)+": they were not checked", m.asService())}
	}
	return []Finding{fail(check, strings.ReplaceAll(status.Text(err), "\n", "; "),
		"the relay does not start before that is done")}
}

// machine gives the checks access to the machine.
type machine struct {
	*Options
	emulated *bool // what emulatesDOCA has found; nil before
}

// readFile returns the content of a small file, "" if it cannot be read.
func readFile(root string, path ...string) string {
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (m *machine) sys(path ...string) string { return readFile(m.Sysfs, path...) }

func (m *machine) proc(path ...string) string { return readFile(m.Procfs, path...) }

// field returns the value of a line "KEY: VALUE" of a file in procfs.
func (m *machine) field(path, key string) string {
	for line := range strings.Lines(m.proc(path)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// unlimited stands for the absence of a limit.
const unlimited = ^uint64(0)

// Columns of /proc/self/limits.
const (
	softLimit = iota
	hardLimit
)

// limit returns a limit of the process by its name in /proc/self/limits.
func (m *machine) limit(name string, column int) (value uint64, known bool) {
	for line := range strings.Lines(m.proc("self/limits")) {
		rest, found := strings.CutPrefix(line, name)
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) <= column {
			return 0, false
		}
		if fields[column] == "unlimited" {
			return unlimited, true
		}
		value, err := strconv.ParseUint(fields[column], 10, 64)
		return value, err == nil
	}
	return 0, false
}

// cpuList parses a list of cores in the kernel's format. It returns none for an empty or invalid
// list.
func (m *machine) cpuList(text string) []int {
	if text == "" {
		return nil
	}
	cpus, err := affinity.ParseList(text)
	if err != nil {
		return nil
	}
	return cpus
}
