// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write creates a file and returns its path.
func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func relayFlags(t testing.TB, arguments ...string) *pflag.FlagSet {
	t.Helper()
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addRelayFlags(f)
	if err := f.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAVariableThatLacksAnUnderscoreIsNotIgnored(t *testing.T) {
	for variable, meant := range map[string]string{
		"ZC_RELAY_LOG_LEVEL=debug":           "ZC_RELAY__LOG__LEVEL",
		"ZC_RELAY_LOG__LEVEL=debug":          "ZC_RELAY__LOG__LEVEL",
		"ZC_RELAY_CHANNELS_0_VOLUME=ram":     "ZC_RELAY__CHANNELS__0__VOLUME",
		"ZC_RELAY_PORT_9470_TCP_PROTO=tcp":   "", // of Kubernetes
		"ZC_RELAY_SERVICE_PORT=9470":         "",
		"ZC_RELAY_E2E_ADDRESS=127.0.0.1":     "",
		"ZC_RELAYED__LOG__LEVEL=somebody's=": "",
	} {
		_, err := LoadRelay(Sources{Environ: []string{variable}, Partial: true})
		switch {
		case meant == "" && err != nil:
			t.Errorf("%s: %v", variable, err)
		case meant != "" && (err == nil || !strings.HasSuffix(err.Error(),
			"unknown variable: did you mean "+meant+"?")):
			t.Errorf("%s: error %v", variable, err)
		}
	}
}

func TestATargetMayBeGivenByName(t *testing.T) {
	c := mustLoadRelay(t, Sources{Flags: relayFlags(t, "--storage-server", "localhost:7470",
		"--volume", "disk")})
	got, err := c.Channels[0].LookUp(lookUp(t))
	if err != nil || len(got) != 1 || !got[0].Addr().IsLoopback() || got[0].Port() != 7470 {
		t.Errorf("the target is %v, error %v", got, err)
	}
}

func hostAt(address string) Host {
	a := netip.MustParseAddrPort(address)
	return Host{Address: a.Addr(), Port: a.Port()}
}

func lookUp(t *testing.T) func(Host) ([]netip.AddrPort, error) {
	return func(h Host) ([]netip.AddrPort, error) { return LookUp(t.Context(), h) }
}

// A name that DNS does not know yet is no mistake in the configuration.
func TestReadingAConfigurationLooksNothingUp(t *testing.T) {
	for text, valid := range map[string]bool{
		"storage.invalid:7470": true, "storage.invalid.:7470": true, "a_b.c-d:1": true,
		"[fd00::6]:7471": true, "10.0.0.5:7470": true,
		strings.Repeat("a.", 126) + "a:1": true, strings.Repeat("a.", 127) + "a:1": false,
		strings.Repeat("a", 64) + ":1": false,
		"storage..invalid:7470":        false, "-storage:7470": false, "sto rage:7470": false,
		"10.0.0.300:7470": false, "10:7470": false, "storage": false, "storage:0": false,
	} {
		c, err := LoadRelay(Sources{Environ: []string{"ZC_RELAY__CHANNELS__0__TARGET=" + text,
			"ZC_RELAY__CHANNELS__0__VOLUME=v"}})
		if (err == nil) != valid || err == nil && c.Channels[0].Target.String() != text {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTargetsAreAllAddressesOfTheirHosts(t *testing.T) {
	addresses := func(h Host) ([]netip.AddrPort, error) {
		var all []netip.AddrPort
		for i := range h.Port {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1))
		}
		return all, nil
	}
	for _, c := range []struct {
		channel Channel
		want    int // 0 means an error
	}{
		{Channel{Target: Host{Name: "a", Port: 3}}, 1},
		{Channel{Targets: []Host{{Name: "a", Port: 3}, {Name: "b", Port: 4}}}, 4},
		{Channel{Targets: []Host{{Name: "a", Port: 17}}}, 0},
	} {
		got, err := c.channel.LookUp(addresses)
		if len(got) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%v has the addresses %v, error %v", c.channel.Hosts(), got, err)
		}
	}
}

func TestAChannelHasOneTargetOrAList(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.5:7470"), netip.MustParseAddrPort("[fd00::6]:7471")
	file := write(t, `channels: [{targets: ["10.0.0.5:7470", "[fd00::6]:7471"], volume: disk}]`)
	for name, sources := range map[string]Sources{
		"file": {File: file},
		"flag": {Flags: relayFlags(t, "--storage-servers", "10.0.0.5:7470,[fd00::6]:7471",
			"--volume", "disk")},
	} {
		channel := mustLoadRelay(t, sources).Channels[0]
		got, err := channel.LookUp(lookUp(t))
		if err != nil || !slices.Equal(got, []netip.AddrPort{a, b}) {
			t.Errorf("%s: the targets are %v, error %v", name, got, err)
		}
	}
	named, err := mustLoadRelay(t, Sources{Flags: relayFlags(t, "--storage-servers",
		"localhost:7470,127.0.0.2:7470", "--volume", "disk")}).Channels[0].LookUp(lookUp(t))
	if err != nil || len(named) < 2 || !named[0].Addr().Is4() {
		t.Errorf("the targets by name are %v, error %v", named, err)
	}
	for _, wrong := range []string{
		`channels: [{target: "10.0.0.5:7470", targets: ["10.0.0.6:7470"], volume: disk}]`,
		`channels: [{targets: ["10.0.0.5:7470", "10.0.0.5:7470"], volume: disk}]`,
		`channels: [{targets: [":7470"], volume: disk}]`,
		`channels: [{targets: [], volume: disk}]`,
		`channels: [{targets: ["10.0.0.5:7470"], target_order: last, volume: disk}]`,
	} {
		if _, err := LoadRelay(Sources{File: write(t, wrong)}); err == nil {
			t.Errorf("accepted: %s", wrong)
		}
	}
}

func mustLoadRelay(t testing.TB, s Sources) *Relay {
	t.Helper()
	c, err := LoadRelay(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEachSourceOverridesTheOneBefore(t *testing.T) {
	file := write(t, `
log: {level: warn, format: json, sampling: 7}
channels: [{target: "10.0.0.5:7470", volume: disk, io_timeout: 1m}]
`)
	environ := []string{"ZC_RELAY__LOG__FORMAT=console", "ZC_RELAY__LOG__SAMPLING=8",
		"ZC_RELAY__CHANNELS__0__VOLUME=ram", "ZC_RELAY_SERVICE_HOST=10.1.1.1"}
	c := mustLoadRelay(t, Sources{File: file, Environ: environ,
		Flags: relayFlags(t, "--log-sampling", "9", "--io-timeout", "infinite")})
	if want := (Log{Level: "warn", Format: "console", Sampling: 9}); c.Log != want {
		t.Errorf("log is %+v, want %+v", c.Log, want)
	}
	want := DefaultChannel()
	want.Target, want.Volume, want.IOTimeout = hostAt("10.0.0.5:7470"), "ram",
		retry.Forever()
	if diff := cmp.Diff([]Channel{want}, c.Channels, compare...); diff != "" {
		t.Error(diff)
	}
}

var compare = []cmp.Option{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b retry.Count) bool { return a == b }),
	cmp.Comparer(func(a, b retry.Bound) bool { return a == b }),
	cmpopts.IgnoreUnexported(Channel{}), // where it comes from
}

func TestFlagsAloneDescribeAChannel(t *testing.T) {
	c := mustLoadRelay(t, Sources{Flags: relayFlags(t,
		"-d", "03:00.1", "-r", "b1:00.1", "--command-channel-name", "storage",
		"--storage-server", "[fd00::5]:7470", "--volume", "disk",
		"--cpu", "1", "--cpu", "3-4", "--allow-any-user", "--max-clients", "3",
		"--reconnect-attempts", "0", "--session-wait", "0s", "-l", "60")})
	if !slices.Equal(c.Workers.CPUs, []int{1, 3, 4}) || c.Log.Level != "60" {
		t.Errorf("workers %+v, log %+v", c.Workers, c.Log)
	}
	want := DefaultChannel()
	want.Device, want.Representor, want.Name = "03:00.1", "b1:00.1", "storage"
	want.Target, want.Volume = hostAt("[fd00::5]:7470"), "disk"
	want.Access.AnyUser, want.Limits.Sessions = true, 3
	want.Reconnect.Attempts, want.Reconnect.SessionWait = retry.Times(0), retry.Within(0)
	if diff := cmp.Diff([]Channel{want}, c.Channels, compare...); diff != "" {
		t.Error(diff)
	}
}

func TestAFlagDoesNotGuessWhichOfManyChannelsIsMeant(t *testing.T) {
	file := write(t, `
channels:
  - {name: a, target: "10.0.0.5:7470", volume: disk}
  - {name: b, target: "10.0.0.5:7470", volume: disk}
`)
	_, err := LoadRelay(Sources{File: file, Flags: relayFlags(t, "--volume", "ram")})
	if err == nil || !strings.Contains(err.Error(),
		`--volume: "ram": describes the only one of the channels, but there are 2`) {
		t.Errorf("load: %v", err)
	}
}

func TestZeroUnsetAndInfiniteAreThreeThings(t *testing.T) {
	const file = `channels: [{target: "10.0.0.5:7470", volume: disk, reconnect: {%s}}]`
	for text, want := range map[string]Reconnect{
		"": {Attempts: retry.AnyNumber(),
			SessionWait: retry.Within(2 * time.Second)},
		"attempts: 0, session_wait: 0s": {Attempts: retry.Times(0), SessionWait: retry.Within(0)},
		"attempts: 8, session_wait: 1m": {Attempts: retry.Times(8),
			SessionWait: retry.Within(time.Minute)},
		"attempts: infinite, session_wait: infinite": {Attempts: retry.AnyNumber(),
			SessionWait: retry.Forever()},
	} {
		got := mustLoadRelay(t,
			Sources{File: write(t, fmt.Sprintf(file, text))}).Channels[0].Reconnect
		if got.Attempts != want.Attempts || got.SessionWait != want.SessionWait {
			t.Errorf("%q: attempts %v, session wait %v", text, got.Attempts, got.SessionWait)
		}
	}
}

func TestVariablesAreAsStrictAsTheFile(t *testing.T) {
	for variable, want := range map[string]string{
		"ZC_RELAY__LOG__LEVELS=debug":             `ZC_RELAY__LOG__LEVELS: log.levels: unknown key: did you mean "level"?`,
		"ZC_RELAY__LOG=debug":                     `ZC_RELAY__LOG: log: is not a value: its keys are level, format, sampling`,
		"ZC_RELAY__LOG__LEVEL=loud":               `ZC_RELAY__LOG__LEVEL: log.level: "loud": must be one of`,
		"ZC_RELAY__CHANNELS__1__VOLUME=other":     `channels.0: is missing, but element 1 is there: number them from 0`,
		"ZC_RELAY__CHANNELS__FIRST__VOLUME=other": `unknown key: this is a list`,
		"ZC_RELAY__CHANNELS__9999__VOLUME=other":  `unknown key: this is a list`,
		"ZC_RELAY__CHANNELS__0__VOLUME__X=1":      `"volume" is a value and has no keys`,
	} {
		_, err := LoadRelay(Sources{Environ: []string{variable}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

func TestTheFileIsNotBlamedForAVariable(t *testing.T) {
	file := write(t, `channels:
  - target: 10.0.0.5:7470
    volume: disk
    reconnect: {longest_pause: 3s}
`)
	for variable, want := range map[string]string{
		"ZC_RELAY__CHANNELS__0__RECONNECT__FIRST_PAUSE": `channels.0.reconnect.longest_pause: "3s": ` +
			"must not be less than first_pause, which is 1h0m0s; " +
			"ZC_RELAY__CHANNELS__0__RECONNECT__FIRST_PAUSE is set, too",
		"ZC_RELAY__CHANNELS__1__NAME": "(flag --volume); ZC_RELAY__CHANNELS__1__NAME is set, too",
		"ZC_RELAY__CHANNELS__2__NAME": "ZC_RELAY__CHANNELS__2__NAME: channels.1: is missing, but",
		"ZC_RELAY__TLS__CERTIFICATE":  "; ZC_RELAY__TLS__CERTIFICATE is set, too",
	} {
		_, err := LoadRelay(Sources{File: file, Environ: []string{variable + "=1h"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", variable, err)
		}
	}
	_, err := LoadRelay(Sources{File: write(t, "channels:\n  - {target: a:1, name: x}\n")})
	if err == nil || strings.Contains(err.Error(), "is set, too") {
		t.Errorf("without variables: %v", err)
	}
}

func TestYAMLMergesSpareRepetition(t *testing.T) {
	c := mustLoadRelay(t, Sources{File: write(t, `
channels:
  - &first
    name: a
    target: 10.0.0.5:7470
    volume: one
    limits: {sessions: 5}
    access: {users: [alice, 1000]}
  - <<: *first
    name: b
    volume: two
`)})
	second := c.Channels[1]
	if second.Name != "b" || second.Volume != "two" || second.Limits.Sessions != 5 ||
		!slices.Equal(second.Access.Users, []string{"alice", "1000"}) {
		t.Errorf("the second channel is %+v", second)
	}
}

func TestVolumesOfFlagsReplaceThoseOfTheFile(t *testing.T) {
	file := write(t, `
volumes:
  - {name: a, backend: "memory:1MiB"}
  - {name: b, backend: "memory:1MiB"}
`)
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addTargetFlags(f)
	if err := f.Parse([]string{"--volume", "c=memory:2MiB", "--volume", "d=memory:3MiB",
		"--block-size", "512"}); err != nil {
		t.Fatal(err)
	}
	c, err := LoadTarget(Sources{File: file, Flags: f})
	if err != nil {
		t.Fatal(err)
	}
	want := []Volume{{Name: "c", Backend: "memory:2MiB", BlockSize: 512},
		{Name: "d", Backend: "memory:3MiB", BlockSize: 512}}
	if !slices.EqualFunc(c.Volumes, want, func(a, b Volume) bool { return a.Equal(&b) }) {
		t.Errorf("volumes are %+v", c.Volumes)
	}
}

func TestADumpReadsBackAsTheSame(t *testing.T) {
	seedtest.Check(t, func(r *rapid.T) {
		c := DefaultRelay()
		c.Log = Log{Level: rapid.SampledFrom([]string{"debug", "info", "70"}).Draw(r, "level"),
			Format: "json", Sampling: rapid.IntRange(0, 1<<20).Draw(r, "sampling")}
		c.Operations.Listen = rapid.SampledFrom([]string{"", "[::1]:9470", ":0"}).Draw(r, "listen")
		c.Workers.CPUs = rapid.SampledFrom([][]int{nil, {0}, {3, 1, 2}}).Draw(r, "cpus")
		c.RDMA.Provider = "verbs"
		c.RDMA.GIDIndex = rapid.IntRange(AutoGID, 20).Draw(r, "gid_index")
		c.Comch.Directory = rapid.StringMatching(`(/[a-z "':#{}&*!\\-]{1,8}){0,3}`).Draw(r,
			"directory")
		c.Shutdown.DrainTimeout = rapid.SampledFrom([]retry.Bound{retry.Within(0),
			retry.Within(90 * time.Second), retry.Forever()}).Draw(r, "drain_timeout")
		for i := range rapid.IntRange(1, 5).Draw(r, "channels") {
			channel := DefaultChannel()
			channel.Name = fmt.Sprintf("%d%s", i,
				rapid.StringMatching(`[a-z0-9:. "'#{}&*!-]{0,10}`).Draw(r, "name"))
			channel.Target, channel.Volume = hostAt("[fd00::1]:7470"),
				rapid.SampledFrom([]string{"null", "yes", "1e3", "~", "a: b"}).Draw(r, "volume")
			channel.IOTimeout = rapid.SampledFrom([]retry.Bound{retry.Within(time.Millisecond),
				retry.Forever()}).Draw(r, "io_timeout")
			channel.Limits.Export = uint64(size.KiB) * rapid.Uint64Range(4, 1<<30).Draw(r, "export")
			channel.Access.Users = rapid.SampledFrom([][]string{nil, {"alice"},
				{"1000", "_ceph"}}).Draw(r, "users")
			channel.Reconnect.Attempts = rapid.SampledFrom([]retry.Count{retry.AnyNumber(),
				retry.Times(0), retry.Times(8)}).Draw(r, "attempts")
			channel.Reconnect.GiveUpAfter = rapid.SampledFrom([]retry.Bound{retry.Forever(),
				retry.Within(0), retry.Within(time.Hour)}).Draw(r, "give_up_after")
			c.Channels = append(c.Channels, channel)
		}
		var first, second bytes.Buffer
		if err := c.Dump(&first); err != nil {
			r.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "dump.yaml")
		if err := os.WriteFile(path, first.Bytes(), 0o600); err != nil {
			r.Fatal(err)
		}
		again, err := LoadRelay(Sources{File: path})
		if err != nil {
			r.Fatalf("%v\n%s", err, first.String())
		}
		if diff := cmp.Diff(c, again, compare...); diff != "" {
			r.Errorf("the dump reads back with differences:\n%s", diff)
		}
		if err := again.Dump(&second); err != nil || first.String() != second.String() {
			r.Errorf("the second dump differs (%v)", err)
		}
	})
}

func TestChangesAreToldByWhatTheyTake(t *testing.T) {
	former := mustLoadRelay(t, Sources{File: write(t, `
channels:
  - {name: a, target: "10.0.0.5:7470", volume: one}
  - {name: b, target: "10.0.0.5:7470", volume: two}
`)})
	now := mustLoadRelay(t, Sources{File: write(t, `
log: {level: debug}
rdma: {crc: true}
channels:
  - {name: c, target: "10.0.0.5:7470", volume: three}
  - {name: a, target: "10.0.0.5:7470", volume: one, limits: {depth: 8}, cpus: "1"}
`)})
	var got []string
	for _, change := range RelayChanges(former, now) {
		got = append(got, fmt.Sprintf("%v (%v)", change, change.Reload))
	}
	want := []string{
		`channels[03:00.0/b1:00.0/a].cpus: "" is now "1" (restart)`,
		`channels[03:00.0/b1:00.0/a].limits.depth: "4096" is now "8" (new sessions)`,
		`channels[03:00.0/b1:00.0/b] removed (at once)`,
		`channels[03:00.0/b1:00.0/c] added (at once)`,
		`log.level: "info" is now "debug" (at once)`,
		`rdma.crc: "false" is now "true" (restart)`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if same := RelayChanges(now, now); len(same) != 0 {
		t.Errorf("a configuration differs from itself: %v", same)
	}
}

func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	if _, err := LoadRelay(Sources{File: write(t, strings.Repeat("# nothing\n",
		maxFileSize/10+1))}); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("load: %v", err)
	}
	if _, err := LoadRelay(Sources{File: "/nowhere/relay.yaml"}); err == nil ||
		!strings.Contains(err.Error(), "/nowhere/relay.yaml") {
		t.Errorf("load: %v", err)
	}
}

// FuzzConfiguration looks for text that crashes the reader, or that is accepted but does not
// survive a dump.
func FuzzConfiguration(f *testing.F) {
	f.Add([]byte("channels: [{target: \"10.0.0.5:7470\", volume: disk}]"))
	f.Add([]byte("a: &a [*a, *a]\nchannels: *a"))
	f.Add([]byte("channels: [&c {target: \"10.0.0.5:7470\", volume: disk}, {<<: *c, name: b}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadRelay(Sources{File: path})
		if err != nil {
			return
		}
		var dumped bytes.Buffer
		if err := c.Dump(&dumped); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, dumped.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := LoadRelay(Sources{File: path})
		if err != nil {
			t.Fatalf("the dump of %q is refused: %v", text, err)
		}
		if diff := cmp.Diff(c, again, compare...); diff != "" {
			t.Error(diff)
		}
	})
}
