// Package doctor looks at a machine for what keeps a relay or a target from
// working, or from working well, and says what to do about it.
package doctor

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/affinity"
)

// Schema names the report's format. Fields may be added within a version.
const Schema = "zc-relay.doctor/1"

// Verdict is what a check has come to.
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
	// Detail is what was found, Remedy what to do about it; empty if ok.
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

// Report is all findings.
type Report struct {
	Schema   string    `json:"schema"`
	Verdict  Verdict   `json:"verdict"` // the worst of all
	Findings []Finding `json:"findings"`
}

// Count is how many findings have a verdict.
func (r *Report) Count(v Verdict) int {
	n := 0
	for _, f := range r.Findings {
		if f.Verdict == v {
			n++
		}
	}
	return n
}

// Options say what is to be run on the machine.
type Options struct {
	// Sysfs, Procfs and Dev are the roots, "/sys", "/proc" and "/dev" or those
	// of another machine.
	Sysfs, Procfs, Dev string
	// CPUs are the cores for the workers; none lets the scheduler place
	// Workers of them.
	CPUs    []int
	Workers int
	// Busy tells that the workers poll without pause.
	Busy bool
	// Verbs tells that the RDMA provider is verbs.
	Verbs bool
	// Target, if it is valid, is the control address that must be reachable.
	Target netip.AddrPort
	// Listen are addresses, HOST:PORT, that must be free.
	Listen []string
	// KeepAliveInterval and DeadAfter are those of the control connections,
	// IOTimeout how long a target may take for an IO, 0 for no bound.
	KeepAliveInterval, DeadAfter, IOTimeout time.Duration
}

// Examine makes all checks. The end of ctx ends those that wait.
func Examine(ctx context.Context, options *Options) *Report {
	m := &machine{Options: options}
	r := &Report{Schema: Schema, Verdict: OK}
	for _, check := range []func() []Finding{
		m.kernel, m.memlock, m.descriptors, m.hugePages, m.cores, m.cpuQuota, m.numa, m.frequency, m.clock,
		m.devices, m.infinibandFiles,
		func() []Finding { return m.target(ctx) }, m.ports, m.timeouts,
	} {
		for _, f := range check() {
			r.Verdict = r.Verdict.worse(f.Verdict)
			r.Findings = append(r.Findings, f)
		}
	}
	return r
}

// machine is what the checks look at.
type machine struct{ *Options }

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

// unlimited is a limit that is none.
const unlimited = ^uint64(0)

// limit returns a soft limit of the process, by its name in
// /proc/self/limits. The columns of that file are wide apart.
func (m *machine) limit(name string) (value uint64, known bool) {
	for line := range strings.Lines(m.proc("self/limits")) {
		rest, found := strings.CutPrefix(line, name)
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, false
		}
		if fields[0] == "unlimited" {
			return unlimited, true
		}
		value, err := strconv.ParseUint(fields[0], 10, 64)
		return value, err == nil
	}
	return 0, false
}

// cpuList reads a list of cores as the kernel writes it; none if it is empty
// or cannot be read.
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
