// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goodProc and goodSys are the files of a machine without problems.
var goodProc = map[string]string{
	"sys/kernel/osrelease": "6.1.0-18-arm64",
	"self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max open files            1024                 65536                files     \n" +
		"Max locked memory         unlimited            unlimited            bytes     ",
	"self/status": "Name:\tx\nCpus_allowed_list:\t0-7",
	"self/cgroup": "0::/system.slice/zc-relay.service",
	"meminfo":     "HugePages_Total:       8\nHugePages_Free:        4\nHugepagesize:       2048 kB",
}

var goodSys = map[string]string{
	"kernel/mm/transparent_hugepage/enabled":                      "always [madvise] never",
	"devices/system/cpu/isolated":                                 "4-7",
	"devices/system/cpu/cpu0/cpufreq/scaling_governor":            "performance",
	"devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter",
	"devices/system/node/online":                                  "0-1",
	"devices/system/node/node1/cpulist":                           "4-7",
	"fs/cgroup/system.slice/zc-relay.service/cpu.max":             "max 100000",
}

// machineWith creates a machine without problems, except for the given files: paths below proc/ or
// sys/, with "" for a missing file.
func machineWith(t *testing.T, files map[string]string) *machine {
	t.Helper()
	proc, sys := t.TempDir(), t.TempDir()
	if files["sys/rdma"] != "" {
		sys = sysfstest.New(t)
	}
	for root, set := range map[string]map[string]string{proc: goodProc, sys: goodSys} {
		kind := map[bool]string{true: "proc/", false: "sys/"}[root == proc]
		for path, content := range set {
			if other, replaced := files[kind+path]; replaced {
				content = other
			}
			if content != "" {
				sysfstest.Write(t, root, path, content)
			}
		}
	}
	return &machine{Options: &Options{
		Sysfs: sys, Procfs: proc, Dev: t.TempDir(), CPUs: []int{4, 5}, Workers: 2,
		Descriptors: 60_000, LimitNOFILE: 1 << 16,
		KeepAliveInterval: time.Second, DeadAfter: 5 * time.Second,
		IOTimeouts: []retry.Bound{retry.Within(30 * time.Second)}, Unit: "zc-relay",
	}}
}

// expect fails the test unless one of findings has the verdict and text.
func expect(t *testing.T, findings []Finding, verdict Verdict, text string) {
	t.Helper()
	for _, f := range findings {
		if f.Verdict != OK && f.Remedy == "" {
			t.Errorf("%s: %q has no remedy", f.Check, f.Detail)
		}
		if f.Verdict == verdict && strings.Contains(f.Detail, text) {
			return
		}
	}
	t.Errorf("no finding is %s with %q: %+v", verdict, text, findings)
}

func TestAGoodMachineHasNothingWrong(t *testing.T) {
	m := machineWith(t, nil)
	r := Examine(t.Context(), m.Options)
	if r.Verdict != OK || r.Count(OK) != len(r.Findings) || len(r.Findings) < 12 {
		t.Errorf("the report is %+v", r)
	}
}

func TestWhatIsWrongWithAMachineIsFound(t *testing.T) {
	const limits = "Max open files            1024     4096    files\nMax locked memory         65536    65536   bytes"
	for name, c := range map[string]struct {
		files   map[string]string
		change  func(*Options)
		verdict Verdict
		text    string
	}{
		"old kernel": {files: map[string]string{"proc/sys/kernel/osrelease": "4.18.0"},
			verdict: Fail, text: "Linux 4.18.0"},
		"no procfs": {files: map[string]string{"proc/sys/kernel/osrelease": "",
			"proc/self/limits": "", "proc/self/status": ""}, verdict: Warn,
			text: "limit on locked memory cannot be read"},
		"little memlock, iwarp": {files: map[string]string{"proc/self/limits": limits},
			verdict: Warn, text: "RLIMIT_MEMLOCK is 64KiB"},
		"little memlock, verbs": {files: map[string]string{"proc/self/limits": limits},
			change: func(o *Options) { o.Verbs = true }, verdict: Fail,
			text: "RLIMIT_MEMLOCK is 64KiB"},
		"little memlock, doca": {files: map[string]string{"proc/self/limits": limits},
			change: func(o *Options) { o.DocaRDMA = true }, verdict: Fail,
			text: "doca locks the memory"},
		"few descriptors": {files: map[string]string{"proc/self/limits": limits},
			verdict: Warn, text: "RLIMIT_NOFILE can be raised to 4096; the limits of sessions and queues allow 60000"},
		"huge pages are taken": {files: map[string]string{"proc/meminfo": "HugePages_Total: 8\nHugePages_Free: 0"},
			verdict: Warn, text: "all 8 reserved huge pages"},
		"no huge pages at all": {files: map[string]string{"proc/meminfo": "",
			"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}, verdict: Warn,
			text: "transparent huge pages are off"},
		"core not allowed": {change: func(o *Options) { o.CPUs = []int{4, 9} }, verdict: Fail,
			text: "core 9 is not available"},
		"busy on shared cores": {change: func(o *Options) { o.CPUs, o.Busy = []int{1, 4}, true },
			verdict: Warn, text: "cores 1 are shared"},
		"adaptive shared cores": {change: func(o *Options) { o.CPUs = []int{1} }, verdict: OK,
			text: "which is fine with adaptive polling"},
		"busy takes every core": {files: map[string]string{"proc/self/status": "Cpus_allowed_list: 0-1"},
			change: func(o *Options) { o.CPUs, o.Busy = nil, true }, verdict: Fail,
			text: "no core for anything else"},
		"workers share a core": {files: map[string]string{"proc/self/status": "Cpus_allowed_list: 0"},
			change: func(o *Options) { o.CPUs = nil }, verdict: Warn, text: "workers share a core"},
		"quota": {files: map[string]string{"sys/fs/cgroup/system.slice/zc-relay.service/cpu.max": "150000 100000"},
			verdict: Warn, text: "may use 1.5 cores, for 2 workers"},
		"quota, busy": {files: map[string]string{"sys/fs/cgroup/system.slice/zc-relay.service/cpu.max": "150000 100000"},
			change: func(o *Options) { o.Busy = true }, verdict: Fail,
			text: "throttle them all the time"},
		"governor": {files: map[string]string{"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
			verdict: Warn, text: "governor powersave"},
		"clock": {files: map[string]string{"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
			verdict: Warn, text: "clock source hpet"},
		"no devices for verbs": {change: func(o *Options) { o.Verbs = true }, verdict: Fail,
			text: "there are no RDMA devices"},
		"no files for verbs": {change: func(o *Options) { o.Verbs = true }, verdict: Fail,
			text: "infiniband cannot be read"},
		"no devices for doca": {change: func(o *Options) { o.DocaRDMA = true }, verdict: Fail,
			text: "there are no RDMA devices"},
		"no files for Comch of doca": {change: func(o *Options) { o.Doca = true }, verdict: Fail,
			text: "infiniband cannot be read"},
		"port down": {files: map[string]string{"sys/rdma": "yes"}, verdict: Warn,
			text: "mlx5_4 port 1 (Ethernet, 200 Gbit/s) is DOWN"},
		"port active": {files: map[string]string{"sys/rdma": "yes"}, verdict: OK,
			text: "mlx5_0 port 1 (Ethernet, 200 Gbit/s) is active"},
		"small MTU": {files: map[string]string{"sys/rdma": "yes"}, verdict: Warn,
			text: "p0 of mlx5_0 has MTU 1500"},
		"large MTU": {files: map[string]string{"sys/rdma": "yes"}, verdict: OK,
			text: "eth0 of rxe0 has MTU 9000"},
		"far from the device": {files: map[string]string{"sys/rdma": "yes"},
			change: func(o *Options) { o.CPUs = []int{2, 4} }, verdict: Warn,
			text: "cores 2 are not on node 1, where mlx5_0 is"},
		"dead too early": {change: func(o *Options) { o.DeadAfter = time.Second },
			verdict: Fail, text: "a single late message"},
		"IO times out too early": {change: func(o *Options) { o.IOTimeouts[0] = retry.Within(4 * time.Second) },
			verdict: Warn, text: "before the relay detects a dead target"},
		"IO never times out": {change: func(o *Options) { o.IOTimeouts[0] = retry.Forever() }, verdict: Warn,
			text: "blocks sessions for ever"},
	} {
		t.Run(name, func(t *testing.T) {
			m := machineWith(t, c.files)
			if c.change != nil {
				c.change(m.Options)
			}
			r := Examine(t.Context(), m.Options)
			expect(t, r.Findings, c.verdict, c.text)
			if r.Verdict.worse(c.verdict) != r.Verdict {
				t.Errorf("the report is %s", r.Verdict)
			}
		})
	}
}

func TestDeviceFilesMustBeThereAndOpen(t *testing.T) {
	m := machineWith(t, nil)
	m.Verbs = true
	directory := filepath.Join(m.Dev, "infiniband")
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, m.infinibandFiles(), Fail, "there is no uverbs device")
	expect(t, m.infinibandFiles(), Fail, "there is no rdma_cm")
	for _, name := range []string{"uverbs0", "rdma_cm", "umad0"} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, m.infinibandFiles(), OK, "rdma_cm and 1 uverbs devices can be opened")
	m.Verbs, m.DocaRDMA = false, true
	if err := os.Remove(filepath.Join(directory, "rdma_cm")); err != nil {
		t.Fatal(err)
	}
	expect(t, m.infinibandFiles(), OK, "1 uverbs devices can be opened")
}

func TestTheEmulationOfLibdocaNeedsNoCard(t *testing.T) {
	for _, c := range []struct {
		device  string // of the provider; the kernel knows mlx5_0
		verdict Verdict
	}{{"mlx5_0", Fail}, {"mlx5_17", OK}} {
		m := machineWith(t, map[string]string{"sys/rdma": "yes",
			"proc/self/limits": "Max locked memory         65536    65536   bytes"})
		m.DocaRDMA = true
		m.OpenRDMA = func() (rdma.Provider, error) {
			return opaqueRDMA{iwarp.New(iwarp.Options{}), memory.Device{RDMA: c.device}}, nil
		}
		files, memlock := m.infinibandFiles()[0], m.memlock()[0]
		if files.Verdict != c.verdict || (memlock.Verdict == Fail) != (c.verdict == Fail) {
			t.Errorf("%s: %+v, %+v", c.device, files, memlock)
		}
	}
}

func TestThePortsOfTheNetworkAreTried(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var hangingUp sync.WaitGroup
	defer hangingUp.Wait()
	defer listener.Close()
	hangingUp.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	})
	address := netip.MustParseAddrPort(listener.Addr().String())
	m := machineWith(t, nil)
	m.Targets = []Target{{Address: address}, {Address: address}}
	m.Listen, m.OwnListen = []string{address.String()}, []string{address.String()}
	if findings := m.targets(t.Context()); len(findings) != 1 {
		t.Errorf("two channels with one target have %d findings", len(findings))
	}
	expect(t, m.targets(t.Context()), Fail, "does not answer as a target")
	expect(t, m.ports(), Fail, "cannot listen on")
	expect(t, m.ports(), Warn, "is in use")
	_ = listener.Close()
	expect(t, m.targets(t.Context()), Fail, "cannot be reached")
	expect(t, m.ports(), OK, "is free")
	m.Listen, m.OwnListen = nil, []string{"192.0.2.1:80"}
	expect(t, m.ports(), Fail, "cannot listen on 192.0.2.1:80")
}
