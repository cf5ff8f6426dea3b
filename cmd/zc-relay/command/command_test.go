// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/cmd/internal/admincommands"
	"github.com/zc-relay/zc-relay/cmd/internal/doctor"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/internal/schematest"
)

// execute runs a command line in this process.
func execute(t *testing.T, arguments ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	code = program.Run(t.Context(), root, arguments)
	return code, out.String(), errs.String()
}

// checkDocument fails the test unless a JSON document is valid under a schema in docs/.
func checkDocument(t *testing.T, schema, text string) {
	t.Helper()
	var document any
	decode(t, text, &document)
	s := schematest.Read(t, "../../../docs/schemas/"+schema+".schema.json")
	if err := s.Check(document); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
}

func TestDevicesAreListedAsTextAndJSON(t *testing.T) {
	sys, directory := sysfstest.New(t), t.TempDir()
	sysfstest.Write(t, directory, "devices",
		"dpu 03:00.0 rdma=mlx5_0 representors=b1:00.0\nsf 03:00.0 rdma=mlx5_4\n")
	code, text, _ := execute(t, "devices", "--path.sysfs", sys, "--emulated-dir", directory)
	for _, want := range []string{
		"mlx5_0", "0000:03:00.0 mlx5_core.sf.4", "p0 (up, MTU 1500)", "200 Gbit/s", "RoCE v2",
		"0000:0000:0000:0000:0000:ffff:c000:0205",
		"DOWN, Disabled", "no GIDs", "comch provider emulated", "no services are offered",
		"03:00.0  dpu   mlx5_0       pf", "03:00.0  none  mlx5_4       sf",
		"03:00.0 alone means mlx5_0: another one has the same address, and is named by RDMA device",
	} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("code %d, the list lacks %q:\n%s", code, want, text)
		}
	}
	var list deviceList
	_, text, _ = execute(t, "devices", "--path.sysfs", sys, "--emulated-dir", directory, "-o",
		"json", "eth0")
	decode(t, text, &list)
	checkDocument(t, "devices", text)
	if list.Schema != devicesSchema || len(list.RDMA) != 1 || list.RDMA[0].Name != "rxe0" ||
		list.Comch.Services == nil {
		t.Errorf("the document is %+v", list)
	}
	if code, _, stderr := execute(t, "devices", "--path.sysfs", sys,
		"nothing"); code != program.ExitUsage || !strings.Contains(stderr,
		`"nothing" is not an RDMA device`) {
		t.Errorf("an unknown name: %d %q", code, stderr)
	}
}

func TestDevicesAreThoseOfTheConfigurationUnlessFlagsSayOtherwise(t *testing.T) {
	sys, directory := sysfstest.New(t), t.TempDir()
	sysfstest.Write(t, directory, "devices", "dpu 03:00.0 representors=b1:00.0\n")
	file := filepath.Join(directory, "relay.yaml")
	if err := os.WriteFile(file, []byte("operations: {admin: \"unix:/no/such/socket\"}\n"+
		"comch: {directory: "+directory+"}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"devices":                               "03:00.0",
		"devices --comch-provider doca":         "comch provider doca",
		"devices --emulated-dir " + t.TempDir(): "no services are offered",
		"status":                                "/no/such/socket",
		"drain":                                 "/no/such/socket",
	} {
		words := append(strings.Fields(line), "--config", file)
		if strings.HasPrefix(line, "devices") {
			words = append(words, "--path.sysfs", sys)
		}
		code, stdout, stderr := execute(t, words...)
		if (code == 0) != strings.HasPrefix(line, "devices") ||
			!strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d, %q is missing in\n%s%s", line, code, want, stdout, stderr)
		}
	}
	if code, _, stderr := execute(t, "devices", "--config", "/no/such/file"); code !=
		program.ExitUsage || !strings.Contains(stderr, "no such file") {
		t.Errorf("without the file: exit code %d: %s", code, stderr)
	}
}

func TestDevicesOfAnAbsentProviderSayWhy(t *testing.T) {
	code, text, _ := execute(t, "devices", "--path.sysfs", t.TempDir(), "--comch-provider", "doca")
	if code != 0 || !strings.Contains(text, "no RDMA devices") || !strings.Contains(text,
		"comch provider doca\n  ") {
		t.Errorf("code %d:\n%s", code, text)
	}
}

func TestAMistakeInTheFileOfEmulatedDevicesIsAnError(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "devices"), []byte("pigeon"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, text, stderr := execute(t, "devices", "--path.sysfs", t.TempDir(), "--emulated-dir",
		directory)
	if code != program.ExitFailure || !strings.Contains(text, "line 1") ||
		!strings.Contains(stderr, "line 1") {
		t.Errorf("code %d: %q\n%s", code, stderr, text)
	}
}

// TestDoctorFindsThatNothingIsConfigured has no file where the unit has its own, as far as this
// machine has no daemon.
func TestDoctorFindsThatNothingIsConfigured(t *testing.T) {
	if _, err := os.Stat("/etc/zc-relay/zc-relay.yaml"); err == nil {
		t.Skip("this machine has a configured daemon")
	}
	code, text, _ := execute(t, "doctor", "-o", "json")
	var r doctor.Report
	decode(t, text, &r)
	if first := r.Findings[0]; code != program.ExitFailure || first.Check != "configuration" ||
		first.Verdict != doctor.Fail || !strings.Contains(first.Detail, "channels: is empty") {
		t.Errorf("nothing: %d %+v", code, first)
	}
	_, text, _ = execute(t, "doctor", "-o", "json", "--storage-server", "127.0.0.1:1")
	decode(t, text, &r)
	if first := r.Findings[0]; first.Verdict != doctor.Warn || !strings.Contains(first.Detail,
		"volume") {
		t.Errorf("a part: %+v", first)
	}
}

func TestDoctorEndsWithTheWorstOfItsFindings(t *testing.T) {
	proc, sys := t.TempDir(), t.TempDir()
	sysfstest.Write(t, proc, "sys/kernel/osrelease", "6.1.0")
	arguments := []string{"doctor", "--config=", "--path.procfs", proc, "--path.sysfs", sys}
	code, text, _ := execute(t, arguments...)
	if code != 0 || !strings.Contains(text, "Linux 6.1.0") || !strings.Contains(text, "→ ") ||
		!strings.Contains(text, "0 failures") {
		t.Errorf("warnings: %d\n%s", code, text)
	}
	code, text, stderr := execute(t, append(arguments, "--rdma-provider", "verbs", "-o", "json")...)
	var r doctor.Report
	decode(t, text, &r)
	checkDocument(t, "doctor", text)
	failed := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
		return f.Check == "rdma-devices" && f.Verdict == doctor.Fail && f.Remedy != ""
	})
	if code != program.ExitFailure || r.Schema != doctor.Schema || r.Verdict != doctor.Fail ||
		!failed || !strings.Contains(stderr, "checks failed") {
		t.Errorf("failures: %d %q\n%s", code, stderr, text)
	}
	for _, wrong := range [][]string{{"--cpu", "x"}, {"--poll", "x"}, {"--rdma-provider", "x"},
		{"--storage-server", "x"}} {
		if code, _, _ := execute(t, append(arguments, wrong...)...); code != program.ExitUsage {
			t.Errorf("%v ends with %d", wrong, code)
		}
	}
}

func TestDoctorChecksWhatRunWouldUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file := filepath.Join(t.TempDir(), "zc-relay.yaml")
	const format = `
operations: {listen: "%[1]s"}
workers: {poll: busy, count: 200}
tls: {certificate: /no/such/cert, key: /no/such/key, ca: /no/such/ca}
control: {keep_alive_interval: 2s, keep_alive_dead_after: 3s}
channels:
  - {name: one, target: "%[1]s", volume: a, device: "03:00.0", representor: "b1:00.0", isolation: staged}
  - {name: two, target: "%[1]s", volume: b, rdma_address: 192.0.2.1, access: {users: [nobody2]}}
`
	if err := os.WriteFile(file, fmt.Appendf(nil, format, listener.Addr()), 0o600); err != nil {
		t.Fatal(err)
	}
	code, text, _ := execute(t, "doctor", "--config", file, "-o", "json")
	var r doctor.Report
	decode(t, text, &r)
	checkDocument(t, "doctor", text)
	for _, want := range []doctor.Finding{
		{Check: "configuration", Verdict: doctor.OK, Detail: file},
		{Check: "cores", Verdict: doctor.Fail, Detail: "200 unpinned workers"},
		{Check: "rdma-provider", Verdict: doctor.OK, Detail: "auto at 127.0.0.1"},
		{Check: "rdma-provider", Verdict: doctor.Fail, Detail: "auto at 192.0.2.1"},
		{Check: "comch-provider", Verdict: doctor.OK, Detail: "device 03:00.0"},
		{Check: "dma-provider", Verdict: doctor.OK, Detail: "device 03:00.0 copies"},
		{Check: "users", Verdict: doctor.Fail, Detail: "nobody2"},
		{Check: "tls", Verdict: doctor.Fail, Detail: "/no/such/"},
		{Check: "target", Verdict: doctor.Warn,
			Detail: "channel 03:00.0/b1:00.0/two: " + listener.Addr().String()},
		{Check: "ports", Verdict: doctor.Warn, Detail: listener.Addr().String() + " is in use"},
		{Check: "time-outs", Verdict: doctor.Fail, Detail: "dead after 3s"},
	} {
		if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == want.Check && f.Verdict == want.Verdict &&
				strings.Contains(f.Detail, want.Detail)
		}) {
			t.Errorf("no finding is like %+v: %+v", want, r.Findings)
		}
	}
	if code != program.ExitFailure {
		t.Errorf("exit code %d", code)
	}
	if code, _, stderr := execute(t, "doctor", "--config", file, "--comch-provider",
		"pigeon"); code != program.ExitUsage || !strings.Contains(stderr, "pigeon") {
		t.Errorf("a wrong flag: %d %q", code, stderr)
	}
	if code, _, stderr := execute(t, "doctor", "--config", "/no/such/file"); code !=
		program.ExitUsage || !strings.Contains(stderr, "/no/such/file") {
		t.Errorf("no file: %d %q", code, stderr)
	}
	code, text, _ = execute(t, "doctor", "--config=", "--comch-provider", "doca",
		"--storage-server", listener.Addr().String())
	if code != program.ExitFailure || !strings.Contains(text, "doca-sdk-comch") ||
		!strings.Contains(text, "flags and variables") {
		t.Errorf("without DOCA: %d\n%s", code, text)
	}
}

func TestProvidersTellCapabilitiesOrWhyTheyAreAbsent(t *testing.T) {
	_, text, _ := execute(t, "providers", "-o", "json")
	var document struct {
		Schema    string
		Providers []struct {
			Seam, Name, State, Detail string
			Capabilities              map[string]any
		}
	}
	decode(t, text, &document)
	checkDocument(t, "providers", text)
	if document.Schema != "zc-relay.providers/1" || len(document.Providers) < 4 {
		t.Errorf("the document is %+v", document)
	}
	for _, p := range document.Providers {
		if p.State == "absent" && (p.Detail == "" || len(p.Capabilities) > 0) {
			t.Errorf("%s %s is absent: %+v", p.Seam, p.Name, p)
		}
		if p.Name == "emulated" && p.Capabilities["max_clients"] == nil || p.Name == "iwarp" &&
			p.Capabilities["transport"] != "iwarp" {
			t.Errorf("%s %s can do %v", p.Seam, p.Name, p.Capabilities)
		}
	}
}

func TestAConfigurationIsCheckedAsTextAndJSON(t *testing.T) {
	directory := t.TempDir()
	web := filepath.Join(directory, "web.yaml")
	if err := os.WriteFile(web, []byte("basic_auth_users: {a: b, c: d}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content  string
		code     int
		problems int
	}{
		"good":   {"channels: [{target: 127.0.0.1:1, volume: v}]", 0, 0},
		"wrong":  {"channels: [{target: nowhere, volum: v}]\nlog: {level: loud}", 1, 3},
		"broken": {"channels: [", 1, 1},
		"with a web configuration that is elsewhere": {"channels: [{target: 127.0.0.1:1, volume: v}]\n" +
			"operations: {listen: 127.0.0.1:1, web_config_file: /no/such/web.yaml}", 0, 0},
		"with a wrong web configuration": {"channels: [{target: 127.0.0.1:1, volume: v}]\n" +
			"operations: {listen: 127.0.0.1:1, web_config_file: " + web + "}", 1, 2},
		"with administration for everybody": {"channels: [{target: 127.0.0.1:1, volume: v}]\n" +
			"operations: {admin: 127.0.0.1:1}", 1, 1},
	} {
		file := filepath.Join(directory, name)
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		code, text, _ := execute(t, "config", "check", file, "-o", "json")
		checkDocument(t, "config-check", text)
		var r struct {
			File     string
			Valid    bool
			Channels int
			Problems []struct{ Source, Key, Text string }
		}
		decode(t, text, &r)
		if code != c.code || r.File != file || r.Valid != (c.code == 0) ||
			len(r.Problems) < c.problems || r.Valid && r.Channels != 1 {
			t.Errorf("%s: exit code %d: %s", name, code, text)
		}
	}
	code, text, _ := execute(t, "config", "check", "/no/such/file", "-o", "json")
	checkDocument(t, "config-check", text)
	if code == 0 || !strings.Contains(text, "no such file") {
		t.Errorf("no file: %d %s", code, text)
	}
}

func TestTheFileOfAConfigurationIsAnOperandOrAFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.yaml")
	content := []byte("channels: [{target: 127.0.0.1:1, volume: v}]")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"check", "dump"} {
		_, want, _ := execute(t, "config", command, file)
		for _, flag := range []string{"--config", "-c"} {
			if code, got, stderr := execute(t, "config", command, flag, file); code != 0 ||
				got != want || got == "" {
				t.Errorf("%s %s: exit code %d: %s%s", command, flag, code, got, stderr)
			}
		}
		code, _, stderr := execute(t, "config", command, file, "--config", file)
		if code != program.ExitUsage || !strings.Contains(stderr, "give only one of them") {
			t.Errorf("%s with both: exit code %d: %s", command, code, stderr)
		}
	}
	if code, _, stderr := execute(t, "config", "check"); code != program.ExitUsage ||
		!strings.Contains(stderr, "FILE is missing") {
		t.Errorf("no file: exit code %d: %s", code, stderr)
	}
}

func TestADumpInEitherFormatIsTheSameConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "relay.json")
	flags := []string{"config", "dump", "--storage-server", "10.0.0.5:7470", "--volume", "1e3",
		"--io-timeout", "7s"}
	_, text, _ := execute(t, flags...)
	_, document, _ := execute(t, append(flags, "-o", "json")...)
	var c struct {
		Channels []struct{ Volume string }
	}
	decode(t, document, &c)
	if len(c.Channels) != 1 || c.Channels[0].Volume != "1e3" {
		t.Errorf("as JSON it is %s", document)
	}
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, again, stderr := execute(t, "config", "dump", file); code != 0 || again != text {
		t.Errorf("from JSON the dump is %s%s, want %s", again, stderr, text)
	}
}

func TestWithoutADaemonAdministrationReportsTheFailure(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "admin.sock")
	file := filepath.Join(t.TempDir(), "trace")
	for _, command := range []string{"drain", "drain --resume", "reload", "log-level debug",
		"sessions end 1", "status", "sessions list", "trace " + file} {
		code, text, _ := execute(t, append(strings.Fields(command), "--admin", address, "-o",
			"json")...)
		checkDocument(t, "administration", text)
		var r admincommands.Outcome
		decode(t, text, &r)
		if code != program.ExitConnect || r.Error == nil || r.Error.Phase != "connect" {
			t.Errorf("%s: exit code %d: %s", command, code, text)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a trace that could not be taken has left a file")
	}
}

func TestVersionIsToldAsTextAndJSON(t *testing.T) {
	_, text, _ := execute(t, "version")
	_, document, _ := execute(t, "version", "-o", "json")
	var v map[string]any
	decode(t, document, &v)
	checkDocument(t, "version", document)
	if v["schema"] != "zc-relay.version/1" || v["go_version"] == "" || !strings.Contains(text,
		v["go_version"].(string)) || !strings.Contains(text, v["version"].(string)) {
		t.Errorf("%q and %v", text, v)
	}
}
