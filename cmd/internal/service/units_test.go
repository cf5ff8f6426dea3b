// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

const deploy = "../../../deploy/"

// setting returns the value of the only line "NAME=VALUE" of a unit.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	values := settings(t, unit, name)
	if len(values) != 1 {
		t.Fatalf("%s has %d lines %s=", unit, len(values), name)
	}
	return values[0]
}

// settings returns the values of the lines "NAME=VALUE" of a unit, in order.
func settings(t *testing.T, unit, name string) (values []string) {
	t.Helper()
	for line := range strings.Lines(string(read(t, deploy+"systemd/"+unit))) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+"="); found {
			values = append(values, value)
		}
	}
	return values
}

func TestUnitsAllowTheDescriptorsOfTheDefaultLimits(t *testing.T) {
	const workers = 64
	relay, target := config.DefaultRelay(), config.DefaultTarget()
	for range 4 { // whose limits add up to that of all channels
		relay.Channels = append(relay.Channels, config.DefaultChannel())
	}
	for unit, needed := range map[string]int{
		"zc-relay.service":        relay.Descriptors(workers),
		"zc-relay-target.service": target.Descriptors(workers),
	} {
		limit, err := strconv.Atoi(setting(t, unit, "LimitNOFILE"))
		if err != nil || limit < config.DescriptorLimit(needed) {
			t.Errorf("%s: LimitNOFILE=%d, but the default limits allow %d descriptors (%v)", unit, limit,
				needed, err)
		}
	}
}

// fields returns the lines of a file as fields, without comments.
func fields(t *testing.T, path string) [][]string {
	t.Helper()
	var all [][]string
	for line := range strings.Lines(string(read(t, path))) {
		if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			all = append(all, f)
		}
	}
	return all
}

// clientUser runs clients of the emulation.
const clientUser = "zc-relay-client"

func TestClientsHaveAUserOfTheirOwnWhoReadsNothingOfTheDaemons(t *testing.T) {
	daemons := []string{setting(t, "zc-relay.service", "User"),
		setting(t, "zc-relay-target.service", "User")}
	var users []string
	for _, f := range fields(t, deploy+"systemd/zc-relay.sysusers") {
		if f[0] != "u" {
			t.Errorf("sysusers has %q: nobody may become a member of another group", f)
		}
		users = append(users, f[1])
	}
	if !slices.Contains(users, clientUser) || slices.Contains(daemons, clientUser) {
		t.Errorf("the users are %q, and daemons run as %q", users, daemons)
	}
	for _, file := range []string{"zc-relay", "zc-relay-target"} {
		protected := 0
		for _, f := range fields(t, deploy+"systemd/"+file+".tmpfiles") {
			mode, err := strconv.ParseUint(f[2], 8, 32)
			if err != nil || mode&0o027 != 0 || f[3] != "root" || !slices.Contains(daemons, f[4]) {
				t.Errorf("%s: %q is open to others than root and a daemon (%v)", file, f, err)
			}
			protected++
		}
		if protected < 2 { // the directory of the keys, and the configuration
			t.Errorf("%s: %d paths are protected", file, protected)
		}
	}
	c, err := config.LoadRelay(config.Sources{File: deploy + "config/zc-relay.yaml"})
	if err != nil || !slices.Equal(c.Channels[0].Access.Users, []string{clientUser}) ||
		c.Channels[0].Access.AnyUser {
		t.Errorf("the packaged configuration does not admit %s alone: %v", clientUser, err)
	}
}

func TestNobodyIsToldToRunClientsAsADaemon(t *testing.T) {
	var pages []string
	for _, pattern := range []string{
		"docs/*/*.md", "README.md", "deploy/*/*", "test/packages/*.sh",
	} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	told := 0
	for _, page := range pages {
		if info, err := os.Stat(page); err != nil || info.IsDir() {
			continue
		}
		for line := range strings.Lines(string(read(t, page))) {
			_, rest, found := strings.Cut(line, "runuser -u ")
			if !found || !strings.Contains(rest, "initiator") {
				continue
			}
			told++
			if user, _, _ := strings.Cut(rest, " "); user != clientUser {
				t.Errorf("%s: clients run as %q, who can read the keys of the daemon", page, user)
			}
		}
	}
	if told == 0 {
		t.Error("no page says how to run a client")
	}
}

var services = []string{"zc-relay.service", "zc-relay-target.service", "zc-relay-nbd@.service",
	"zc-relay-ublk@.service"}

// isGateway reports whether a unit runs a gateway, which has a volume and cannot reload.
func isGateway(unit string) bool { return strings.Contains(unit, "@") }

func TestUnitsRestartWhatMayHealAndNothingElse(t *testing.T) {
	for _, unit := range services {
		for name, want := range map[string]string{
			"StartLimitIntervalSec": "0", "Restart": "on-failure", "RestartSec": "1",
			"LimitCORE": "0", // a crash aborts
		} {
			if got := setting(t, unit, name); got != want {
				t.Errorf("%s: %s=%s, want %s", unit, name, got, want)
			}
		}
		steps, err := strconv.Atoi(setting(t, unit, "RestartSteps"))
		longest, err2 := strconv.Atoi(setting(t, unit, "RestartMaxDelaySec"))
		if err := errors.Join(err, err2); err != nil || steps < 2 || longest < 2 || longest > 10 {
			t.Errorf("%s: the pause rises to %d s in %d steps (%v)", unit, longest, steps, err)
		}
		codes := strings.Fields(setting(t, unit, "RestartPreventExitStatus"))
		if !slices.Contains(codes, strconv.Itoa(program.ExitUsage)) {
			t.Errorf("%s is restarted for ever with a bad configuration: only %q prevent that", unit,
				codes)
		}
		if !isGateway(unit) && len(codes) > 1 {
			t.Errorf("%s is not restarted after %q", unit, codes)
		}
	}
	if interval := setting(t, "zc-relay-nbd@.socket", "TriggerLimitIntervalSec"); interval == "0" {
		t.Error("a socket starts a gateway that cannot start without a pause")
	}
}

// confinement matches the settings of a unit that take rights from its processes.
var confinement = regexp.MustCompile(`^(Protect|Private|Restrict(Addr|Name|Real|SUID)|RemoveIPC=|` +
	`LockPersonality=|MemoryDeny|NoNew|SystemCall|UMask=|Capability|Ambient|Device)`)

func TestUnitsAreConfinedAlike(t *testing.T) {
	settingsOf := func(unit string) (all []string) {
		for line := range strings.Lines(string(read(t, deploy+"systemd/"+unit))) {
			if confinement.MatchString(line) {
				all = append(all, strings.TrimSpace(line))
			}
		}
		slices.Sort(all)
		return all
	}
	relay := settingsOf("zc-relay.service")
	if len(relay) < 20 {
		t.Fatalf("the relay's unit has only %q", relay)
	}
	for unit, differences := range map[string]struct{ missing, added []string }{
		"zc-relay-target.service": {},
		// Programs of others have the gateways' users.
		"zc-relay-nbd@.service": {missing: []string{"RemoveIPC=yes"}},
		"zc-relay-ublk@.service": {
			missing: []string{"RemoveIPC=yes", "CapabilityBoundingSet="},
			added: []string{"CapabilityBoundingSet=CAP_SYS_ADMIN", "DeviceAllow=/dev/ublk-control rw",
				"DeviceAllow=char-ublk-char rw", "DeviceAllow=block-blkext r"},
		},
	} {
		want := slices.DeleteFunc(slices.Clone(relay), func(s string) bool {
			return slices.Contains(differences.missing, s)
		})
		want = append(want, differences.added...)
		slices.Sort(want)
		if got := settingsOf(unit); !slices.Equal(got, want) {
			t.Errorf("%s is confined by %q, want %q", unit, got, want)
		}
	}
}

func TestUnitsNeedNoProgramOfAnotherPackage(t *testing.T) {
	own := regexp.MustCompile(`^/usr/bin/zc-relay(-target|-initiator)? `)
	for _, unit := range services {
		for _, name := range []string{"ExecStart", "ExecReload"} {
			for _, line := range settings(t, unit, name) {
				if !own.MatchString(line) {
					t.Errorf("%s: %s=%s", unit, name, line)
				}
			}
		}
		if isGateway(unit) {
			continue
		}
		if reload := setting(t, unit, "ExecReload"); !strings.HasSuffix(reload,
			" reload --pid $MAINPID") {
			t.Errorf("%s: ExecReload=%s", unit, reload)
		}
	}
}

// The commands that talk to a packaged daemon find it without --admin, and the daemon may create
// the socket there.
func TestPackagedDaemonsListenWhereTheirCommandsLook(t *testing.T) {
	for _, daemon := range []struct {
		unit, address string
		files         []string
		load          func(config.Sources) (*config.Operations, error)
	}{
		{"zc-relay.service", adminserver.DefaultRelayAdminAddress,
			[]string{"config/zc-relay.yaml", "examples/relay.yaml",
				"examples/relay-many-channels.yaml"},
			func(s config.Sources) (*config.Operations, error) {
				c, err := config.LoadRelay(s)
				return &c.Operations, err
			}},
		{"zc-relay-target.service", adminserver.DefaultTargetAdminAddress,
			[]string{"config/zc-relay-target.yaml", "examples/target.yaml"},
			func(s config.Sources) (*config.Operations, error) {
				c, err := config.LoadTarget(s)
				return &c.Operations, err
			}},
	} {
		directory := "unix:/run/" + setting(t, daemon.unit, "RuntimeDirectory")
		if path.Dir(daemon.address) != directory {
			t.Errorf("%s makes %s, but its commands look for %s", daemon.unit, directory,
				daemon.address)
		}
		for _, file := range daemon.files {
			operations, err := daemon.load(config.Sources{File: deploy + file})
			if err != nil {
				t.Fatal(err)
			}
			if operations.Admin != daemon.address {
				t.Errorf("%s: operations.admin is %q, but commands look for %s", file,
					operations.Admin, daemon.address)
			}
		}
	}
}

func TestUnitsGiveWhatDOCANeeds(t *testing.T) {
	for _, unit := range services {
		if families := strings.Fields(setting(t, unit, "RestrictAddressFamilies")); !slices.Contains(
			families, "AF_NETLINK") {
			t.Errorf("%s: libibverbs finds no device without AF_NETLINK, only with %q", unit, families)
		}
		if devices := settings(t, unit, "DeviceAllow"); !slices.Contains(devices,
			"char-infiniband_verbs rw") {
			t.Errorf("%s: devices %q, without uverbs", unit, devices)
		}
		if !strings.Contains(string(read(t, deploy+"systemd/"+unit)), "examples/devx.conf") {
			t.Errorf("%s does not say what DEVX needs", unit)
		}
	}
	for _, name := range []string{"CapabilityBoundingSet", "AmbientCapabilities"} {
		if got := setting(t, "devx.conf", name); got != "CAP_NET_RAW CAP_SYS_RAWIO" {
			t.Errorf("devx.conf: %s=%s", name, got)
		}
	}
}
